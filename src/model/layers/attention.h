#pragma once

#include <span>

#include "model/batch_rows.h"
#include "model/layers/compressor.h"
#include "model/layers/indexer.h"
#include "model/layers/layer_context.h"
#include "model/weights.h"
#include "model_config/layer_map.h"

namespace millrace {

// Queries and this layer's own keys for the rows of a call.
struct AttentionInputs {
  Matrix<float> q_latent;   // [T, q_lora_rank] wq_a's normed output, which the indexer reads too
  TensorView<float, 3> q;   // [T, H, head_dim] rotated
  Matrix<float> kv;         // [T, head_dim] rotated, to be packed: one vector is key and value
};

AttentionInputs attention_inputs(LayerContext& ctx, const AttentionWeights& weights,
                                 Matrix<const float> x, const RopeTable& rope);

// Only the keys: normed and rotated. `x` is already linear_input(...).
Matrix<float> window_keys(LayerContext& ctx, const AttentionWeights& weights,
                          Matrix<const float> x, const RopeTable& rope);

// Attends, rotates back and projects: [T, hidden_size].
Matrix<float> attend_and_project(LayerContext& ctx, const AttentionWeights& weights,
                                 TensorView<const float, 3> q, const AttentionKeys& keys,
                                 const RopeTable& rope);

// What the layers of one call share.
struct AttentionStep {
  const BatchRows& rows;
  KvStore& store;
  FreshKeys fresh;
  RopeTable window_rope;      // for layers without compressed rows
  RopeTable compressed_rope;  // for layers with them
  std::span<const float> compressed_frequencies;
  OpenGroups open_groups;
  Selection selection;        // of the latest index source
  Candidates candidates;      // of the candidate source
};

// A backbone layer's attention. Leaves the layer's keys in step.fresh and, in a KV source, writes
// the rows that the call's tokens complete.
//   x  [T, hidden_size] normed input
Matrix<float> attention(LayerContext& ctx, const AttentionWeights& weights, const LayerInfo& layer,
                        int64_t layer_idx, Matrix<const float> x, AttentionStep& step);

}  // namespace millrace
