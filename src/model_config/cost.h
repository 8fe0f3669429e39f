#pragma once

// What a model costs: bytes to store, bytes of state per token and sequence, operations and
// bytes to read per token. One set of formulas for benches, planner and `inspect`.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model_config/model_config.h"
#include "model_config/tensor_list.h"

namespace millrace {

struct PartSize {
  int64_t num_tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
};

struct CheckpointSize {
  std::array<PartSize, kNumTensorParts> parts;
  PartSize total;

  const PartSize& of(TensorPart part) const { return parts[size_t(part)]; }
};

CheckpointSize checkpoint_size(std::span<const TensorSpec> tensors);

// State of a sequence in the published storage formats: compressed rows in NVFP4, index
// keys in MXFP4, window keys in MXFP8. Rows of ratio 2 come every second token, so the bytes per
// token are averages.
struct KvSize {
  int64_t compressed_row_bytes = 0;  // of one row
  int64_t index_key_bytes = 0;
  int64_t window_entry_bytes = 0;

  double compressed_bytes_per_token = 0;  // over all KV sources
  double index_bytes_per_token = 0;

  int64_t window_bytes = 0;        // rings of all backbone layers, whatever the length
  int64_t draft_window_bytes = 0;  // rings of the draft stages
  int64_t open_group_bytes = 0;    // fp32 halves of rows that wait for their last token
  int64_t token_id_bytes = 0;      // what Engram's n-grams look back at

  double bytes_per_token() const { return compressed_bytes_per_token + index_bytes_per_token; }
  int64_t bytes_per_sequence() const {
    return window_bytes + draft_window_bytes + open_group_bytes + token_id_bytes;
  }
};

KvSize kv_size(const ModelConfig& config);

// One kind of operation for one token, over all layers that have it. A product of [n, k] counts
// 2 n k; element-wise work (norms, rotations, rounding) is left out.
struct OperationCost {
  std::string_view operation;
  int64_t num_calls = 0;
  double flops = 0;
  double weight_bytes = 0;  // read once per step; except for experts and table rows, tokens share
  double state_bytes = 0;   // window keys, compressed rows and index keys read
};

// The backbone's decode step for the token at `position`, which sees all tokens before it.
std::vector<OperationCost> decode_costs(const ModelConfig& config, int64_t position);

// One row of the draft block that follows `position`: stages and heads. The projection of the
// target's streams is counted, although one row per accepted token pays it.
std::vector<OperationCost> draft_costs(const ModelConfig& config, int64_t position);

OperationCost total(std::span<const OperationCost> costs);  // named "total"

}  // namespace millrace
