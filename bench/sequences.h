#pragma once

// Sequences of random tokens that are already some way into their context, to measure steps with.
//
// Their state is not computed: rows, keys and rings are random codes of the formats they are stored
// in, which takes seconds where a prompt of that length would take hours. What operations cost does
// not depend on the values, but for the selection of rows, which sees the scores of random keys.
// State is bounded: where all histories together would be larger, sequences share some. Sequence i
// has history i mod (number of histories), so that neighbours share one only where there is one for
// all; what a sequence adds is its own.

#include <cstdint>
#include <memory>
#include <vector>

#include "kvstore/kv_store.h"
#include "model/batch.h"
#include "model_config/model_config.h"

namespace millrace {

class Sequences {
 public:
  // `count` sequences of `depth` tokens, with room for `max_new_rows` more of each.
  static Result<Sequences> create(const ModelConfig& config, KvFormat format, int64_t count,
                                  int64_t depth, int64_t max_new_rows, int64_t max_history_bytes);

  KvStore& store() { return *store_; }
  int64_t num_histories() const { return num_histories_; }

  // The next `rows` tokens of every sequence. Valid until the next call.
  std::vector<BatchSegment> grow(int64_t rows);

 private:
  explicit Sequences(int64_t vocab_size) : vocab_size_(vocab_size) {}

  int64_t vocab_size_, num_histories_ = 0;
  std::unique_ptr<KvStore> store_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<BlockId>> tables_;
  uint64_t state_ = 1;  // of the randomness
};

}  // namespace millrace
