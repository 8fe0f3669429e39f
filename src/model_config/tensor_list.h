#pragma once

// Every tensor that a config implies: the one list behind validation of a checkpoint,
// its totals, and anything that writes one.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model_config/model_config.h"

namespace millrace {

// Element types of the safetensors format.
enum class Dtype {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

std::string_view dtype_name(Dtype dtype);  // as files spell it: "F8_E4M3"
std::optional<Dtype> dtype_from_name(std::string_view name);
int64_t dtype_bytes(Dtype dtype);

// "[2304, 2560]"
std::string shape_text(const std::vector<int64_t>& shape);

// What a tensor is for, and so how often it is read.
enum class TensorPart {
  kEmbedding,        // input embedding: one row per token
  kHead,             // output embedding
  kNorm,             // norms before a sublayer, of the result and of the draft
  kHyperConnection,  // mixes of the residual streams
  kAttention,
  kCompressor,
  kIndexer,
  kEngramTable,  // rows are fetched, never multiplied whole
  kEngram,       // its dense part
  kRouter,
  kSharedExpert,
  kRoutedExpert,
  kDraft,  // what only the draft has: projection, Markov and confidence heads
  kVision,
};
inline constexpr int kNumTensorParts = int(TensorPart::kVision) + 1;
std::string_view part_name(TensorPart part);

struct TensorSpec {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  TensorPart part;
  // Backbone layers first, then draft stages as num_hidden_layers + stage; -1: no layer.
  int64_t layer = -1;

  int64_t elements() const;
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
  // Weights of the model: two per byte of fp4 codes, none in a scale.
  int64_t parameters() const;
};

// In a fixed order: top level, layers, draft stages, vision. Requires: a complete config.
std::vector<TensorSpec> tensor_list(const ModelConfig& config);

}  // namespace millrace
