#pragma once

// A released checkpoint: config.json and safetensors shards in one folder, mapped and served as
// they are.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "checkpoint/open_progress.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "model_config/model_config.h"
#include "model_config/tensor_list.h"
#include "sys/file.h"

namespace millrace {

// Invariant: holds exactly the tensors of tensor_list(config), each with the listed dtype and
// shape. Values are not looked at; pages are read from disk when they are first used.
//
// The format lets a tensor start at any byte. Codes and scales are bytes and read where they lie;
// a bf16 or f32 tensor that is not aligned to its elements is copied once, at open. With the
// released sizes, which are all multiples of 4, a file whose data start at such a multiple needs
// no copy.
//
// Views stay valid when the object is moved.
class Checkpoint : public WeightSource {
 public:
  // Reads `folder`/config.json and the shards: those named by model.safetensors.index.json, or
  // without that file every *.safetensors in the folder (not below it). An index must agree with
  // the shards in every name, file and the total size. Messages name file, tensor, found and
  // expected.
  static Result<Checkpoint> open(const std::string& folder, const OpenProgress& progress = {});

  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  const ModelConfig& config() const { return config_; }
  const std::vector<TensorSpec>& tensors() const { return specs_; }
  const std::vector<MappedFile>& shards() const { return shards_; }
  int64_t copied_bytes() const { return copied_bytes_; }  // of misaligned tensors

  // Where a tensor's bytes lie: [begin, end) of the file shards()[shard].
  struct Place {
    size_t shard;
    uint64_t begin, end;
  };
  Result<Place> place(std::string_view name) const;

  Result<Fp8Matrix> fp8_matrix(std::string_view base_name) const override;
  Result<Fp4Matrix> fp4_matrix(std::string_view base_name) const override;
  Result<Fp8Table> fp8_table(std::string_view base_name) const override;
  Result<Bf16Matrix> bf16_matrix(std::string_view name) const override;
  Result<F32Matrix> f32_matrix(std::string_view name) const override;
  Result<std::span<const bf16>> bf16_vector(std::string_view name) const override;
  Result<std::span<const float>> f32_vector(std::string_view name) const override;

 private:
  struct Tensor {
    const TensorSpec* spec;
    const uint8_t* data;
  };
  struct Quantized {
    const uint8_t* codes;
    const uint8_t* scales;
    int64_t rows, columns;
  };
  enum class ScaleRows { kPerBlock, kPerRow };

  explicit Checkpoint(ModelConfig config);
  Status add_shard(const std::string& path);
  Status check_index(const ShardIndex& index, const std::string& path) const;
  Status check_complete(const std::string& folder) const;

  Result<Tensor> find(std::string_view name, Dtype dtype, size_t rank) const;
  Result<Quantized> find_quantized(std::string_view base_name, Dtype dtype,
                                   ScaleRows scale_rows) const;

  ModelConfig config_;
  std::vector<TensorSpec> specs_;
  std::unordered_map<std::string_view, size_t> by_name_;  // into specs_
  std::vector<const uint8_t*> data_;                      // [specs_]
  std::vector<uint64_t> begin_;                           // [specs_] in its file
  std::vector<int64_t> shard_of_;                         // [specs_] into shards_; -1: not found
  std::vector<MappedFile> shards_;
  std::vector<std::vector<uint32_t>> copies_;  // the misaligned tensors, realigned
  int64_t copied_bytes_ = 0;
};

}  // namespace millrace
