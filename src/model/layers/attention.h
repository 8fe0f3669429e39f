#pragma once

#include <span>

#include "model/layers/indexer.h"
#include "model/layers/layer_context.h"
#include "model/sequence_state.h"
#include "model/weights.h"
#include "model_config/layer_map.h"

namespace millrace {

// Queries and this layer's own keys for the rows of a call (spec 3.6).
struct AttentionInputs {
  Matrix<float> q_latent;   // [T, q_lora_rank] wq_a's normed output, which the indexer reads too
  TensorView<float, 3> q;   // [T, H, head_dim] rotated
  Matrix<float> kv;         // [T, head_dim] rotated and quantised: one vector is key and value
};

AttentionInputs attention_inputs(LayerContext& ctx, const AttentionWeights& weights,
                                 Matrix<const float> x, const RopeTable& rope);

// Only the keys: normed, rotated, quantised. `x` is already linear_input(...).
Matrix<float> window_keys(LayerContext& ctx, const AttentionWeights& weights,
                          Matrix<const float> x, const RopeTable& rope);

// Attends, rotates back and projects: [T, hidden_size].
Matrix<float> attend_and_project(LayerContext& ctx, const AttentionWeights& weights,
                                 TensorView<const float, 3> q, const AttentionKeys& keys,
                                 const RopeTable& rope);

// The rows of one call and what its layers share.
struct AttentionStep {
  std::span<const int64_t> positions;  // [T], consecutive
  RopeTable window_rope;               // for layers without compressed rows
  RopeTable compressed_rope;           // for layers with them
  std::span<const float> compressed_frequencies;
  Selection selection;                 // of the latest index source
  Candidates candidates;               // of the candidate source
};

// A backbone layer's attention. Appends to the layer's window and, in a KV source, to `rows`.
//   x     [T, hidden_size] normed input
//   rows  the compressed rows the layer reads; null for a layer without
Matrix<float> attention(LayerContext& ctx, const AttentionWeights& weights, const LayerInfo& layer,
                        Matrix<const float> x, AttentionStep& step, WindowRows& window,
                        CompressedRows* rows);

}  // namespace millrace
