// Index scores: how well each key fits a query. Keys are copied together first, row by row, once
// for all queries in a row that share them.
//
// Keys and queries as they are in `reference` numerics, e2m1 digits times powers of two, are
// multiplied as bytes: a block's products and their sums are whole multiples of one power of two,
// so that integers give what the contract's chain gives. Anything else is multiplied as floats.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/index_scores.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// The keys of an item, one after the other.
struct KeyRows {
  const std::byte* data;
  KeyFormat format;
  int64_t count, size, row_bytes;
  const std::byte* row(int64_t j) const { return data + j * row_bytes; }
};

FloatVector positive_part(FloatVector x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(FloatTag())), x);
}

// ---- As bytes. Lanes are keys; four columns of each make a 32-bit lane.

// Powers of two beyond these would need a look at denormals and infinities.
constexpr int kMaxExponent = 60;

constexpr int kKeyBias = 12;  // makes twice an e2m1 value unsigned

// A query's digits: four columns to a word, in the order in which the words of keys are taken
// apart: of each eight columns the even ones, then the odd ones.
struct DigitQuery {
  int32_t* digits;  // [H, D / 4]
  int32_t* bias;    // [H, blocks] what the bias of the keys adds to a block's sum, to be taken off
  float* scales;    // [H, blocks] of a unit of a product

  static int64_t num_words(int64_t heads, int64_t size) {
    return heads * (size / 4 + 2 * (size / kQuantBlock));
  }
  static DigitQuery at(int32_t* words, int64_t heads, int64_t size) {
    int32_t* bias = words + heads * size / 4;
    const int64_t blocks = heads * (size / kQuantBlock);
    return {words, bias, reinterpret_cast<float*>(bias + blocks)};
  }
};

// Twice the values of a block in units of a power of two, if they are such: at most 12 each.
bool take_digits(const float* x, int8_t* digits, int* exponent) {
  float largest = 0;
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    const float magnitude = x[i] < 0 ? -x[i] : x[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  // largest / 2^exponent is in [4, 8), or all are zero.
  *exponent = largest == 0 ? 0 : int(__builtin_bit_cast(uint32_t, largest) >> 23) - 127 - 2;
  if (*exponent < -kMaxExponent || *exponent > kMaxExponent) return false;
  const float per_unit = __builtin_bit_cast(float, uint32_t(127 + 1 - *exponent) << 23);
  bool fits = true;
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    const float digit = x[i] * per_unit;  // NaN becomes any number, and differs from it
    const bool in_range = digit >= -12 && digit <= 12;
    digits[i] = int8_t(in_range ? int(digit) : 0);
    fits &= float(digits[i]) == digit;
  }
  return fits;
}

bool take_query(const float* q, int64_t head_stride, int64_t heads, int64_t size,
                const DigitQuery& out) {
  const int64_t blocks = size / kQuantBlock;
  for (int64_t h = 0; h < heads; ++h) {
    auto* to = reinterpret_cast<int8_t*>(out.digits + h * size / 4);
    for (int64_t b = 0; b < blocks; ++b, to += kQuantBlock) {
      int8_t digits[kQuantBlock];
      int exponent;
      if (!take_digits(q + h * head_stride + b * kQuantBlock, digits, &exponent)) return false;
      int sum = 0;
      for (int64_t i = 0; i < kQuantBlock; ++i) {
        to[i / 8 * 8 + i % 2 * 4 + i % 8 / 2] = digits[i];
        sum += digits[i];
      }
      out.bias[h * blocks + b] = uint16_t(-kKeyBias * sum);
      out.scales[h * blocks + b] = __builtin_bit_cast(float, uint32_t(127 + exponent - 2) << 23);
    }
  }
  return true;
}

// Keys as digits, by vectors of kLanes keys; those beyond the last are zero.
struct DigitKeys {
  uint8_t* digits;  // [vectors][D / 4][4 kLanes] twice the value, plus kKeyBias
  float* scales;    // [vectors][blocks][kLanes]
  int64_t size;

