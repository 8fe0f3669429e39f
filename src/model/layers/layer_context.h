#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/arena.h"
#include "kernels/kernels.h"
#include "model/expert_counts.h"
#include "model/numerics.h"
#include "model/trace.h"
#include "model_config/model_config.h"

namespace millrace {

// What every layer of one forward call works with. Built per call, passed by reference.
struct LayerContext {
  const ModelConfig& config;
  Numerics numerics;
  const KernelTable& kernels;
  KernelContext& kernel_context;
  Arena& arena;
  Trace* trace = nullptr;  // null: record nothing
  std::string trace_prefix;  // "layers.7." while layer 7 runs
  ExpertCounts* expert_counts = nullptr;  // null: nobody counts

  Rounding rounding() const {
    return numerics == Numerics::kReference ? Rounding::kBf16 : Rounding::kNone;
  }

  // Memory of the call; its content is whatever was there.
  template <class T = float>
  Matrix<T> matrix(int64_t rows, int64_t columns) {
    return {arena.allocate<T>(rows * columns), {rows, columns}};
  }
  template <class T>
  std::span<T> list(int64_t count) {
    return {arena.allocate<T>(count), size_t(count)};
  }

  void record(const char* name, Matrix<const float> rows) {
    if (trace != nullptr) trace->add(trace_prefix + name, rows);
  }

  // The input of a linear layer whose weight is fp8: quantised in reference numerics.
  Matrix<const float> linear_input(Matrix<const float> x);
};

// Rotation angles of the rows of one call, for one of the two frequency sets.
struct RopeTable {
  Matrix<float> cos, sin;  // [T, qk_rope_head_dim / 2]
};

RopeTable make_rope_table(LayerContext& ctx, std::span<const int64_t> positions,
                          std::span<const float> frequencies);

// Out = W x with an fp8 weight, rounded to bf16 in reference numerics. x is used as it is: pass
// linear_input(x) where the activation is quantised.
Matrix<float> linear(LayerContext& ctx, Matrix<const float> x, const Fp8Matrix& weight);

// Out = W x with a bf16 weight and no activation quantisation.
Matrix<float> linear(LayerContext& ctx, Matrix<const float> x, const Bf16Matrix& weight,
                     Rounding rounding);

// RMSNorm in place.
void norm(LayerContext& ctx, Matrix<float> x, std::span<const bf16> weight);

}  // namespace millrace
