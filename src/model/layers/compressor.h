#pragma once

#include <span>
#include <vector>

#include "model/batch_rows.h"
#include "model/layers/layer_context.h"
#include "model/weights.h"

namespace millrace {

// The projections of tokens whose row is not complete when the call ends (ratio 2, odd length):
// they go to the sequences' slots when all layers are done.
class OpenGroups {
 public:
  OpenGroups(LayerContext& ctx, const KvStore& store, const BatchRows& rows);

  // The value [head_dim] and gate [head_dim] to keep for a segment of a source; null: none.
  float* put(const StatePlane& plane, int64_t segment_idx);
  void commit(const BatchRows& rows) const;

 private:
  struct Source {
    const StatePlane* plane;
    std::span<float*> kept;  // by segment
  };
  std::span<Source> sources_;
};

// Writes the compressed rows and index keys that the call's tokens complete. Row j of a sequence
// is made of its tokens j * ratio, ... and rotated by the first of them.
//   x  [T, hidden_size] normed attention input
void compress(LayerContext& ctx, const CompressorWeights& weights, int64_t layer_idx,
              int64_t ratio, Matrix<const float> x, const BatchRows& rows,
              std::span<const float> rope_frequencies, KvStore& store, OpenGroups& open_groups);

}  // namespace millrace
