#include "model/layers/attention.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// Output projection, first half: each group of heads has its own rows of wo_a. The only fp8
// weight whose input is not quantised.
Matrix<float> grouped_output(LayerContext& ctx, const Fp8Matrix& wo_a,
                             TensorView<const float, 3> o) {
  const int64_t groups = ctx.config.o_groups, rank = ctx.config.o_lora_rank;
  const int64_t rows = o.shape[0], width = o.shape[1] * o.shape[2], group_width = width / groups;
  const Matrix<float> out = ctx.matrix(rows, groups * rank);
  for (int64_t g = 0; g < groups; ++g) {
    const Matrix<const float> in(o.data + g * group_width, {rows, group_width}, {width, 1});
    const Matrix<float> part(out.data + g * rank, {rows, rank}, {out.shape[1], 1});
    ctx.kernels.matmul_fp8(ctx.kernel_context, in, wo_a.slice(g * rank, (g + 1) * rank), part,
                           ctx.rounding());
  }
  return out;
}

void record_selection(LayerContext& ctx, const AttentionStep& step, int64_t ratio) {
  if (ctx.trace == nullptr) return;
  for (int64_t t = 0; t < step.rows.num_rows(); ++t) {
    const int32_t* first = step.selection.rows.row(t);
    const int64_t num_rows = num_visible_rows(step.rows.positions.back(), ratio);
    ctx.trace->add_selection(ctx.trace_prefix + "attn.selected_rows", num_rows,
                             {first, first + step.selection.counts[size_t(t)]});
  }
}

}  // namespace

Matrix<float> window_keys(LayerContext& ctx, const AttentionWeights& weights,
                          Matrix<const float> x, const RopeTable& rope) {
  const Matrix<float> kv = linear(ctx, x, weights.wkv);
  norm(ctx, kv, weights.kv_norm);
  ctx.kernels.rope(ctx.kernel_context, {kv.data, {kv.shape[0], 1, kv.shape[1]}}, rope.cos,
                   rope.sin, false, ctx.rounding());
  return kv;
}

AttentionInputs attention_inputs(LayerContext& ctx, const AttentionWeights& weights,
                                 Matrix<const float> x, const RopeTable& rope) {
  const Matrix<const float> in = ctx.linear_input(x);
  const Matrix<float> q_latent = linear(ctx, in, weights.wq_a);
  norm(ctx, q_latent, weights.q_norm);
  const Matrix<float> q = linear(ctx, ctx.linear_input(q_latent), weights.wq_b);
  const TensorView<float, 3> by_head(
      q.data, {q.shape[0], ctx.config.num_attention_heads, ctx.config.head_dim});
  ctx.kernels.rope(ctx.kernel_context, by_head, rope.cos, rope.sin, false, ctx.rounding());
  return {q_latent, by_head, window_keys(ctx, weights, in, rope)};
}

Matrix<float> attend_and_project(LayerContext& ctx, const AttentionWeights& weights,
                                 TensorView<const float, 3> q, const AttentionKeys& keys,
                                 const RopeTable& rope) {
  const TensorView<float, 3> o(ctx.arena.allocate<float>(q.size()), q.shape);
  const float scale = float(1.0 / std::sqrt(double(q.shape[2])));
  ctx.kernels.attention(ctx.kernel_context, q, keys, weights.sink, scale, o, ctx.rounding());
  ctx.kernels.rope(ctx.kernel_context, o, rope.cos, rope.sin, true, ctx.rounding());
  const Matrix<float> low_rank = grouped_output(ctx, weights.wo_a, o);
  return linear(ctx, ctx.linear_input(low_rank), weights.wo_b);
}

Matrix<float> attention(LayerContext& ctx, const AttentionWeights& weights, const LayerInfo& layer,
                        int64_t layer_idx, Matrix<const float> x, AttentionStep& step) {
  const BatchRows& rows = step.rows;
  const KvLayout& layout = step.store.layout();
  const bool compressed = layer.reads_compressed_rows();
  const RopeTable& rope = compressed ? step.compressed_rope : step.window_rope;
  const AttentionInputs in = attention_inputs(ctx, weights, x, rope);
  pack_fresh(ctx, step.fresh, layer_idx, 0, in.kv);

  const StatePlane& ring = layout.plane(StateKind::kWindowRing, layer_idx);
  AttentionKeys keys{.window_format = step.fresh.format(),
                     .ring_offset = ring.values_offset,
                     .ring_slots = ring.num_rows,
                     .fresh = step.fresh.layer(layer_idx),
                     .window = rows.window,
                     .compressed = {},
                     .block_tables = rows.block_tables,
                     .selected = {},
                     .num_selected = {}};
  if (!compressed) {
    const std::span<int32_t> none = ctx.list<int32_t>(rows.num_rows());
    std::fill(none.begin(), none.end(), 0);
    keys.num_selected = none;
    return attend_and_project(ctx, weights, in.q, keys, rope);
  }
  // A source's rows of this call are written before they are read in it.
  if (layer.owns_compressor) {
    compress(ctx, *weights.compressor, layer_idx, layer.compress_ratio, x, rows,
             step.compressed_frequencies, step.store, step.open_groups);
  }
  if (layer.owns_index) {
    const PagedRows index_keys =
        step.store.paged_rows(layout.plane(StateKind::kIndexKey, layer.kv_source));
    select_rows(ctx, *weights.indexer, layer, x, in.q_latent, rows, rope, index_keys,
                step.selection, step.candidates);
    record_selection(ctx, step, layer.compress_ratio);
  }
  keys.compressed = step.store.paged_rows(layout.plane(StateKind::kCompressedRow, layer.kv_source));
  keys.selected = step.selection.rows;
  keys.num_selected = step.selection.counts;
  return attend_and_project(ctx, weights, in.q, keys, rope);
}

}  // namespace millrace
