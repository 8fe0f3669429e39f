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
                          Matrix<const float> in, const RopeTable& rope) {
  const Matrix<float> kv = linear(ctx, in, weights.wkv);
  norm(ctx, kv, weights.kv_norm);
  ctx.kernels.rope(ctx.kernel_context, {kv.data, {kv.shape[0], 1, kv.shape[1]}}, rope.cos,
                   rope.sin, false, ctx.rounding());
  return kv;
}

Queries make_queries(LayerContext& ctx, const AttentionWeights& weights, Matrix<const float> in,
                     const RopeTable& rope) {
  const Matrix<float> latent = linear(ctx, in, weights.wq_a);
  norm(ctx, latent, weights.q_norm);
  const Matrix<float> q = linear(ctx, ctx.linear_input(latent), weights.wq_b);
  const TensorView<float, 3> by_head(
      q.data, {q.shape[0], ctx.config.num_attention_heads, ctx.config.head_dim});
  ctx.kernels.rope(ctx.kernel_context, by_head, rope.cos, rope.sin, false, ctx.rounding());
  return {latent, by_head};
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

void AttentionStep::keep(std::span<const int32_t> kept) {
  rows.keep(kept);
  for (RopeTable* rope : {&window_rope, &compressed_rope}) {
    keep_rows(rope->cos, kept);
    keep_rows(rope->sin, kept);
  }
  keep_rows(selection.rows, kept);
  keep_rows(selection.counts, kept);
  keep_rows(candidates.blocks, kept);
  keep_rows(candidates.counts, kept);
}

void write_keys(LayerContext& ctx, const AttentionWeights& weights, const LayerInfo& layer,
                int64_t layer_idx, Matrix<const float> x, Matrix<const float> in,
                AttentionStep& step) {
  pack_fresh(ctx, step.fresh, layer_idx, step.rows.call_rows,
             window_keys(ctx, weights, in, step.rope(layer)));
  if (layer.owns_compressor) {
    compress(ctx, *weights.compressor, layer_idx, layer.compress_ratio, x, step.rows,
             step.compressed_frequencies, step.store, step.open_groups);
  }
}

Matrix<float> attention(LayerContext& ctx, const AttentionWeights& weights, const LayerInfo& layer,
                        int64_t layer_idx, Matrix<const float> x, Matrix<const float> in,
                        AttentionStep& step) {
  const BatchRows& rows = step.rows;
  const KvLayout& layout = step.store.layout();
  const RopeTable& rope = step.rope(layer);
  const Queries queries = make_queries(ctx, weights, in, rope);

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
  if (!layer.reads_compressed_rows()) {
    const std::span<int32_t> none = ctx.list<int32_t>(rows.num_rows());
    std::fill(none.begin(), none.end(), 0);
    keys.num_selected = none;
    return attend_and_project(ctx, weights, queries.q, keys, rope);
  }
  if (layer.owns_index) {
    const PagedRows index_keys =
        step.store.paged_rows(layout.plane(StateKind::kIndexKey, layer.kv_source));
    select_rows(ctx, *weights.indexer, layer, x, queries.latent, rows, rope, index_keys,
                step.selection, step.candidates);
    record_selection(ctx, step, layer.compress_ratio);
  }
  keys.compressed = step.store.paged_rows(layout.plane(StateKind::kCompressedRow, layer.kv_source));
  keys.selected = step.selection.rows;
  keys.num_selected = step.selection.counts;
  return attend_and_project(ctx, weights, queries.q, keys, rope);
}

}  // namespace millrace
