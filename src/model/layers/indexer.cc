#include "model/layers/indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace millrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Scores that are kept at once: those of a tile of tokens.
constexpr int64_t kTileScores = int64_t{1} << 24;

struct IndexQueries {
  TensorView<const float, 3> q;  // [T, index_n_heads, index_head_dim]
  Matrix<const float> weights;   // [T, index_n_heads]
};

IndexQueries make_index_queries(LayerContext& ctx, const IndexerWeights& weights,
                                Matrix<const float> x, Matrix<const float> q_latent,
                                const RopeTable& rope) {
  const int64_t heads = ctx.config.index_n_heads, size = ctx.config.index_head_dim;
  const Matrix<float> q = linear(ctx, ctx.linear_input(q_latent), weights.wq_b);
  const TensorView<float, 3> by_head(q.data, {q.shape[0], heads, size});
  ctx.kernels.rope(ctx.kernel_context, by_head, rope.cos, rope.sin, false, ctx.rounding());
  if (ctx.numerics == Numerics::kReference) ctx.kernels.fake_quantize_mxfp4(ctx.kernel_context, q);
  return {by_head, linear(ctx, x, weights.weights_proj, ctx.rounding())};
}

// Keeps the best blocks of one token's scores; the one with the newest row is always kept.
int32_t keep_candidate_blocks(const ModelConfig& config, std::span<const float> scores,
                              std::span<float> best, std::span<uint64_t> keys, int32_t* blocks) {
  const int64_t size = config.candidate_block_size, visible = int64_t(scores.size());
  std::fill(best.begin(), best.end(), -kInfinity);
  for (int64_t j = 0; j < visible; ++j) {
    best[size_t(j / size)] = std::max(best[size_t(j / size)], scores[size_t(j)]);
  }
  if (visible > 0) best.back() = kInfinity;
  return select_top_k(best, config.candidate_topk_blocks, keys, blocks);
}

// A float's order as an unsigned integer's: larger float, larger key.
uint32_t ordered_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x + 0.0f);  // -0 counts as 0
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

// Orders by (score descending, index ascending).
uint64_t order_key(float score, size_t index) {
  return uint64_t(~ordered_bits(score)) << 32 | index;
}

// The largest, NaN aside; negative infinity if there is none.
float largest_of(std::span<const float> scores) {
  float largest = -kInfinity;
  for (float score : scores) largest = score > largest ? score : largest;
  return largest;
}

// No score below this is among the k largest: k groups of scores have one that large. Of few scores
// negative infinity.
float least_of_top_k(std::span<const float> scores, int64_t k, std::span<uint64_t> keys) {
  constexpr size_t kGroup = 16;
  const size_t num_groups = scores.size() / kGroup;
  if (k < 1 || num_groups < size_t(k)) return -kInfinity;
  const auto largest_in = [&](size_t group) {
    return largest_of(scores.subspan(group * kGroup, kGroup));
  };
  for (size_t g = 0; g < num_groups; ++g) keys[g] = order_key(largest_in(g), g);
  std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.begin() + int64_t(num_groups));
  return largest_in(size_t(uint32_t(keys[size_t(k - 1)])));
}

// What one layer does with the scores of its tokens.
struct Selector {
  LayerContext& ctx;
  const LayerInfo& layer;
  Selection& selection;
  Candidates& candidates;

  int64_t candidate_rows() const {
    return ctx.config.candidate_topk_blocks * ctx.config.candidate_block_size;
  }
  bool needs_scores(int64_t visible) const {
    return visible > ctx.config.index_topk ||
           ((layer.is_candidate_source || layer.is_candidate_filtered) &&
            visible > candidate_rows());
  }
  // The rows of token t that are scored, of the `visible` ones: a filtered layer looks at the
  // candidates alone. The last block, that of the newest row, is always one, and may lack rows.
  IndexKeys keys_of(size_t t, const int32_t* block_table, int64_t visible) const {
    const int32_t num_blocks = layer.is_candidate_filtered ? candidates.counts[t] : kAllBlocks;
    if (num_blocks == kAllBlocks) return {block_table, visible};
    const int64_t size = ctx.config.candidate_block_size;
    const int32_t* blocks = candidates.blocks.row(int64_t(t));
    const int64_t in_last = visible - blocks[num_blocks - 1] * size;
    return {block_table, (num_blocks - 1) * size + std::min(in_last, size), blocks, size};
  }
  void take_all(size_t t, int64_t visible) const {
    for (int64_t j = 0; j < visible; ++j) selection.rows.row(int64_t(t))[j] = int32_t(j);
    selection.counts[t] = int32_t(visible);
    if (layer.is_candidate_source) candidates.counts[t] = kAllBlocks;
  }
  // scores: of the rows of `keys`.
  void take_best(size_t t, const IndexKeys& keys, std::span<const float> scores,
                 int thread_idx) const {
    const size_t block_size = size_t(std::max<int64_t>(ctx.config.candidate_block_size, 1));
    const size_t num_blocks = (scores.size() + block_size - 1) / block_size;
    auto* memory =
        ctx.kernel_context.scratch<uint64_t>(thread_idx, int64_t(scores.size() + num_blocks));
    const std::span<uint64_t> all_keys(memory, scores.size());
    if (layer.is_candidate_source) {
      const bool all = keys.count <= candidate_rows();
      const std::span<float> best(reinterpret_cast<float*>(memory + scores.size()), num_blocks);
      candidates.counts[t] = all ? kAllBlocks
                                 : keep_candidate_blocks(ctx.config, scores, best, all_keys,
                                                         candidates.blocks.row(int64_t(t)));
    }
    const std::span<int32_t> rows(selection.rows.row(int64_t(t)), size_t(ctx.config.index_topk));
    selection.counts[t] = select_top_k(scores, ctx.config.index_topk, all_keys, rows.data());
    for (int32_t& row : rows.first(size_t(selection.counts[t]))) row = int32_t(keys.row(row));
  }
};

}  // namespace

