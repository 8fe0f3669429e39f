#pragma once

// Addresses of the Engram tables: the hash of the last few compressed token ids picks
// one row per column. Constants follow from the config alone.

#include <cstdint>
#include <span>
#include <vector>

#include "model_config/model_config.h"

namespace millrace {

// One layer's table. A column is one n-gram length (from 2) and head: c = heads * (n - 2) + head.
struct EngramTable {
  int64_t layer = 0;
  int64_t num_heads = 0;
  std::vector<int64_t> multipliers;  // [engram_max_ngram_size], newest token first
  std::vector<int64_t> primes;       // [columns] rows of each column
  std::vector<int64_t> offsets;      // [columns] first row of each column
  int64_t num_rows = 0;

  int64_t max_ngram_size() const { return int64_t(multipliers.size()); }
  int64_t num_columns() const { return int64_t(primes.size()); }
};

// In the order of engram_layer_ids. Needs only the engram_ fields except engram_num_embeddings.
std::vector<EngramTable> engram_tables(const ModelConfig& config);

// Stands for a position that hashing must not see: image, padding, before the sequence.
inline constexpr int32_t kEngramDead = -1;

// Rows of one position.
//   window  compressed ids t[p], t[p-1], ...: at most max_ngram_size of them are read; a missing
//           one counts as dead. From the first dead position on, every id is `compressed_pad`.
//   rows    [columns] out
// When the position itself is dead its rows are those of padding; the caller adds nothing there.
void engram_rows(const EngramTable& table, int64_t compressed_pad, std::span<const int32_t> window,
                 std::span<int64_t> rows);

// `count` draws of numpy's default_rng(seed).integers(0, bound), for 2^32 < bound < 2^63, which
// is where the released multipliers come from.
std::vector<int64_t> numpy_integers(uint32_t seed, int64_t bound, int64_t count);

// numpy's default_rng(seed).random(), the documented check of the generator.
double numpy_random(uint32_t seed);

}  // namespace millrace
