#include "model/layers/attention.h"

#include <algorithm>
#include <cmath>

#include "model/layers/compressor.h"

namespace millrace {
namespace {

// Output projection, first half: each group of heads has its own rows of wo_a. The only fp8
// weight whose input is not quantised (spec 3.6).
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

// Positions [p - sliding_window + 1, p] of every token, as rows of `window`.
void window_ranges(const ModelConfig& config, std::span<const int64_t> positions,
                   const WindowRows& window, std::span<int32_t> begin, std::span<int32_t> count) {
  const int64_t first_held = window.end_position() - window.rows().shape[0];
  for (size_t t = 0; t < positions.size(); ++t) {
    const int64_t first = std::max<int64_t>(0, positions[t] - config.sliding_window + 1);
    MR_CHECK_OP(first, >=, first_held);
    begin[t] = int32_t(first - first_held);
    count[t] = int32_t(positions[t] - first + 1);
  }
}

void record_selection(LayerContext& ctx, const Selection& selection, int64_t num_rows) {
  if (ctx.trace == nullptr) return;
  for (size_t t = 0; t + 1 < selection.row_begin.size(); ++t) {
    ctx.trace->add_selection(ctx.trace_prefix + "attn.selected_rows", num_rows,
                             {selection.rows.begin() + selection.row_begin[t],
                              selection.rows.begin() + selection.row_begin[t + 1]});
  }
}

}  // namespace

Matrix<float> window_keys(LayerContext& ctx, const AttentionWeights& weights,
                          Matrix<const float> x, const RopeTable& rope) {
  const Matrix<float> kv = linear(ctx, x, weights.wkv);
  norm(ctx, kv, weights.kv_norm);
  ctx.kernels.rope(ctx.kernel_context, {kv.data, {kv.shape[0], 1, kv.shape[1]}}, rope.cos,
                   rope.sin, false, ctx.rounding());
  if (ctx.numerics == Numerics::kReference) ctx.kernels.fake_quantize_fp8(ctx.kernel_context, kv);
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
                        Matrix<const float> x, AttentionStep& step, WindowRows& window,
                        CompressedRows* rows) {
  const int64_t num_tokens = x.shape[0];
  const bool compressed = layer.reads_compressed_rows();
  const RopeTable& rope = compressed ? step.compressed_rope : step.window_rope;
  const AttentionInputs in = attention_inputs(ctx, weights, x, rope);
  const Matrix<float> new_keys = window.append(num_tokens);
  std::copy_n(in.kv.data, in.kv.size(), new_keys.data);

  const size_t count = size_t(num_tokens);
  const std::span<int32_t> window_begin(ctx.arena.allocate<int32_t>(num_tokens), count);
  const std::span<int32_t> window_count(ctx.arena.allocate<int32_t>(num_tokens), count);
  window_ranges(ctx.config, step.positions, window, window_begin, window_count);
  AttentionKeys keys{.window = window.rows(),
                     .compressed = {nullptr, {0, ctx.config.head_dim}},
                     .window_begin = window_begin,
                     .window_count = window_count,
                     .selected = {},
                     .selected_begin = {}};
  if (compressed) {
    // A source's rows of this call are written before they are read in it.
    if (layer.owns_compressor) {
      compress(ctx, *weights.compressor, layer.compress_ratio, x, step.compressed_frequencies,
               *rows);
    }
    if (layer.owns_index) {
      select_rows(ctx, *weights.indexer, layer, x, in.q_latent, step.positions, rope, *rows,
                  step.selection, step.candidates);
      record_selection(ctx, step.selection, rows->num_rows);
    }
    keys.compressed = {rows->kv.data(), {rows->num_rows, ctx.config.head_dim}};
    keys.selected = step.selection.rows;
    keys.selected_begin = step.selection.row_begin;
    return attend_and_project(ctx, weights, in.q, keys, rope);
  }
  const std::span<int64_t> none(ctx.arena.allocate<int64_t>(num_tokens + 1), count + 1);
  std::fill(none.begin(), none.end(), 0);
  keys.selected_begin = none;
  return attend_and_project(ctx, weights, in.q, keys, rope);
}

}  // namespace millrace
