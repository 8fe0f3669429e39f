#pragma once

#include <span>

#include "model/layers/layer_context.h"
#include "model/sequence_state.h"
#include "model/weights.h"

namespace millrace {

// Appends the compressed rows and index keys that the call's tokens complete (spec 3.7).
//   x          [T, hidden_size]  normed attention input of positions first_position, ...
//   positions  of row j is j * ratio: rows are rotated by their group's first token
void compress(LayerContext& ctx, const CompressorWeights& weights, int64_t ratio,
              Matrix<const float> x, std::span<const float> rope_frequencies, CompressedRows& rows);

}  // namespace millrace
