#include "model/layers/hyper_connection.h"

#include <algorithm>

namespace millrace {

HcMixes hc_mixes(LayerContext& ctx, Matrix<const float> streams, const HcWeights& weights) {
  const int64_t rows = streams.shape[0], m = ctx.config.hc_mult;
  const HcMixes mixes{ctx.matrix(rows, m), ctx.matrix(rows, m), ctx.matrix(rows, m * m)};
  const HcParameters parameters{float(ctx.config.rms_norm_eps), float(ctx.config.hc_eps),
                                int(ctx.config.hc_sinkhorn_iters)};
  ctx.kernels.hc_mixes(ctx.kernel_context, streams, weights, parameters, mixes.pre, mixes.post,
                       mixes.comb);
  return mixes;
}

Matrix<float> hc_input(LayerContext& ctx, Matrix<const float> streams, Matrix<const float> pre,
                       std::span<const bf16> norm_weight) {
  const Matrix<float> y = ctx.matrix(streams.shape[0], ctx.config.hidden_size);
  ctx.kernels.hc_collapse(ctx.kernel_context, streams, pre, y, ctx.rounding());
  norm(ctx, y, norm_weight);
  return y;
}

void hc_update(LayerContext& ctx, Matrix<const float> y, const HcMixes& mixes,
               Matrix<float> streams) {
  ctx.kernels.hc_expand(ctx.kernel_context, y, mixes.post, mixes.comb, streams, ctx.rounding());
}

Matrix<float> hc_initial_mix(LayerContext& ctx, int64_t rows) {
  const Matrix<float> mix = ctx.matrix(rows, ctx.config.hc_mult);
  std::fill_n(mix.data, mix.size(), 0.0f);
  for (int64_t t = 0; t < rows; ++t) mix.row(t)[0] = 1.0f;
  return mix;
}

}  // namespace millrace
