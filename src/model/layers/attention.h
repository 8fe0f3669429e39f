#pragma once

#include <span>

#include "model/batch_rows.h"
#include "model/layers/compressor.h"
#include "model/layers/indexer.h"
#include "model/layers/layer_context.h"
#include "model/weights.h"
#include "model_config/layer_map.h"

namespace millrace {

// What a layer asks of the keys, for the rows of a call.
struct Queries {
  Matrix<float> latent;     // [T, q_lora_rank] wq_a's normed output, which the indexer reads too
  TensorView<float, 3> q;   // [T, H, head_dim] rotated
};

// `in` is linear_input(...) of the normed input, also below.
Queries make_queries(LayerContext& ctx, const AttentionWeights& weights, Matrix<const float> in,
                     const RopeTable& rope);

// The layer's own keys of its input, normed and rotated, to be packed: [T, head_dim]. One vector is
// key and value.
Matrix<float> window_keys(LayerContext& ctx, const AttentionWeights& weights,
                          Matrix<const float> in, const RopeTable& rope);

// Attends, rotates back and projects: [T, hidden_size].
Matrix<float> attend_and_project(LayerContext& ctx, const AttentionWeights& weights,
                                 TensorView<const float, 3> q, const AttentionKeys& keys,
                                 const RopeTable& rope);

// What the layers of one call share.
struct AttentionStep {
  BatchRows& rows;
  KvStore& store;
  FreshKeys fresh;
  RopeTable window_rope;      // for layers without compressed rows
  RopeTable compressed_rope;  // for layers with them
  std::span<const float> compressed_frequencies;
  OpenGroups open_groups;
  Selection selection;        // of the latest index source
  Candidates candidates;      // of the candidate source

  const RopeTable& rope(const LayerInfo& layer) const {
    return layer.reads_compressed_rows() ? compressed_rope : window_rope;
  }
  // Of what it has for each row, and of `rows`.
  void keep(std::span<const int32_t> kept);
};

// What a layer leaves of the rows that enter it: its keys in step.fresh and, in a KV source, the
// compressed rows and index keys that they complete.
//   x, in  [T, hidden_size] normed input, linear_input(x)
void write_keys(LayerContext& ctx, const AttentionWeights& weights, const LayerInfo& layer,
                int64_t layer_idx, Matrix<const float> x, Matrix<const float> in,
                AttentionStep& step);

// A backbone layer's attention, after its write_keys(): [T, hidden_size].
Matrix<float> attention(LayerContext& ctx, const AttentionWeights& weights, const LayerInfo& layer,
                        int64_t layer_idx, Matrix<const float> x, Matrix<const float> in,
                        AttentionStep& step);

}  // namespace millrace
