#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/format.h"
#include "checkpoint/safetensors.h"
#include "sys/file.h"

namespace millrace {

// A safetensors file of expected values, read whole.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    Result<MappedFile> file = MappedFile::open(path);
    MR_CHECK(file.has_value());
    const std::span<const uint8_t> bytes = file.value().bytes();
    const Result<std::vector<TensorEntry>> entries = parse_safetensors(bytes, path);
    MR_CHECK(entries.has_value());
    for (const TensorEntry& entry : entries.value()) {
      tensors_[entry.name] = {
          entry.shape, {bytes.begin() + int64_t(entry.begin), bytes.begin() + int64_t(entry.end)}};
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  const std::vector<int64_t>& shape(const std::string& name) const { return at(name).shape; }

  template <class T>
  std::vector<T> values(const std::string& name) const {
    const std::vector<uint8_t>& bytes = at(name).bytes;
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  std::vector<int32_t> token_ids(const std::string& name) const {
    const std::vector<int64_t> wide = values<int64_t>(name);
    return {wide.begin(), wide.end()};
  }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
  };
  const Tensor& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) check_failed(__FILE__, __LINE__, name.c_str());
    return found->second;
  }
  std::map<std::string, Tensor> tensors_;
};

}  // namespace millrace
