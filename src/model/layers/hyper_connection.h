#pragma once

#include "model/layers/layer_context.h"

namespace millrace {

// The mixes of one sublayer, computed from the streams before it. `post` and `comb`
// are for this sublayer's own update; `pre` weighs the *next* sublayer's input (the lag of 3.3).
struct HcMixes {
  Matrix<float> pre;   // [T, M]
  Matrix<float> post;  // [T, M]
  Matrix<float> comb;  // [T, M * M]
};

HcMixes hc_mixes(LayerContext& ctx, Matrix<const float> streams, const HcWeights& weights);

// The sublayer's input: sum_i pre[i] * h[i], normed.
Matrix<float> hc_input(LayerContext& ctx, Matrix<const float> streams, Matrix<const float> pre,
                       std::span<const bf16> norm_weight);

// h'[j] = post[j] * y + sum_i C[i][j] * h[i].
void hc_update(LayerContext& ctx, Matrix<const float> y, const HcMixes& mixes,
               Matrix<float> streams);

// The one-hot mix every call starts with.
Matrix<float> hc_initial_mix(LayerContext& ctx, int64_t rows);

}  // namespace millrace