Selection make_selection(LayerContext& ctx, int64_t num_rows) {
  return {ctx.matrix<int32_t>(num_rows, ctx.config.index_topk), ctx.list<int32_t>(num_rows)};
}

Candidates make_candidates(LayerContext& ctx, int64_t num_rows) {
  const bool has_filter = ctx.config.candidate_source_layer_id >= 0;
  return {ctx.matrix<int32_t>(num_rows, has_filter ? ctx.config.candidate_topk_blocks : 0),
          ctx.list<int32_t>(num_rows)};
}

int32_t select_top_k(std::span<const float> scores, int64_t k, std::span<uint64_t> keys,
                     int32_t* selected) {
  const float least = least_of_top_k(scores, k, keys);
  // The smallest k keys are the selection.
  int64_t count = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (scores[j] < least || !(scores[j] > -kInfinity)) continue;
    keys[size_t(count++)] = order_key(scores[j], j);
  }
  if (count > k) {
    std::nth_element(keys.begin(), keys.begin() + k, keys.begin() + count);
    count = k;
  }
  for (int64_t i = 0; i < count; ++i) selected[i] = int32_t(uint32_t(keys[size_t(i)]));
  std::sort(selected, selected + count);
  return int32_t(count);
}

void select_rows(LayerContext& ctx, const IndexerWeights& weights, const LayerInfo& layer,
                 Matrix<const float> x, Matrix<const float> q_latent, const BatchRows& rows,
                 const RopeTable& rope, const PagedRows& index_keys, Selection& selection,
                 Candidates& candidates) {
  const Selector selector{ctx, layer, selection, candidates};
  const size_t num_rows = size_t(rows.num_rows());
  const std::span<IndexKeys> wanted = ctx.list<IndexKeys>(rows.num_rows());
  bool any_scores = false;
  for (size_t t = 0; t < num_rows; ++t) {
    const int64_t visible = rows.kinds[t] == RowKind::kPad
                                ? 0
                                : num_visible_rows(rows.positions[t], layer.compress_ratio);
    wanted[t] = {};
    if (selector.needs_scores(visible)) {
      wanted[t] = selector.keys_of(t, rows.block_tables[t], visible);
      any_scores = true;
    } else {
      selector.take_all(t, visible);
    }
  }
  if (!any_scores) return;

  const IndexQueries queries = make_index_queries(ctx, weights, x, q_latent, rope);
  const float weight_scale =
      float(1.0 / std::sqrt(double(ctx.config.index_head_dim) * double(ctx.config.index_n_heads)));
  const std::span<float*> scores = ctx.list<float*>(rows.num_rows());
  for (size_t begin = 0, end = 0; begin < num_rows; begin = end) {
    const Arena::Scope scope(ctx.arena);
    int64_t count = 0;
    while (end < num_rows && (end == begin || count + wanted[end].count <= kTileScores)) {
      count += wanted[end++].count;
    }
    float* next = ctx.arena.allocate<float>(count);
    for (size_t t = begin; t < end; next += wanted[t++].count) scores[t] = next;
    TensorView<const float, 3> q = queries.q;
    q.data = queries.q.row(int64_t(begin), 0);
    q.shape[0] = int64_t(end - begin);
    ctx.kernels.index_scores(ctx.kernel_context, q,
                             queries.weights.rows(int64_t(begin), int64_t(end)), weight_scale,
                             index_keys, wanted.subspan(begin, end - begin),
                             scores.subspan(begin, end - begin));
    ctx.kernel_context.pool().parallel_for(
        int64_t(end - begin), 1, [&](int64_t first, int64_t last, int thread_idx) {
          for (size_t t = begin + size_t(first); t < begin + size_t(last); ++t) {
            if (wanted[t].count == 0) continue;
            selector.take_best(t, wanted[t], {scores[t], size_t(wanted[t].count)}, thread_idx);
          }
        });
  }
}

}  // namespace millrace
