#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model_config/layer_map.h"
#include "model_config/model_config.h"
#include "tensor/tensor_view.h"

namespace millrace {

// The last rows of a growing list of keys, contiguous in memory. New rows go behind the old ones;
// rows older than `keep` may be dropped, which moves the rest only once per `keep` rows.
class WindowRows {
 public:
  WindowRows(int64_t keep, int64_t width) : keep_(keep), width_(width) {}

  // Room for `count` new rows, to be filled by the caller. At least `keep` older rows stay.
  Matrix<float> append(int64_t count);
  // Passes over `count` positions whose rows nobody will read; drops what is held.
  void skip(int64_t count);
  // All rows that are still held, oldest first; the newest is that of position end_position() - 1.
  Matrix<const float> rows() const { return {data_.data(), {num_rows_, width_}}; }
  int64_t end_position() const { return end_position_; }

 private:
  int64_t keep_, width_;
  int64_t num_rows_ = 0, end_position_ = 0;
  std::vector<float> data_;
};

// What a KV source layer has compressed so far: one row and one index key per group of tokens.
struct CompressedRows {
  std::vector<float> kv;          // [num_rows, head_dim]
  std::vector<float> index_keys;  // [num_rows, index_head_dim]
  int64_t num_rows = 0;
  // The projections of a token whose group is not complete yet (ratio 2, odd length), in fp32.
  std::vector<float> open_value, open_gate;  // [head_dim] or empty
};

// Everything one token stream leaves behind for its later tokens. A function of the tokens alone:
// how they were cut into calls leaves no trace in it (docs/numerics.md, chunk boundaries).
//
// Threading: one owner. Copyable: a copy continues independently.
struct SequenceState {
  explicit SequenceState(const ModelConfig& config);

  int64_t num_computed_tokens = 0;
  std::vector<WindowRows> window;          // per layer
  std::vector<CompressedRows> compressed;  // per kv_source_layer_ids entry
  std::vector<int32_t> ngram_tail;         // compressed ids of the last tokens, newest first
  std::vector<WindowRows> draft_window;    // per draft stage, one row per token

  int64_t bytes() const;
};

}  // namespace millrace
