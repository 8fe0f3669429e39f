#pragma once

// Where the model's weights come from. The model binds each tensor once, by name, through this
// interface; what it gets are views on memory that the source keeps readable for its own life.

#include <span>
#include <string_view>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/quantized.h"

namespace millrace {

// Every look-up answers kNotFound for an unknown name and kInvalidArgument, naming the tensor,
// what was found and what was expected, for one of another dtype or rank. Shapes are those of
// the source; a checked source has exactly the tensors of tensor_list(config).
//
// Threading: look-ups do not change the source; any thread may make them.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Quantised weights by their base name, "layers.0.attn.wq_a": codes at NAME.weight, scales at
  // NAME.scale. Bytes, so no alignment.
  virtual Result<Fp8Matrix> fp8_matrix(std::string_view base_name) const = 0;
  virtual Result<Fp4Matrix> fp4_matrix(std::string_view base_name) const = 0;
  virtual Result<Fp8Table> fp8_table(std::string_view base_name) const = 0;

  // Plain tensors by their whole name, "embed.weight", "layers.0.hc_attn_fn". Aligned to their
  // elements.
  virtual Result<Bf16Matrix> bf16_matrix(std::string_view name) const = 0;
  virtual Result<F32Matrix> f32_matrix(std::string_view name) const = 0;
  virtual Result<std::span<const bf16>> bf16_vector(std::string_view name) const = 0;
  virtual Result<std::span<const float>> f32_vector(std::string_view name) const = 0;
};

}  // namespace millrace
