#pragma once

#include <span>

#include "base/status.h"
#include "checkpoint/expert_source.h"
#include "model/batch.h"
#include "model/layers/layer_context.h"
#include "model/weights.h"

namespace millrace {

// Mixture of experts: [T, hidden_size].
//   x                [T, hidden_size] normed input
//   expert_layer     index of the layer in the expert source
//   experts_per_token  chosen per token
//   kinds            [T] images route by bias_vl, pads to no expert
// Fails only where the source cannot bring an expert.
Result<Matrix<float>> moe(LayerContext& ctx, const MoeWeights& weights, ExpertSource& experts,
                          int64_t expert_layer, int64_t experts_per_token, Matrix<const float> x,
                          std::span<const RowKind> kinds);

}  // namespace millrace
