#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/batch_rows.h"
#include "model/layers/layer_context.h"
#include "model/weights.h"
#include "model_config/layer_map.h"

namespace millrace {

// The compressed rows each token of a call attends to. Made by an index source layer, reused by
// the layers above it until the next one.
struct Selection {
  Matrix<int32_t> rows;       // [T, index_topk] ascending, of which the first counts[t] are meant
  std::span<int32_t> counts;  // [T]
};

// The blocks of rows that the candidate source left to the index sources above it.
struct Candidates {
  Matrix<int32_t> blocks;     // [T, candidate_topk_blocks] ascending
  std::span<int32_t> counts;  // [T]; kAllBlocks: every block of the token
};
inline constexpr int32_t kAllBlocks = -1;

// For one call, to be filled by the layers.
Selection make_selection(LayerContext& ctx, int64_t num_rows);
Candidates make_candidates(LayerContext& ctx, int64_t num_rows);

// Number of compressed rows visible to the query at `position`.
inline int64_t num_visible_rows(int64_t position, int64_t ratio) { return (position + 1) / ratio; }

// Selects rows for every token of the call: all that are visible if index_topk allows it, without
// scoring them, else the best.
//   x, q_latent   [T, hidden_size], [T, q_lora_rank]: normed attention input; wq_a's normed output
//   candidates    written by the candidate source, read by filtered layers, else untouched
void select_rows(LayerContext& ctx, const IndexerWeights& weights, const LayerInfo& layer,
                 Matrix<const float> x, Matrix<const float> q_latent, const BatchRows& rows,
                 const RopeTable& rope, const PagedRows& index_keys, Selection& selection,
                 Candidates& candidates);

// Indices of the `k` largest scores, ascending, to `selected`; their number. Ties go to the lower
// index. Negative infinity and NaN are never selected. `keys` is working memory.
int32_t select_top_k(std::span<const float> scores, int64_t k, std::span<uint64_t> keys,
                     int32_t* selected);

}  // namespace millrace
