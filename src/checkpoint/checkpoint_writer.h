#pragma once

// Writes tensors as a released checkpoint: safetensors shards and their index.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model_config/model_config.h"
#include "model_config/tensor_list.h"

namespace millrace {

// One file: its tensors in the order of their bytes.
struct Shard {
  std::string file_name;
  std::vector<TensorSpec> tensors;
};

// Every tensor of tensor_list(config). As in the release, each draft stage and each Engram table
// has a file of its own at the end, if there are more files than these, and the rest is spread
// over the others by size. Requires: 1 <= num_shards <= the number of tensors.
std::vector<Shard> plan_shards(const ModelConfig& config, int64_t num_shards);

// Fills `bytes` with those of the tensor that begin at `offset`, a multiple of 64.
using TensorValues =
    std::function<void(const TensorSpec& tensor, int64_t offset, std::span<uint8_t> bytes)>;

// Called while tensors are written; false stops with kCancelled.
using WriteProgress = std::function<bool(int64_t bytes_done, int64_t bytes_all)>;

// Writes the shards and model.safetensors.index.json into an existing folder, over files of the
// same names. Without `values` tensors are holes: zeros that take no space. After an error no
// shard of this call is left.
Status write_shards(const std::string& folder, std::span<const Shard> shards,
                    const TensorValues& values, const WriteProgress& progress = {});

}  // namespace millrace
