#include "model/layers/engram.h"

namespace millrace {

Matrix<int64_t> engram_row_ids(LayerContext& ctx, const EngramTable& table,
                               int64_t compressed_pad, Matrix<const int32_t> ngrams) {
  const int64_t num_tokens = ngrams.shape[0], columns = table.num_columns();
  const Matrix<int64_t> ids = ctx.matrix<int64_t>(num_tokens, columns);
  for (int64_t t = 0; t < num_tokens; ++t) {
    engram_rows(table, compressed_pad, {ngrams.row(t), size_t(ngrams.shape[1])},
                {ids.row(t), size_t(columns)});
  }
  return ids;
}

void read_engram_ahead(const Fp8Table& table, Matrix<const int64_t> row_ids,
                       std::span<const int32_t> tokens, std::span<const uint8_t> dead,
                       ReadAhead& ahead) {
  constexpr int64_t kStaysInMemory = int64_t{256} << 20;
  if (table.rows * table.width < kStaysInMemory) return;
  const int64_t scales = table.width / kQuantBlock;
  for (const int32_t t : tokens) {
    if (dead[size_t(t)] != 0) continue;
    for (int64_t c = 0; c < row_ids.shape[1]; ++c) {
      const int64_t row = row_ids.row(t)[c];
      ahead.add(table.codes + row * table.width, size_t(table.width));
      ahead.add(table.scales + row * scales, size_t(scales));
    }
  }
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
