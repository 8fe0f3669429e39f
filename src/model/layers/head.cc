#include "model/layers/head.h"

#include <algorithm>

namespace millrace {

Matrix<float> embed(LayerContext& ctx, const Bf16Matrix& table,
                    std::span<const int32_t> token_ids) {
  const int64_t m = ctx.config.hc_mult;
  const Matrix<float> streams = ctx.matrix(int64_t(token_ids.size()), m * table.k);
  for (size_t t = 0; t < token_ids.size(); ++t) {
    const bf16* row = table.data + token_ids[t] * table.k;
    float* first = streams.row(int64_t(t));
    std::transform(row, row + table.k, first, [](bf16 x) { return to_float(x); });
    for (int64_t s = 1; s < m; ++s) std::copy_n(first, table.k, first + s * table.k);
  }
  return streams;
}

Matrix<float> collapse_streams(LayerContext& ctx, Matrix<const float> streams,
                               Matrix<const float> pre_mix) {
  const Matrix<float> x = ctx.matrix(streams.shape[0], ctx.config.hidden_size);
  ctx.kernels.hc_collapse(ctx.kernel_context, streams, pre_mix, x, ctx.rounding());
  return x;
}

void head(LayerContext& ctx, Matrix<const float> x, std::span<const bf16> norm_weight,
          const Bf16Matrix& weight, Matrix<float> logits) {
  const Matrix<float> normed = ctx.matrix(x.shape[0], x.shape[1]);
  ctx.kernels.rms_norm(ctx.kernel_context, x, norm_weight, float(ctx.config.rms_norm_eps), normed,
                       ctx.rounding());
  ctx.kernels.matmul_bf16(ctx.kernel_context, normed, weight, logits, Rounding::kNone);
}

}  // namespace millrace
