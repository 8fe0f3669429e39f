// Headers of shards, and the index. The first two bytes say how many bytes of data stand behind
// the header; a header made of the rest gets the length it needs, so that mutations reach what it
// says. The input is also read as a whole file and as an index.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/safetensors.h"

using namespace millrace;

namespace {

// The tensors are exactly what is behind the header, and writing them gives them again.
void check_tensors(const std::vector<TensorEntry>& tensors, uint64_t file_size) {
  std::vector<TensorHeader> headers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& t = tensors[i];
    MR_CHECK(t.begin <= t.end);
    MR_CHECK(t.begin == (i == 0 ? t.begin : tensors[i - 1].end));
    headers.push_back({t.name, t.dtype, t.shape});
  }
  MR_CHECK(tensors.empty() || tensors.back().end == file_size);

  std::string file = safetensors_header(headers);
  const size_t data_begin = file.size();
  const uint64_t data_bytes = tensors.empty() ? 0 : file_size - tensors.front().begin;
  file.resize(data_begin + data_bytes);
  const Result<std::vector<TensorEntry>> again =
      parse_safetensors({reinterpret_cast<const uint8_t*>(file.data()), file.size()}, "again");
  MR_CHECK(again.has_value());
  MR_CHECK_OP(again.value().size(), ==, tensors.size());
  for (const TensorEntry& t : tensors) {
    bool is_there = false;  // those without bytes may change places
    for (const TensorEntry& other : again.value()) {
      is_there |= other.name == t.name && other.dtype == t.dtype && other.shape == t.shape &&
                  other.end - data_begin == t.end - tensors.front().begin;
    }
    MR_CHECK(is_there);
  }
}

void check_file(std::span<const uint8_t> file) {
  const Result<std::vector<TensorEntry>> tensors = parse_safetensors(file, "file");
  if (tensors.has_value()) return check_tensors(tensors.value(), file.size());
  MR_CHECK(tensors.error().message.rfind("file: ", 0) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check_file({data, size});
  (void)parse_shard_index({reinterpret_cast<const char*>(data), size}, "index");
  if (size < 2) return 0;
  const size_t data_bytes = data[0] | size_t(data[1]) << 8;
  const uint64_t header_bytes = size - 2;
  std::vector<uint8_t> file(sizeof header_bytes + header_bytes + data_bytes);
  std::memcpy(file.data(), &header_bytes, sizeof header_bytes);
  std::memcpy(file.data() + sizeof header_bytes, data + 2, header_bytes);
  check_file(file);
  return 0;
}
