#include "model_config/engram_constants.h"

#include <array>
#include <bit>
#include <limits>

#include "base/check.h"

namespace millrace {
namespace {

__extension__ using uint128 = unsigned __int128;

// numpy.random.SeedSequence with a one-word seed: a pool of four hashed words, stretched to the
// generator's state.
std::array<uint64_t, 4> seed_sequence(uint32_t seed) {
  uint32_t hash = 0x43b0d7e5u;
  const auto hash_mix = [&hash](uint32_t value) {
    value ^= hash;
    hash *= 0x931e8875u;
    value *= hash;
    return value ^ (value >> 16);
  };
  std::array<uint32_t, 4> pool{};
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = hash_mix(i == 0 ? seed : 0);
  for (size_t source = 0; source < pool.size(); ++source) {
    for (size_t target = 0; target < pool.size(); ++target) {
      if (source == target) continue;
      const uint32_t mixed = 0xca01f9ddu * pool[target] - 0x4973f715u * hash_mix(pool[source]);
      pool[target] = mixed ^ (mixed >> 16);
    }
  }

  std::array<uint64_t, 4> state{};
  hash = 0x8b51f9ddu;
  for (size_t i = 0; i < 8; ++i) {
    uint32_t value = pool[i % 4] ^ hash;
    hash *= 0x58f38dedu;
    value *= hash;
    value ^= value >> 16;
    state[i / 2] |= uint64_t(value) << (32 * (i % 2));
  }
  return state;
}

// PCG64: a 128-bit linear congruential generator with XSL-RR output.
class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed) {
    const std::array<uint64_t, 4> s = seed_sequence(seed);
    increment_ = (uint128(s[2]) << 64 | s[3]) << 1 | 1;
    step();
    state_ += uint128(s[0]) << 64 | s[1];
    step();
  }

  uint64_t next() {
    step();
    return std::rotr(uint64_t(state_ >> 64) ^ uint64_t(state_), int(state_ >> 122));
  }

 private:
  void step() {
    constexpr uint128 kMultiplier = uint128(0x2360ed051fc65da4u) << 64 | 0x4385df649fccf645u;
    state_ = state_ * kMultiplier + increment_;
  }

  uint128 state_ = 0;
  uint128 increment_ = 0;
};

bool is_prime(uint64_t n) {
  if (n < 2 || (n % 2 == 0 && n != 2)) return false;
  for (uint64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> numpy_integers(uint32_t seed, int64_t bound, int64_t count) {
  MR_CHECK_OP(bound, >, int64_t{1} << 32);  // numpy draws smaller bounds from 32-bit words
  Pcg64 generator(seed);
  std::vector<int64_t> draws;
  const uint64_t range = uint64_t(bound);
  // Lemire's method: the high half of a 128-bit product, refusing the few products whose low
  // half would favour some results.
  const uint64_t threshold = (0 - range) % range;
  while (int64_t(draws.size()) < count) {
    const uint128 product = uint128(generator.next()) * range;
    if (uint64_t(product) >= threshold) draws.push_back(int64_t(product >> 64));
  }
  return draws;
}

double numpy_random(uint32_t seed) { return double(Pcg64(seed).next() >> 11) * 0x1p-53; }

std::vector<EngramTable> engram_tables(const ModelConfig& config) {
  std::vector<EngramTable> tables;
  if (config.engram_layer_ids.empty()) return tables;
  // Keeps every product id * multiplier below 2^63.
  const int64_t bound =
      std::numeric_limits<int64_t>::max() / config.engram_compressed_vocab_size / 2;
  // Each column takes the next unused prime, over all tables, so the primes in use are always
  // an unbroken run from engram_vocab_size on.
  uint64_t candidate = uint64_t(config.engram_vocab_size);
  for (const int64_t layer : config.engram_layer_ids) {
    EngramTable table;
    table.layer = layer;
    table.num_heads = config.engram_n_heads;
    for (const int64_t draw :
         numpy_integers(uint32_t(10007 * layer), bound, config.engram_max_ngram_size)) {
      table.multipliers.push_back(draw * 2 + 1);
    }
    for (int64_t c = 0; c < config.engram_num_columns(); ++c) {
      while (!is_prime(candidate)) ++candidate;
      table.primes.push_back(int64_t(candidate));
      table.offsets.push_back(table.num_rows);
      table.num_rows += int64_t(candidate);
      ++candidate;
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

void engram_rows(const EngramTable& table, int64_t compressed_pad, std::span<const int32_t> window,
                 std::span<int64_t> rows) {
  MR_CHECK_OP(rows.size(), ==, table.primes.size());
  bool dead = false;
  uint64_t hash = 0;
  size_t column = 0;
  for (size_t back = 0; back < table.multipliers.size(); ++back) {
    dead = dead || back >= window.size() || window[back] < 0;
    const uint64_t id = dead ? uint64_t(compressed_pad) : uint64_t(window[back]);
    hash ^= id * uint64_t(table.multipliers[back]);
    if (back == 0) continue;  // n-grams start at pairs
    for (int64_t head = 0; head < table.num_heads; ++head, ++column) {
      rows[column] = int64_t(hash % uint64_t(table.primes[column])) + table.offsets[column];
    }
  }
}

}  // namespace millrace
