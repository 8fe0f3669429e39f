#include "model/layers/engram.h"

namespace millrace {

Matrix<const int64_t> engram_row_ids(LayerContext& ctx, const EngramTable& table,
                                     int64_t compressed_pad, Matrix<const int32_t> ngrams) {
  const int64_t num_tokens = ngrams.shape[0], columns = table.num_columns();
  const Matrix<int64_t> ids = ctx.matrix<int64_t>(num_tokens, columns);
  for (int64_t t = 0; t < num_tokens; ++t) {
    engram_rows(table, compressed_pad, {ngrams.row(t), size_t(ngrams.shape[1])},
                {ids.row(t), size_t(columns)});
  }
  return ids;
}

void engram(LayerContext& ctx, const EngramWeights& weights, Matrix<const int64_t> row_ids,
            std::span<const uint8_t> dead, Matrix<float> streams) {
  const Matrix<float> memory =
      ctx.matrix(row_ids.shape[0], row_ids.shape[1] * weights.embed.width);
  ctx.kernels.gather_fp8(ctx.kernel_context, weights.embed, row_ids, memory);
  const Matrix<float> key_value = linear(ctx, ctx.linear_input(memory), weights.wkv);
  ctx.kernels.engram_update(ctx.kernel_context, key_value, weights.q_weight, weights.k_weight,
                            float(ctx.config.rms_norm_eps), dead, streams, ctx.rounding());
}

}  // namespace millrace
