#pragma once

// The safetensors format: eight bytes of header length, a JSON header that names tensors, their
// bytes. And the index file that says which tensor is in which file.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model_config/tensor_list.h"

namespace millrace {

struct TensorEntry {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes of the file
};

// The tensors of one file, in the order of their bytes. What is returned lies inside the file,
// has the size that dtype and shape imply, and the tensors cover everything behind the header
// without gap or overlap; no name appears twice. `file_name` is for messages.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const uint8_t> file,
                                                   std::string_view file_name);

struct ShardIndex {
  std::optional<uint64_t> total_size;
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor, file; each tensor once
};

// model.safetensors.index.json.
inline constexpr size_t kMaxIndexBytes = 32 << 20;
Result<ShardIndex> parse_shard_index(std::string_view text, std::string_view file_name);

// One tensor to be written.
struct TensorHeader {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
};

// The length and header of a file that holds `tensors` in this order, padded so that their bytes
// start at a multiple of 8. Append the tensors' bytes.
std::string safetensors_header(std::span<const TensorHeader> tensors);

}  // namespace millrace
