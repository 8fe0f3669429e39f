#include "model/layers/indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace millrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Scores of a tile of tokens are kept at once: [tile, rows].
constexpr int64_t kTileTokens = 64;

struct Queries {
  TensorView<const float, 3> q;  // [T, index_n_heads, index_head_dim]
  Matrix<const float> weights;   // [T, index_n_heads]
};

Queries make_queries(LayerContext& ctx, const IndexerWeights& weights, Matrix<const float> x,
                     Matrix<const float> q_latent, const RopeTable& rope) {
  const int64_t heads = ctx.config.index_n_heads, size = ctx.config.index_head_dim;
  const Matrix<float> q = linear(ctx, ctx.linear_input(q_latent), weights.wq_b);
  const TensorView<float, 3> by_head(q.data, {q.shape[0], heads, size});
  ctx.kernels.rope(ctx.kernel_context, by_head, rope.cos, rope.sin, false, ctx.rounding());
  if (ctx.numerics == Numerics::kReference) ctx.kernels.fake_quantize_mxfp4(ctx.kernel_context, q);
  const Matrix<float> w = linear(ctx, x, weights.weights_proj, ctx.rounding());
  // The projection is rounded, its scale is not rounded again (spec 3.8).
  const float scale = float(1.0 / std::sqrt(double(size) * double(heads)));
  for (int64_t i = 0; i < w.size(); ++i) w.data[i] *= scale;
  return {by_head, w};
}

// Keeps the best blocks of one token's scores; the one with the newest row is always kept.
void keep_candidate_blocks(const ModelConfig& config, std::span<const float> scores,
                           Candidates& candidates) {
  const int64_t size = config.candidate_block_size, visible = int64_t(scores.size());
  std::vector<float> best(size_t((visible + size - 1) / size), -kInfinity);
  for (int64_t j = 0; j < visible; ++j) {
    best[size_t(j / size)] = std::max(best[size_t(j / size)], scores[size_t(j)]);
  }
  if (visible > 0) best.back() = kInfinity;
  select_top_k(best, config.candidate_topk_blocks, candidates.blocks);
}

void mask_outside(std::span<const int32_t> blocks, int64_t block_size, std::span<float> scores) {
  int64_t end_of_last = 0;
  const int64_t visible = int64_t(scores.size());
  const auto mask = [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) scores[size_t(j)] = -kInfinity;
  };
  for (int32_t block : blocks) {
    mask(end_of_last, block * block_size);
    end_of_last = std::min((block + 1) * block_size, visible);
  }
  mask(end_of_last, visible);
}

// A float's order as an unsigned integer's: larger float, larger key.
uint32_t ordered_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x + 0.0f);  // -0 counts as 0
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

}  // namespace

void select_top_k(std::span<const float> scores, int64_t k, std::vector<int32_t>& selected) {
  // One key orders by (score descending, index ascending): the smallest k keys are the selection.
  std::vector<uint64_t> keys;
  keys.reserve(scores.size());
  for (size_t j = 0; j < scores.size(); ++j) {
    if (scores[j] > -kInfinity) keys.push_back(uint64_t(~ordered_bits(scores[j])) << 32 | j);
  }
  if (int64_t(keys.size()) > k) {
    std::nth_element(keys.begin(), keys.begin() + k, keys.end());
    keys.resize(size_t(k));
  }
  const size_t first = selected.size();
  for (uint64_t key : keys) selected.push_back(int32_t(uint32_t(key)));
  std::sort(selected.begin() + int64_t(first), selected.end());
}

void select_rows(LayerContext& ctx, const IndexerWeights& weights, const LayerInfo& layer,
                 Matrix<const float> x, Matrix<const float> q_latent,
                 std::span<const int64_t> positions, const RopeTable& rope,
                 const CompressedRows& rows, Selection& selection, Candidates& candidates) {
  const ModelConfig& config = ctx.config;
  const Queries queries = make_queries(ctx, weights, x, q_latent, rope);
  const int64_t num_tokens = int64_t(positions.size());
  const Matrix<const float> keys(rows.index_keys.data(), {rows.num_rows, config.index_head_dim});
  selection.rows.clear();
  selection.row_begin.assign(1, 0);
  if (layer.is_candidate_source) {
    candidates.blocks.clear();
    candidates.block_begin.assign(1, 0);
  }
  std::vector<int64_t> num_visible;
  for (int64_t tile = 0; tile < num_tokens; tile += kTileTokens) {
    const Arena::Scope scope(ctx.arena);
    const int64_t end = std::min(tile + kTileTokens, num_tokens);
    num_visible.clear();
    for (int64_t t = tile; t < end; ++t) {
      num_visible.push_back(num_visible_rows(positions[size_t(t)], layer.compress_ratio));
    }
    const Matrix<float> scores = ctx.matrix(end - tile, num_visible.back());
    TensorView<const float, 3> tile_queries = queries.q;
    tile_queries.data = queries.q.row(tile, 0);
    tile_queries.shape[0] = end - tile;
    ctx.kernels.index_scores(ctx.kernel_context, tile_queries, queries.weights.rows(tile, end),
                             keys, num_visible, scores);
    for (int64_t t = tile; t < end; ++t) {
      const std::span<float> visible(scores.row(t - tile), size_t(num_visible[size_t(t - tile)]));
      if (layer.is_candidate_source) {
        keep_candidate_blocks(config, visible, candidates);
        candidates.block_begin.push_back(int64_t(candidates.blocks.size()));
      }
      if (layer.is_candidate_filtered) {
        const int64_t begin = candidates.block_begin[size_t(t)];
        const int64_t count = candidates.block_begin[size_t(t) + 1] - begin;
        mask_outside(std::span(candidates.blocks).subspan(size_t(begin), size_t(count)),
                     config.candidate_block_size, visible);
      }
      select_top_k(visible, config.index_topk, selection.rows);
      selection.row_begin.push_back(int64_t(selection.rows.size()));
    }
  }
}

}  // namespace millrace
