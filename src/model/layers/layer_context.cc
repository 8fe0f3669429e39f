#include "model/layers/layer_context.h"

#include <algorithm>

#include "kernels/math.h"

namespace millrace {

Matrix<const float> LayerContext::linear_input(Matrix<const float> x) {
  if (numerics == Numerics::kFp32) return x;
  const Matrix<float> quantised = matrix(x.shape[0], x.shape[1]);
  for (int64_t t = 0; t < x.shape[0]; ++t) std::copy_n(x.row(t), x.shape[1], quantised.row(t));
  kernels.fake_quantize_fp8(kernel_context, quantised);
  return quantised;
}

RopeTable make_rope_table(LayerContext& ctx, std::span<const int64_t> positions,
                          std::span<const float> frequencies) {
  const Matrix<float> cos = ctx.matrix(int64_t(positions.size()), int64_t(frequencies.size()));
  const Matrix<float> sin = ctx.matrix(int64_t(positions.size()), int64_t(frequencies.size()));
  rope_table(positions, frequencies, cos, sin);
  return {cos, sin};
}

Matrix<float> linear(LayerContext& ctx, Matrix<const float> x, const Fp8Matrix& weight) {
  const Matrix<float> out = ctx.matrix(x.shape[0], weight.n);
  ctx.kernels.matmul_fp8(ctx.kernel_context, x, weight, out, ctx.rounding());
  return out;
}

Matrix<float> linear(LayerContext& ctx, Matrix<const float> x, const Bf16Matrix& weight,
                     Rounding rounding) {
  const Matrix<float> out = ctx.matrix(x.shape[0], weight.n);
  ctx.kernels.matmul_bf16(ctx.kernel_context, x, weight, out, rounding);
  return out;
}

void norm(LayerContext& ctx, Matrix<float> x, std::span<const bf16> weight) {
  ctx.kernels.rms_norm(ctx.kernel_context, x, weight, float(ctx.config.rms_norm_eps), x,
                       ctx.rounding());
}

}  // namespace millrace
