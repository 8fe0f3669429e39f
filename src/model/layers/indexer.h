#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/layer_context.h"
#include "model/sequence_state.h"
#include "model/weights.h"
#include "model_config/layer_map.h"

namespace millrace {

// The compressed rows each token of a call attends to. Made by an index source layer, reused by
// the layers above it until the next one.
struct Selection {
  std::vector<int32_t> rows;       // ascending within a token
  std::vector<int64_t> row_begin;  // [T + 1]
};

// The blocks of rows that the candidate source left to the index sources above it (spec 3.8).
struct Candidates {
  std::vector<int32_t> blocks;       // ascending within a token
  std::vector<int64_t> block_begin;  // [T + 1]
};

// Number of compressed rows visible to the query at `position`.
inline int64_t num_visible_rows(int64_t position, int64_t ratio) { return (position + 1) / ratio; }

// Selects rows for every token of the call.
//   x, q_latent   [T, hidden_size], [T, q_lora_rank]: normed attention input; wq_a's normed output
//   candidates    written by the candidate source, read by filtered layers, else untouched
void select_rows(LayerContext& ctx, const IndexerWeights& weights, const LayerInfo& layer,
                 Matrix<const float> x, Matrix<const float> q_latent,
                 std::span<const int64_t> positions, const RopeTable& rope,
                 const CompressedRows& rows, Selection& selection, Candidates& candidates);

// Indices of the `k` largest scores, ascending; ties go to the lower index. Negative infinity and
// NaN are never selected. Appends to `selected`.
void select_top_k(std::span<const float> scores, int64_t k, std::vector<int32_t>& selected);

}  // namespace millrace
