#pragma once

// The rows of one forward call as the layers see them: [T], segment after segment. From layer to
// layer there may be fewer: rows leave when nothing depends on them any more.

#include <algorithm>
#include <span>

#include "model/batch.h"
#include "model/layers/layer_context.h"
#include "model/model.h"

namespace millrace {

struct SegmentRows {
  const BatchSegment* segment;
  int64_t begin, end;  // of the rows
  int64_t call_end;    // end among all rows of the call
  std::byte* state;    // the sequence's slot; null for pads
  // By layer, and behind the last: the first token that goes into it. Null: all do.
  const int64_t* first_tokens;

  bool goes_into(int64_t layer, int64_t position) const {
    return first_tokens == nullptr || position >= first_tokens[layer];
  }
  // Of the tokens whose rows the blocks do not have.
  int64_t first_new() const {
    return std::max(segment->first_position, segment->num_cached_tokens);
  }
  int64_t num_new() const { return std::max<int64_t>(0, segment->end_position() - first_new()); }
};

struct BatchRows {
  std::span<SegmentRows> segments;
  std::span<int64_t> positions;
  std::span<RowKind> kinds;
  std::span<uint8_t> without_memory;  // 1: the Engram layers leave the row alone
  std::span<int32_t> token_ids;
  std::span<int32_t> call_rows;       // its place among all rows of the call
  // The compressed ids that a row's n-grams see: [T, engram_max_ngram_size], newest first,
  // kEngramDead where there is none.
  Matrix<int32_t> ngrams;
  std::span<WindowKeys> window;             // of a backbone layer; fresh keys by call_rows
  std::span<const int32_t*> block_tables;   // of the row's sequence

  int64_t num_rows() const { return int64_t(positions.size()); }
  // Whether rows leave in front of this layer.
  bool narrows_before(int64_t layer) const;
  // Those that stay, ascending.
  std::span<const int32_t> rows_into(LayerContext& ctx, int64_t layer) const;
  void keep(std::span<const int32_t> rows);
};

// Moves the rows that stay to the front.
template <class T>
void keep_rows(std::span<T>& list, std::span<const int32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) list[i] = list[size_t(rows[i])];
  list = list.first(rows.size());
}
template <class T>
void keep_rows(Matrix<T>& matrix, std::span<const int32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != int32_t(i)) {
      std::copy_n(matrix.row(rows[i]), matrix.shape[1], matrix.row(int64_t(i)));
    }
  }
  matrix.shape[0] = int64_t(rows.size());
}

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

// Packs the keys of a layer, x[i] for row rows[i] of the call.
void pack_fresh(LayerContext& ctx, FreshKeys& fresh, int64_t layer, std::span<const int32_t> rows,
                Matrix<const float> x);

// Writes the keys of the rows that went into the layer into the ring of `plane`; of a segment only
// as many as the ring holds.
void commit_ring(std::span<const SegmentRows> segments, const StatePlane& plane, int64_t layer,
                 FreshKeys& fresh);

}  // namespace millrace
