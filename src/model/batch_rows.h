#pragma once

// The rows of one forward call as the layers see them: [T], segment after segment.

#include <span>

#include "model/batch.h"
#include "model/layers/layer_context.h"
#include "model/model.h"

namespace millrace {

struct SegmentRows {
  const BatchSegment* segment;
  int64_t begin, end;  // rows of the call
  std::byte* state;    // the sequence's slot; null for pads
};

struct BatchRows {
  std::span<const SegmentRows> segments;
  std::span<const int64_t> positions;
  std::span<const RowKind> kinds;
  std::span<const uint8_t> without_memory;  // 1: the Engram layers leave the row alone
  std::span<const int32_t> token_ids;
  // The compressed ids that a row's n-grams see: [T, engram_max_ngram_size], newest first,
  // kEngramDead where there is none.
  Matrix<const int32_t> ngrams;
  std::span<const WindowKeys> window;            // of a backbone layer
  std::span<const int32_t* const> block_tables;  // of the row's sequence

  int64_t num_rows() const { return int64_t(positions.size()); }
};

// `store` is only read here: where the keys lie.
BatchRows make_batch_rows(LayerContext& ctx, const Model& model, KvStore& store,
                          std::span<const BatchSegment> segments);

// The new keys of every ring of one step, which the rings themselves take over when all layers are
// done: until then each sequence is as it was before the call.
class FreshKeys {
 public:
  FreshKeys(LayerContext& ctx, const KvStore& store, int64_t num_layers, int64_t num_rows);

  KeyFormat format() const { return format_; }
  // Rows of a layer, one for each row of the call.
  std::byte* layer(int64_t l) { return data_ + l * num_rows_ * row_bytes_; }
  std::byte* row(int64_t l, int64_t r) { return layer(l) + r * row_bytes_; }
  int64_t row_bytes() const { return row_bytes_; }

 private:
  KeyFormat format_;
  int64_t num_rows_, row_bytes_;
  std::byte* data_;
};

// Packs the keys of rows [first, first + x.rows) of a layer.
void pack_fresh(LayerContext& ctx, FreshKeys& fresh, int64_t layer, int64_t first,
                Matrix<const float> x);

// Writes the rows' keys into the ring of `plane`; of a segment only as many as the ring holds.
void commit_ring(const BatchRows& rows, const StatePlane& plane, int64_t layer, FreshKeys& fresh);

}  // namespace millrace
