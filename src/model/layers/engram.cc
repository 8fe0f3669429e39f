#include "model/layers/engram.h"

namespace millrace {

Matrix<const int64_t> engram_row_ids(LayerContext& ctx, const EngramTable& table,
                                     int64_t compressed_pad, std::span<const int32_t> tail,
                                     std::span<const int32_t> compressed) {
  const int64_t num_tokens = int64_t(compressed.size()), columns = table.num_columns();
  const Matrix<int64_t> ids(ctx.arena.allocate<int64_t>(num_tokens * columns),
                            {num_tokens, columns});
  std::vector<int32_t> window;
  for (int64_t t = 0; t < num_tokens; ++t) {
    window.clear();
    for (int64_t back = 0; back < table.max_ngram_size(); ++back) {
      const int64_t in_tail = back - t - 1;
      if (in_tail < 0) window.push_back(compressed[size_t(t - back)]);
      else if (in_tail < int64_t(tail.size())) window.push_back(tail[size_t(in_tail)]);
    }
    engram_rows(table, compressed_pad, window, {ids.row(t), size_t(columns)});
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