  int64_t blocks() const { return size / kQuantBlock; }
  const uint8_t* vector_digits(int64_t v) const { return digits + v * size * kLanes; }
  const float* vector_scales(int64_t v) const { return scales + v * blocks() * kLanes; }
};

// Requires: what is behind the rows may be read up to a whole vector of them.
bool take_keys(const KeyRows& rows, const DigitKeys& out) {
  const int64_t blocks = out.blocks();
  const int64_t vectors = (rows.count + kLanes - 1) / kLanes;
  for (int64_t j = 0; j < vectors * kLanes; ++j) {
    const auto* scales = reinterpret_cast<const uint8_t*>(rows.row(j)) + rows.size / 2;
    float* to = out.scales + j / kLanes * blocks * kLanes + j % kLanes;
    for (int64_t b = 0; b < blocks; ++b) {
      const int exponent = j < rows.count ? int(scales[b]) - 127 : 0;
      if (exponent < -kMaxExponent || exponent > kMaxExponent) return false;
      to[b * kLanes] = __builtin_bit_cast(float, uint32_t(127 + exponent) << 23);
    }
  }
  alignas(16) static constexpr uint8_t kDigits[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                      12, 11, 10, 9,  8,  6,  4,  0};
  const ByteTag d;
  const ByteVector table = hn::LoadDup128(d, kDigits), nibble = hn::Set(d, 15);
  for (int64_t v = 0; v < vectors; ++v) {
    uint8_t* to = out.digits + v * rows.size * kLanes;
    for (int64_t at = 0; at < rows.size / 2; at += 16) {
      WordVector words[4];
      load_words(reinterpret_cast<const uint8_t*>(rows.row(v * kLanes)) + at,
                 size_t(rows.row_bytes), words);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i, to += 8 * kLanes) {
        const ByteVector even = hn::And(hn::BitCast(d, words[i]), nibble);
        const ByteVector odd = hn::And(hn::BitCast(d, hn::ShiftRight<4>(words[i])), nibble);
        hn::Store(hn::TableLookupBytes(table, even), d, to);
        hn::Store(hn::TableLookupBytes(table, odd), d, to + 4 * kLanes);
      }
    }
  }
  return true;
}

struct HeadWeights {
  const float* weights;
  float scale;
  int64_t count;
  bool swapped;
  int64_t index(int64_t n) const { return nth(n, count, swapped); }
};

