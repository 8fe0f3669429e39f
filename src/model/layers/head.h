#pragma once

#include "model/layers/layer_context.h"
#include "model/weights.h"

namespace millrace {

// Residual streams of tokens: each embedding copied to every stream. [T, M * hidden_size].
Matrix<float> embed(LayerContext& ctx, const Bf16Matrix& table, std::span<const int32_t> token_ids);

// The rows the output head and the draft head read: sum_i pre_mix[i] * h[i]. [T, hidden_size]
Matrix<float> collapse_streams(LayerContext& ctx, Matrix<const float> streams,
                               Matrix<const float> pre_mix);

// fp32 logits [T, vocab_size] of collapsed rows, which stay as they are.
void head(LayerContext& ctx, Matrix<const float> x, std::span<const bf16> norm_weight,
          const Bf16Matrix& weight, Matrix<float> logits);

}  // namespace millrace
