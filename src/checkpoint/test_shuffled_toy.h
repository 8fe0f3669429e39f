#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "sys/file.h"

namespace millrace::test {

inline const std::string kToy = MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41";

// The toy checkpoint, without its tokenizer, in a folder of its own. Nothing that belongs together
// lies together, or everything.
class ShuffledToy {
 public:
  // seed 0: in the usual order. `has_experts_apart`: 1.safetensors of two has the routed experts.
  ShuffledToy(uint32_t seed, size_t num_files, bool has_experts_apart = false) {
    std::string pattern = ::testing::TempDir() + "millrace-experts-XXXXXX";
    MR_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
    std::filesystem::copy_file(kToy + "/config.json", path_ + "/config.json");
    const Checkpoint toy = std::move(Checkpoint::open(kToy).value());
    std::vector<TensorSpec> tensors = toy.tensors();
    std::mt19937 random(seed);
    if (seed != 0) std::shuffle(tensors.begin(), tensors.end(), random);
    std::vector<std::vector<TensorHeader>> headers(num_files);
    std::vector<std::string> bytes(num_files);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& tensor = tensors[i];
      const bool is_expert = tensor.name.find(".ffn.experts.") != std::string::npos;
      const size_t file = has_experts_apart ? size_t(is_expert) : i * num_files / tensors.size();
      headers[file].push_back({tensor.name, tensor.dtype, tensor.shape});
      const Checkpoint::Place place = toy.place(tensor.name).value();
      const uint8_t* data = toy.shards()[place.shard].bytes().data();
      bytes[file].append(reinterpret_cast<const char*>(data + place.begin),
                         place.end - place.begin);
    }
    for (size_t file = 0; file < num_files; ++file) {
      const std::string content = safetensors_header(headers[file]) + bytes[file];
      MR_CHECK(write_file(file_path(file), content).ok());
    }
  }
  ~ShuffledToy() { std::filesystem::remove_all(path_); }
  ShuffledToy(const ShuffledToy&) = delete;
  ShuffledToy& operator=(const ShuffledToy&) = delete;

  const std::string& path() const { return path_; }
  std::string file_path(size_t file) const { return format(path_, "/", file, ".safetensors"); }

 private:
  std::string path_;
};

}  // namespace millrace::test