// The chains over the heads of kVectors vectors of keys continue over heads first ... first +
// kHeads - 1. Not inlined: it uses every register.
template <int kHeads, int kVectors>
HWY_NOINLINE void add_heads(const DigitQuery& query, const DigitKeys& keys, int64_t vector,
                            const HeadWeights& heads, int64_t first, bool swapped,
                            float* scores /*[kVectors][kLanes]*/) {
  const FloatTag tag;
  const int64_t blocks = keys.blocks(), words = keys.size / 4;
  constexpr int kBlockWords = int(kQuantBlock) / 4;
  int64_t head[kHeads];
  FloatVector dots[kHeads][kVectors];
  for (int r = 0; r < kHeads; ++r) {
    head[r] = heads.index(first + r);
    for (int v = 0; v < kVectors; ++v) dots[r][v] = hn::Zero(tag);
  }
  for (int64_t n = 0; n < blocks; ++n) {
    const int64_t b = nth(n, blocks, swapped);
    ShortVector sums[kHeads][kVectors];
    HWY_UNROLL(4)
    for (int r = 0; r < kHeads; ++r) {
      const auto bias = hn::Set(IntTag(), query.bias[head[r] * blocks + b]);
      HWY_UNROLL(2)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::BitCast(ShortTag(), bias);
    }
    for (int w = 0; w < kBlockWords; ++w) {
      ByteVector key[kVectors];
      HWY_UNROLL(2)
      for (int v = 0; v < kVectors; ++v) {
        key[v] = hn::Load(ByteTag(),
                          keys.vector_digits(vector + v) + (b * kBlockWords + w) * 4 * kLanes);
      }
      HWY_UNROLL(4)
      for (int r = 0; r < kHeads; ++r) {
        const ByteVector digits = hn::BitCast(
            ByteTag(), hn::Set(IntTag(), query.digits[head[r] * words + b * kBlockWords + w]));
        HWY_UNROLL(2)
        for (int v = 0; v < kVectors; ++v) {
          add_byte_pairs(key[v], digits, sums[r][v]);
        }
      }
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kHeads; ++r) {
      const FloatVector unit = hn::Set(tag, query.scales[head[r] * blocks + b]);
      HWY_UNROLL(2)
      for (int v = 0; v < kVectors; ++v) {
        const FloatVector sum = hn::ConvertTo(tag, multiply_short_pairs(sums[r][v], 1));
        const FloatVector scale =
            hn::Load(tag, keys.vector_scales(vector + v) + b * kLanes);
        dots[r][v] = hn::Add(dots[r][v], hn::Mul(hn::Mul(sum, scale), unit));
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    FloatVector score = hn::Load(tag, scores + v * kLanes);
    for (int r = 0; r < kHeads; ++r) {
      const FloatVector weight = hn::Set(tag, heads.weights[head[r]] * heads.scale);
      score = fused_multiply_add(weight, positive_part(dots[r][v]), score);
    }
    hn::Store(score, tag, scores + v * kLanes);
  }
}

template <int kVectors>
void score_vectors(const DigitQuery& query, const DigitKeys& keys, int64_t vector,
                   const HeadWeights& heads, bool swapped, float* scores) {
  constexpr int kHeads = 4;
  int64_t first = 0;
  for (; first + kHeads <= heads.count; first += kHeads) {
    add_heads<kHeads, kVectors>(query, keys, vector, heads, first, swapped, scores);
  }
  for (; first < heads.count; ++first) {
    add_heads<1, kVectors>(query, keys, vector, heads, first, swapped, scores);
  }
}

void score_digits(const DigitQuery& query, const DigitKeys& keys, int64_t count,
                  const HeadWeights& heads, bool swapped, float* out) {
  constexpr int64_t kPair = 2 * kLanes;
  for (int64_t j = 0; j < count; j += kPair) {
    HWY_ALIGN float scores[kPair] = {};
    if (j + kLanes < count) {
      score_vectors<2>(query, keys, j / kLanes, heads, swapped, scores);
    } else {
      score_vectors<1>(query, keys, j / kLanes, heads, swapped, scores);
    }
    __builtin_memcpy(out + j, scores, size_t(count - j < kPair ? count - j : kPair) * sizeof(float));
  }
}

// ---- As floats. Lanes are heads for the dot products; then one chain over the heads per key,
// several keys side by side.

// dots[j * width + h] of kKeys keys from `keys`, for kVectors vectors of heads from `head`.
template <int kVectors, int kKeys>
HWY_NOINLINE void index_dots(const float* query, int64_t width, int64_t head, int64_t size,
                             const float* keys, int64_t key_stride, bool swapped, float* dots) {
  const FloatTag tag;
  FloatVector dot[kKeys][kVectors];
  for (auto& row : dot) {
    for (FloatVector& v : row) v = hn::Zero(tag);
  }
  for (int64_t block = 0; block < size; block += kQuantBlock) {
    FloatVector acc[kKeys][kVectors];
    for (auto& row : acc) {
      for (FloatVector& v : row) v = hn::Zero(tag);
    }
    for (int64_t n = 0; n < kQuantBlock; ++n) {
      const int64_t d = block + nth(n, kQuantBlock, swapped);
      FloatVector q[kVectors];
      const float* at = query + d * width + head;
      for (int v = 0; v < kVectors; ++v) q[v] = hn::Load(tag, at + v * kLanes);
      for (int j = 0; j < kKeys; ++j) {
        const FloatVector key = hn::Set(tag, keys[j * key_stride + d]);
        for (int v = 0; v < kVectors; ++v) acc[j][v] = fused_multiply_add(q[v], key, acc[j][v]);
      }
    }
    for (int j = 0; j < kKeys; ++j) {
      for (int v = 0; v < kVectors; ++v) dot[j][v] = hn::Add(dot[j][v], acc[j][v]);
    }
  }
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(dot[j][v], tag, dots + j * width + head + v * kLanes);
    }
  }
}

