#pragma once

#include <span>

#include "model/layers/layer_context.h"
#include "model/weights.h"
#include "model_config/engram_constants.h"
#include "sys/read_ahead.h"

namespace millrace {

// Table rows of every token of a call.
//   ngrams  [T, engram_max_ngram_size] compressed ids, newest first; kEngramDead where hashing must
//           not look
Matrix<int64_t> engram_row_ids(LayerContext& ctx, const EngramTable& table,
                               int64_t compressed_pad, Matrix<const int32_t> ngrams);

// Asks for those rows of a table too large to stay in memory.
//   tokens  those that go into the table's layer
//   dead    [T] as below
void read_engram_ahead(const Fp8Table& table, Matrix<const int64_t> row_ids,
                       std::span<const int32_t> tokens, std::span<const uint8_t> dead,
                       ReadAhead& ahead);

// Adds the memory read at each token to its residual streams, in place.
//   dead  [T] 1 at positions that get nothing
void engram(LayerContext& ctx, const EngramWeights& weights, Matrix<const int64_t> row_ids,
            std::span<const uint8_t> dead, Matrix<float> streams);

}  // namespace millrace
