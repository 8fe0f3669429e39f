#include "model/layers/compressor.h"

#include <algorithm>

namespace millrace {
namespace {

// The projection `weight x` with the open group's token, if any, in front: [open + T, head_dim].
Matrix<float> project_after_open(LayerContext& ctx, Matrix<const float> x, const Bf16Matrix& weight,
                                 const std::vector<float>& open) {
  const int64_t offset = open.empty() ? 0 : 1;
  const Matrix<float> out = ctx.matrix(offset + x.shape[0], weight.n);
  std::copy(open.begin(), open.end(), out.data);
  ctx.kernels.matmul_bf16(ctx.kernel_context, x, weight, out.rows(offset, out.shape[0]),
                          Rounding::kNone);
  return out;
}

void keep_open(Matrix<const float> projected, std::vector<float>& open) {
  const bool is_odd = projected.shape[0] % 2 != 0;
  const float* last = projected.row(projected.shape[0] - 1);
  open.assign(last, last + (is_odd ? projected.shape[1] : 0));
}

// The latents of all groups that are complete now, before the norm.
Matrix<float> pooled_latents(LayerContext& ctx, const CompressorWeights& weights, int64_t ratio,
                             Matrix<const float> x, CompressedRows& rows) {
  if (ratio == 1) return linear(ctx, x, weights.wkv, ctx.rounding());
  MR_CHECK_OP(ratio, ==, 2);
  const Matrix<float> value = project_after_open(ctx, x, weights.wkv, rows.open_value);
  const Matrix<float> gate = project_after_open(ctx, x, *weights.wgate, rows.open_gate);
  const int64_t groups = value.shape[0] / 2;
  const Matrix<float> latents = ctx.matrix(groups, value.shape[1]);
  ctx.kernels.compress_pairs(ctx.kernel_context, value.rows(0, 2 * groups),
                             gate.rows(0, 2 * groups), latents, ctx.rounding());
  keep_open(value, rows.open_value);
  keep_open(gate, rows.open_gate);
  return latents;
}

void append(std::vector<float>& to, Matrix<const float> rows) {
  to.insert(to.end(), rows.data, rows.data + rows.size());
}

}  // namespace

void compress(LayerContext& ctx, const CompressorWeights& weights, int64_t ratio,
              Matrix<const float> x, std::span<const float> rope_frequencies,
              CompressedRows& rows) {
  const Matrix<float> latents = pooled_latents(ctx, weights, ratio, x, rows);
  const int64_t count = latents.shape[0];
  if (count == 0) return;
  norm(ctx, latents, weights.norm);
  // The index key is made from the latent before its rotation.
  const Matrix<float> keys = linear(ctx, latents, weights.index_wk, ctx.rounding());
  norm(ctx, keys, weights.index_norm);

  const std::span<int64_t> positions(ctx.arena.allocate<int64_t>(count), size_t(count));
  for (int64_t i = 0; i < count; ++i) positions[size_t(i)] = (rows.num_rows + i) * ratio;
  const RopeTable table = make_rope_table(ctx, positions, rope_frequencies);
  for (const Matrix<float>& m : {latents, keys}) {
    ctx.kernels.rope(ctx.kernel_context, {m.data, {count, 1, m.shape[1]}}, table.cos, table.sin,
                     false, ctx.rounding());
  }
  if (ctx.numerics == Numerics::kReference) {
    ctx.kernels.fake_quantize_nvfp4(ctx.kernel_context, latents);
    ctx.kernels.fake_quantize_mxfp4(ctx.kernel_context, keys);
  }
  append(rows.kv, latents);
  append(rows.index_keys, keys);
  rows.num_rows += count;
  ctx.record("attn.compressed_kv", latents);
  ctx.record("attn.index_keys", keys);
}

}  // namespace millrace