template <int kKeys>
void index_dots_all_heads(const float* query, int64_t width, int64_t size, const float* keys,
                          int64_t key_stride, bool swapped, float* dots) {
  constexpr int kVectors = 4;
  int64_t head = 0;
  for (; head + kVectors * kLanes <= width; head += kVectors * kLanes) {
    index_dots<kVectors, kKeys>(query, width, head, size, keys, key_stride, swapped, dots);
  }
  for (; head < width; head += kLanes) {
    index_dots<1, kKeys>(query, width, head, size, keys, key_stride, swapped, dots);
  }
}

// The chain over h of fma(heads.weights[h] * heads.scale, max(dots[j][h], 0), .) for the keys j of an
// access.
template <class Access>
FloatVector index_chain(const Access& access, const float* dots, int64_t width,
                        const HeadWeights& heads) {
  const FloatTag tag;
  FloatVector score = hn::Zero(tag);
  for (int64_t n = 0; n < heads.count; ++n) {
    const int64_t h = heads.index(n);
    HWY_ALIGN float column[kLanes] = {};
    for (int64_t j = 0; j < access.count; ++j) column[j] = dots[j * width + h];
    const FloatVector dot = hn::Load(tag, column);
    score = fused_multiply_add(hn::Set(tag, heads.weights[h] * heads.scale), positive_part(dot),
                               score);
  }
  return score;
}

// Keys between two chains over the heads.
constexpr int kKeysAtOnce = 3;
constexpr int64_t kTileKeys = kKeysAtOnce * kLanes;

int64_t padded_heads(int64_t heads) { return (heads + kLanes - 1) / kLanes * kLanes; }

// scratch: [size + kTileKeys][padded_heads], then the keys as floats.
void score_floats(const float* q, int64_t head_stride, const KeyRows& keys,
                  const HeadWeights& heads, bool swapped, float* scratch, float* out) {
  const int64_t width = padded_heads(heads.count), size = keys.size;
  float* query = scratch;
  float* dots = query + size * width;
  float* rows = dots + kTileKeys * width;  // [keys, size]
  transpose_heads(q, head_stride, size, heads.count, width, query);
  for (int64_t j = 0; j < keys.count; ++j) {
    unpack_row(keys.format, keys.row(j), size, rows + j * size);
  }
  for (int64_t tile = 0; tile < keys.count; tile += kTileKeys) {
    const int64_t count = tile + kTileKeys < keys.count ? kTileKeys : keys.count - tile;
    const float* tile_rows = rows + tile * size;
    int64_t j = 0;
    for (; j + kKeysAtOnce <= count; j += kKeysAtOnce) {
      index_dots_all_heads<kKeysAtOnce>(query, width, size, tile_rows + j * size, size, swapped,
                                        dots + j * width);
    }
    for (; j < count; ++j) {
      index_dots_all_heads<1>(query, width, size, tile_rows + j * size, size, swapped,
                              dots + j * width);
    }
    each_vector(0, count, [&](auto access, int64_t i) HWY_ATTR {
      access.store(index_chain(access, dots + i * width, width, heads), out + tile + i);
    });
  }
}

// ---- The operation.

void index_scores(KernelContext& ctx, TensorView<const float, 3> q, Matrix<const float> weights,
                  float weight_scale, const PagedRows& keys, std::span<const IndexKeys> wanted,
                  std::span<float* const> scores) {
  const int64_t tokens = q.shape[0], heads = q.shape[1], size = q.shape[2];
  Dims("index_scores").bind('T', tokens).bind('H', heads).bind('D', size)
      .bind('T', weights.shape[0]).bind('H', weights.shape[1])
      .bind('T', int64_t(wanted.size())).bind('T', int64_t(scores.size()));
  MR_CHECK_OP(size % kQuantBlock, ==, 0);
  int64_t most = 0;
  for (const IndexKeys& w : wanted) most = w.count > most ? w.count : most;
  // An item is a block of keys and a token.
  const int64_t block_keys = tokens == 1 ? 64 : 256;
  const int64_t items = (most + block_keys - 1) / block_keys * tokens;
  if (items == 0) return;
  const bool swapped_dots = mutated("index_scores/dots");
  const bool swapped_digits = mutated("index_scores/digits");
  const bool swapped_heads = mutated("index_scores/heads");
  const int64_t row_bytes = key_row_bytes(keys.format, size);
  const int64_t cost = (block_keys < most ? block_keys : most) * heads * size / 4;
  const int64_t grain = items * cost < kWorthSplitting ? items : 1;

  // Every token's query is everybody's, and lives with the first thread's own scratch.
  const bool has_digits = keys.format == KeyFormat::kMxfp4;
  const int64_t query_words = has_digits ? DigitQuery::num_words(heads, size) : 0;
  const int64_t shared_words = (tokens * (query_words + 1) + 15) / 16 * 16;
  const int64_t row_words = ((block_keys + kLanes) * row_bytes / 4 + 16) / 16 * 16;
  const int64_t key_words = block_keys * (size / 4 + size / kQuantBlock);
  const int64_t float_words = (size + kTileKeys) * padded_heads(heads) + block_keys * size;
  const int64_t own_words = row_words + key_words + float_words;
  int32_t* shared = ctx.scratch<int32_t>(0, shared_words + own_words);
  int32_t* fits = shared + tokens * query_words;  // [T] whether a query has digits
  const auto query_of = [&](int64_t t) HWY_ATTR {
    return DigitQuery::at(shared + t * query_words, heads, size);
  };
  if (has_digits) {
    ctx.pool().parallel_for(tokens, 8, [&](int64_t begin, int64_t end, int) HWY_ATTR {
      for (int64_t t = begin; t < end; ++t) {
        fits[t] = take_query(q.row(t, 0), q.stride[1], heads, size, query_of(t));
      }
    });
  }

  ctx.pool().parallel_for(items, grain, [&](int64_t begin, int64_t end, int thread_idx) HWY_ATTR {
    int32_t* own = thread_idx == 0 ? shared + shared_words
                                   : ctx.scratch<int32_t>(thread_idx, own_words);
    auto* copies = reinterpret_cast<std::byte*>(own);
    auto* scales = reinterpret_cast<float*>(own + row_words);
    const DigitKeys digit_keys{
        reinterpret_cast<uint8_t*>(scales + block_keys * (size / kQuantBlock)), scales, size};
    auto* floats = reinterpret_cast<float*>(own + row_words + key_words);
    // Whose keys are in `copies`, and from which on.
    const IndexKeys* copied = nullptr;
    int64_t copied_first = 0, copied_last = 0, taken_last = 0;
    bool keys_fit = false;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t t = item % tokens, first = item / tokens * block_keys;
      const IndexKeys& want = wanted[size_t(t)];
      const int64_t last = first + block_keys < want.count ? first + block_keys : want.count;
      if (first >= last) continue;
      const bool same = copied != nullptr && copied->block_table == want.block_table &&
                        copied->groups == want.groups;
      const bool mutant = mutated("ragged_index_scores") && copied != nullptr;
      if ((!same && !mutant) || first != copied_first) {
        copied_first = copied_last = taken_last = first;
      }
      copied = &want;
      for (; copied_last < last; ++copied_last) {
        __builtin_memcpy(copies + (copied_last - first) * row_bytes,
                         keys.row(want.block_table, want.row(copied_last), row_bytes),
                         size_t(row_bytes));
      }
      const KeyRows rows{copies, keys.format, last - first, size, row_bytes};
      const HeadWeights head_weights{weights.row(t), weight_scale, heads, swapped_heads};
      float* out = scores[size_t(t)] + first;
      if (has_digits && taken_last < last) {
        keys_fit = take_keys(rows, digit_keys);
        taken_last = last;
      }
      if (has_digits && fits[t] != 0 && keys_fit) {
        score_digits(query_of(t), digit_keys, rows.count, head_weights, swapped_digits, out);
      } else {
        score_floats(q.row(t, 0), q.stride[1], rows, head_weights, swapped_dots, floats, out);
      }
    }
  });
}

}  // namespace

void add_index_scores(KernelTable& table) { table.index_scores = index_scores; }

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
