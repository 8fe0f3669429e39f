// Matrix products whose accumulator is a chain of fused multiply-adds over k: fp8 and bf16
// weights, and fp4 weights in fp32 numerics. Lanes are outputs; docs/numerics.md says why.
//
// 32 outputs are computed together: as many as share an fp8 scale, and enough independent chains
// to hide the latency of the multiply-add. Weight rows are read 64 bytes (one cache line) at a
// time and transposed in registers.
//
// One row of x is bound by reading the weights: they are decoded in registers, and the next lines
// are transposed while the present ones are multiplied. Several rows are bound by multiply-adds:
// a panel of weights is decoded to floats once and used by all of them.

#include <type_traits>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/kernels.h"
#include "tensor/dims.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

constexpr int kGroup = 32;  // outputs computed together
constexpr int kLine = 64;   // bytes of each weight row at a time
constexpr int kWords = kLine / 4;
constexpr int kSubs = kGroup / kLanes;  // vectors across a group
constexpr int64_t kMaxRows = 64;        // rows of x that share a decoded panel
constexpr int64_t kTileRows = 6;        // rows of x whose accumulators fit in registers

// ---- Weight formats. Each 32-bit word of a weight row holds kPerWord columns; a line holds
// kColumns. split() and column() move the bits of column i of a word to where a float keeps them,
// which gives weight / kUnfold; what columns have in common is done once, by split().

// A half of each word as the upper half of a float.
HWY_INLINE FloatVector upper_half(WordVector words, bool of_upper) {
  return hn::BitCast(FloatTag(), of_upper ? hn::And(words, hn::Set(WordTag(), 0xffff0000u))
                                          : hn::ShiftLeft<16>(words));
}

struct Fp8Format {
  using Weights = Fp8Matrix;
  static constexpr int kPerWord = 4, kParts = 2;
  static constexpr float kUnfold = 0x1p120f;
  static constexpr int64_t kMaxLineRows = 4;
  static int64_t row_bytes(const Weights& w) { return w.k; }
  static const uint8_t* data(const Weights& w) { return w.codes; }
  static int64_t row_phase(const Weights& w) { return w.row_phase; }
  static HWY_INLINE bool row_mutated() { return mutated("matmul_fp8/row"); }
  static HWY_INLINE bool rows_mutated() { return mutated("matmul_fp8/rows"); }

  static HWY_INLINE void split(WordVector words, WordVector parts[kParts]) {
    const ShortTag ds;
    const auto mask = hn::Set(ds, int16_t(0x87f0));
    const auto bytes = hn::BitCast(ByteTag(), words);
    // The even and the odd byte of each half where the mask expects them, with copies of the sign
    // above, of which it keeps the upper one: once by a product, as shifts are scarcer.
    const auto even = multiply_byte_pairs(hn::BitCast(ByteTag(), hn::Set(ds, 16)), bytes);
    const auto odd = multiply_byte_pairs(hn::BitCast(ByteTag(), hn::Set(ds, 16 << 8)), bytes);
    parts[0] = hn::BitCast(WordTag(), hn::And(even, mask));
    parts[1] = hn::BitCast(WordTag(), hn::And(odd, mask));
  }
  static HWY_INLINE FloatVector column(const WordVector parts[kParts], int i) {
    return upper_half(parts[i % 2], i >= 2);
  }
};

struct Bf16Format {
  using Weights = Bf16Matrix;
  static constexpr int kPerWord = 2, kParts = 1;
  static constexpr float kUnfold = 1;
  static constexpr int64_t kMaxLineRows = 4;
  static int64_t row_bytes(const Weights& w) { return w.k * 2; }
  static const uint8_t* data(const Weights& w) { return reinterpret_cast<const uint8_t*>(w.data); }
  static int64_t row_phase(const Weights&) { return 0; }
  static HWY_INLINE bool row_mutated() { return mutated("matmul_bf16/row"); }
  static HWY_INLINE bool rows_mutated() { return mutated("matmul_bf16/rows"); }

  static HWY_INLINE void split(WordVector words, WordVector parts[kParts]) { parts[0] = words; }
  static HWY_INLINE FloatVector column(const WordVector parts[kParts], int i) {
    return upper_half(parts[0], i == 1);
  }
};

struct Fp4Format {
  using Weights = Fp4Matrix;
  static constexpr int kPerWord = 8, kParts = 8;
  static constexpr float kUnfold = 0x1p126f;
  static constexpr int64_t kMaxLineRows = 0;
  static int64_t row_bytes(const Weights& w) { return w.k / 2; }
  static const uint8_t* data(const Weights& w) { return w.codes; }
  static int64_t row_phase(const Weights&) { return 0; }
  static HWY_INLINE bool rows_mutated() { return mutated("matmul_fp4_f32"); }

  static HWY_INLINE void split(WordVector words, WordVector parts[kParts]) {
    for (int i = 0; i < kParts; ++i, words = hn::ShiftRight<4>(words)) parts[i] = words;
  }
  static HWY_INLINE FloatVector column(const WordVector parts[kParts], int i) {
    const WordTag d;
    const auto magnitude = hn::And(hn::ShiftLeft<22>(parts[i]), hn::Set(d, 7u << 22));
    const auto sign = hn::And(hn::ShiftLeft<28>(parts[i]), hn::Set(d, 1u << 31));
    return hn::BitCast(FloatTag(), hn::Or(magnitude, sign));
  }
};

template <class Format>
constexpr int kColumns = kWords* Format::kPerWord;
// Columns that are decoded together for several rows of x: enough to make loading and storing the
// accumulators cheap, few enough for the first-level cache.
constexpr int kPanelColumns = 128;
template <class Format>
constexpr int kPanelLines = kPanelColumns / kColumns<Format>;
template <class Format>
constexpr bool kIsFp8 = std::is_same_v<Format, Fp8Format>;

// ---- The pieces of a weight matrix.

// Outputs first .. first + 31, of which [begin, end) exist: fp8 groups follow the scales' blocks
// of 32 rows, which may begin before a slice of a matrix does.
struct Group {
  int64_t first, begin, end;
};

template <class Format>
Group group_at(const typename Format::Weights& w, int64_t index) {
  const int64_t first = index * kGroup - Format::row_phase(w);
  return {first, first < 0 ? 0 : first, first + kGroup < w.n ? first + kGroup : w.n};
}

template <class Format>
int64_t num_groups(const typename Format::Weights& w) {
  return (w.n + Format::row_phase(w) + kGroup - 1) / kGroup;
}

template <class Format>
int64_t num_lines(const typename Format::Weights& w) {
  return (Format::row_bytes(w) + kLine - 1) / kLine;
}

// One line of each row of a group.
struct Tile {
  const uint8_t* rows;
  size_t stride;
};

// At the edges of the matrix the tile is a copy filled up with zeros, so that nobody who reads
// one need know about edges.
template <class Format>
Tile tile_at(const typename Format::Weights& w, const Group& group, int64_t line,
             uint8_t* edge /*[kGroup * kLine]*/) {
  const int64_t row_bytes = Format::row_bytes(w);
  const int64_t offset = line * kLine;
  if (group.end - group.begin == kGroup && offset + kLine <= row_bytes) {
    return {Format::data(w) + group.first * row_bytes + offset, size_t(row_bytes)};
  }
  const int64_t count = row_bytes - offset < kLine ? row_bytes - offset : kLine;
  __builtin_memset(edge, 0, kGroup * kLine);
  for (int64_t n = group.begin; n < group.end; ++n) {
    __builtin_memcpy(edge + (n - group.first) * kLine, Format::data(w) + n * row_bytes + offset,
                     size_t(count));
  }
  return {edge, kLine};
}

// Where the line is that comes kAhead lines after this one in the order of use: a group's rows are
// too many streams for the hardware to follow, so each line is asked for that long before.
constexpr int64_t kAhead = 4;
template <class Format>
Tile tile_ahead(const typename Format::Weights& w, const Group& group, int64_t line,
                int64_t lines) {
  const bool in_group = line + kAhead < lines;
  const int64_t row_bytes = Format::row_bytes(w);
  const int64_t first = group.first + (in_group ? 0 : kGroup);
  const int64_t ahead = in_group ? line + kAhead : line + kAhead - lines;
  return {Format::data(w) + first * row_bytes + ahead * kLine, size_t(row_bytes)};
}

void store_outputs(const float* acc /*[kGroup]*/, const Group& group, float* out,
                   Rounding rounding) {
  const FloatTag d;
  HWY_ALIGN float result[kGroup];
  for (int i = 0; i < kGroup; i += kLanes) {
    const FloatVector v = hn::Load(d, acc + i);
    hn::Store(rounding == Rounding::kBf16 ? round_to_bf16(v) : v, d, result + i);
  }
  __builtin_memcpy(out + group.begin, result + (group.begin - group.first),
                   size_t(group.end - group.begin) * sizeof(float));
}

// ---- fp8 scales. The contract multiplies x by the scale of a block, e4m3 by that, and rounds only
// if x * scale is denormal or infinite. So where it cannot be, the scale may as well multiply the
// weights. And decode() gives e4m3 * 2^-120, so that x or the weights are also multiplied by
// 2^120; where x might overflow by that, it must be the weights.

struct Range {
  float low, high;  // of magnitudes, zeros aside: (infinity, 0) if there are only zeros
};

// high is NaN or infinite if a value is.
Range magnitudes(const float* x, int64_t count) {
  const WordTag d;
  const WordVector sign = hn::Set(d, 0x80000000u);
  WordVector low = hn::Set(d, 0x7f800000), high = hn::Zero(d);
  each_vector(0, count, [&](const auto& access, int64_t i) HWY_ATTR {
    const WordVector v = hn::AndNot(sign, hn::BitCast(d, access.load(x + i)));
    high = hn::Max(high, v);
    low = hn::IfThenElse(hn::Eq(v, hn::Zero(d)), low, hn::Min(low, v));
  });
  return {hn::GetLane(hn::BitCast(FloatTag(), hn::MinOfLanes(d, low))),
          hn::GetLane(hn::BitCast(FloatTag(), hn::MaxOfLanes(d, high)))};
}

Range both(const Range& a, const Range& b) {
  const bool b_is_higher = a.high == a.high && !(b.high <= a.high);  // NaN is the highest
  return {a.low < b.low ? a.low : b.low, b_is_higher ? b.high : a.high};
}

struct Codes {
  uint8_t low, high;
};

Codes scale_codes(const Fp8Matrix& w) {
  const int64_t count = (w.row_phase + w.n + kQuantBlock - 1) / kQuantBlock * w.scale_columns();
  const ByteTag d;
  constexpr int64_t kBytes = 4 * kLanes;
  ByteVector lows = hn::Set(d, 255), highs = hn::Zero(d);
  int64_t i = 0;
  for (; i + kBytes <= count; i += kBytes) {
    const ByteVector v = hn::LoadU(d, w.scales + i);
    lows = hn::Min(lows, v);
    highs = hn::Max(highs, v);
  }
  HWY_ALIGN uint8_t lanes[2][kBytes];
  hn::Store(lows, d, lanes[0]);
  hn::Store(highs, d, lanes[1]);
  Codes codes{255, 0};
  const auto add = [&codes](uint8_t low, uint8_t high) {
    codes.low = low < codes.low ? low : codes.low;
    codes.high = high > codes.high ? high : codes.high;
  };
  for (int64_t j = 0; j < kBytes; ++j) add(lanes[0][j], lanes[1][j]);
  for (; i < count; ++i) add(w.scales[i], w.scales[i]);
  return codes;
}

// Whether x * scale * 2^120 is a number for all of them.
bool x_can_take_fold(const Range& x, const Codes& scales) {
  return x.high * ue8m0_to_float(scales.high) < 0x1p7f;  // false for NaN
}

// Whether scales may multiply the weights: x * scale, weight * scale and scale * 2^120 are normal
// numbers.
bool weights_can_take_scale(const Range& x, const Codes& scales) {
  return x.low * ue8m0_to_float(scales.low) >= 0x1p-126f &&
         x.high * ue8m0_to_float(scales.high) < 0x1p127f && scales.low >= 127 - 110 &&
         scales.high <= 127 + 7;
}

// One line of `height` rows of x, [kColumns][height], times its scales [num_blocks], times `fold`;
// zeros beyond.
void scale_line(const float* x, int64_t height, const uint8_t* scales, int64_t num_blocks,
                float fold, float* out) {
  const FloatTag d;
  const int64_t size = kQuantBlock * height;
  for (int block = 0; block < kColumns<Fp8Format> / kQuantBlock; ++block) {
    const FloatVector scale = hn::Set(d, block < num_blocks ? ue8m0_to_float(scales[block]) : 0.0f);
    for (int64_t i = block * size; i < (block + 1) * size; i += kLanes) {
      hn::Store(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::Set(d, fold)), d, out + i);
    }
  }
}

// ---- Rows of x.

// The rows of x are multiplied in tiles of nearly equal height.
struct RowTiles {
  int64_t rows;
  int64_t count() const { return (rows + kTileRows - 1) / kTileRows; }
  int64_t begin(int64_t tile) const { return rows * tile / count(); }
};

// Puts the rows of a tile where multiply_groups wants them: [panels][tiles][kPanelColumns][height],
// so that what is multiplied together lies together. Beyond K it is -0, and what is read as weights
// there +0: their product -0 leaves every sum as it is, even -0.
void pack_tile(Matrix<const float> x, const RowTiles& tiles, int64_t tile, float* packed) {
  const int64_t first = tiles.begin(tile), height = tiles.begin(tile + 1) - first;
  for (int64_t begin = 0; begin < x.shape[1]; begin += kPanelColumns) {
    const int64_t count =
        x.shape[1] - begin < kPanelColumns ? x.shape[1] - begin : kPanelColumns;
    float* columns = packed + begin * tiles.rows + first * kPanelColumns;
    for (int64_t r = 0; r < height; ++r) {
      const float* row = x.row(first + r) + begin;
      for (int64_t i = 0; i < count; ++i) columns[i * height + r] = row[i];
      for (int64_t i = count; i < kPanelColumns; ++i) columns[i * height + r] = -0.0f;
    }
  }
}

// ---- Few rows of x: weights are decoded in registers.

// Transposes 16 bytes of each row of a tile that belongs to vector `sub` into words[j][output].
HWY_INLINE void stage(const Tile& tile, int sub, int quarter,
                      uint32_t* words /*[kWords][kGroup]*/) {
  WordVector v[4];
  load_words(tile.rows + size_t(sub * kLanes) * tile.stride + quarter * 16, tile.stride, v);
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    hn::Store(v[i], WordTag(), words + (quarter * 4 + i) * kGroup + sub * kLanes);
  }
}

// What is done for later lines while one is multiplied: finely interleaved, both find their place
// in the processor's window.
struct LaterLines {
  Tile next;                           // to be transposed into `words`
  uint32_t* words /*[kWords][kGroup]*/;
  Tile ahead;                          // to be fetched

  // Step `step` of kSteps.
  template <int kSteps>
  HWY_INLINE void step(int step) const {
    constexpr int kStages = share(4 * kSubs, kSteps), kFetches = share(kGroup, kSteps);
    constexpr int kStageEvery = kSteps * kStages / (4 * kSubs);
    constexpr int kFetchEvery = kSteps * kFetches / kGroup;
    if (step % kStageEvery == 0) {
      for (int i = 0; i < kStages; ++i) {
        const int part = step / kStageEvery * kStages + i;
        stage(next, part / 4, part % 4, words);
      }
    }
    if (step % kFetchEvery == 0) {
      const uint8_t* rows = ahead.rows + size_t(step / kFetchEvery * kFetches) * ahead.stride;
      for (size_t i = 0; i < kFetches; ++i) __builtin_prefetch(rows + i * ahead.stride);
    }
  }

 private:
  static constexpr int share(int count, int steps) { return count > steps ? count / steps : 1; }
};

// acc[r][output] continues over all columns of a line, for kRows rows of x.
template <class Format, int kRows>
HWY_INLINE void multiply_line(const uint32_t* words /*[kWords][kGroup]*/,
                              const float* x /*[kColumns][kRows]*/, float* acc /*[kRows][kGroup]*/,
                              const LaterLines& later) {
  // As many accumulators as registers hold beside the weights; how many of their vectors use a
  // column of x while it is in one.
  constexpr int kMost = kRows <= 2 ? 4 : 2;
  constexpr int kVectors = kSubs < kMost ? kSubs : kMost;
  constexpr int kShared = kRows <= 2 ? 1 : kVectors;
  const FloatTag d;
  int step = 0;
  for (int first = 0; first < kGroup; first += kVectors * kLanes) {
    FloatVector sums[kRows][kVectors];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::Load(d, acc + r * kGroup + first + v * kLanes);
      }
    }
    HWY_UNROLL(4)
    for (int n = 0; n < kWords; ++n) {
      later.step<kSubs / kVectors * kWords>(step++);
      const int64_t word = nth(n, kWords, Format::row_mutated());
      const float* columns = x + word * Format::kPerWord * kRows;
      HWY_UNROLL(4)
      for (int begin = 0; begin < kVectors; begin += kShared) {
        WordVector parts[kShared][Format::kParts];
        HWY_UNROLL(2)
        for (int v = 0; v < kShared; ++v) {
          const int output = first + (begin + v) * kLanes;
          Format::split(hn::Load(WordTag(), words + word * kGroup + output), parts[v]);
        }
        HWY_UNROLL(8)
        for (int i = 0; i < Format::kPerWord; ++i) {
          FloatVector w[kShared];
          HWY_UNROLL(2)
          for (int v = 0; v < kShared; ++v) w[v] = Format::column(parts[v], i);
          HWY_UNROLL(8)
          for (int r = 0; r < kRows; ++r) {
            const FloatVector column = hn::Set(d, columns[i * kRows + r]);
            HWY_UNROLL(2)
            for (int v = 0; v < kShared; ++v) {
              sums[r][begin + v] = fused_multiply_add(w[v], column, sums[r][begin + v]);
            }
          }
        }
      }
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(sums[r][v], d, acc + r * kGroup + first + v * kLanes);
      }
    }
  }
}

// Each line of weights is transposed while the one before it is multiplied. packed: one tile of
// kRows rows.
template <class Format, int kRows>
void multiply_lines(const typename Format::Weights& w, const float* packed, Matrix<float> out,
                    Rounding rounding, int64_t group_begin, int64_t group_end) {
  constexpr int kLineColumns = kColumns<Format>;
  HWY_ALIGN uint32_t words[2][kWords * kGroup];
  HWY_ALIGN float scaled[kRows * kLineColumns];
  HWY_ALIGN float acc[kRows * kGroup];
  HWY_ALIGN uint8_t edge[kGroup * kLine];
  const int64_t lines = num_lines<Format>(w);

  Group next_group = group_at<Format>(w, group_begin);
  Tile next = tile_at<Format>(w, next_group, 0, edge);
  for (int i = 0; i < 4 * kSubs; ++i) stage(next, i / 4, i % 4, words[0]);
  int present = 0;
  for (int64_t g = group_begin; g < group_end; ++g) {
    const Group group = next_group;
    __builtin_memset(acc, 0, sizeof(acc));
    for (int64_t line = 0; line < lines; ++line) {
      // After the last line of all comes itself again: staged, never used.
      const bool last = line + 1 == lines;
      if (last && g + 1 < group_end) next_group = group_at<Format>(w, g + 1);
      next = tile_at<Format>(w, next_group, last ? (g + 1 < group_end ? 0 : line) : line + 1,
                                    edge);
      const Tile ahead = tile_ahead<Format>(w, group, line, lines);
      const float* columns = packed + line * kLineColumns * kRows;
      if constexpr (kIsFp8<Format>) {
        constexpr int kBlocks = kLineColumns / int(kQuantBlock);
        scale_line(columns, kRows, w.scale_row(group.begin) + line * kBlocks,
                   w.scale_columns() - line * kBlocks, Format::kUnfold, scaled);
        columns = scaled;
      }
      multiply_line<Format, kRows>(words[present], columns, acc,
                                   {next, words[1 - present], ahead});
      present = 1 - present;
    }
    for (int64_t t = 0; t < kRows; ++t) store_outputs(acc + t * kGroup, group, out.row(t), rounding);
  }
}

template <class Format>
void multiply_lines(const typename Format::Weights& w, const float* packed, Matrix<float> out,
                    Rounding rounding, int64_t group_begin, int64_t group_end) {
  switch (out.shape[0]) {
    case 1:
      return multiply_lines<Format, 1>(w, packed, out, rounding, group_begin, group_end);
    case 2:
      return multiply_lines<Format, 2>(w, packed, out, rounding, group_begin, group_end);
    case 3:
      return multiply_lines<Format, 3>(w, packed, out, rounding, group_begin, group_end);
    case 4:
      return multiply_lines<Format, 4>(w, packed, out, rounding, group_begin, group_end);
  }
}

// ---- Many rows of x: a panel of decoded weights is used by all of them.

// All columns of a tile as floats, times `factors` [kColumns / kQuantBlock].
template <class Format>
void decode_line(const Tile& tile, const float* factors,
                 float* panel /*[kSubs][kPanelColumns][kLanes]*/) {
  const FloatTag d;
  for (int sub = 0; sub < kSubs; ++sub) {
    const uint8_t* rows = tile.rows + size_t(sub * kLanes) * tile.stride;
    for (int j = 0; j < kWords; j += 4) {
      WordVector words[4];
      load_words(rows + j * 4, tile.stride, words);
      const FloatVector factor = hn::Set(d, factors[j * Format::kPerWord / kQuantBlock]);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        WordVector parts[Format::kParts];
        Format::split(words[i], parts);
        HWY_UNROLL(8)
        for (int c = 0; c < Format::kPerWord; ++c) {
          const FloatVector w = Format::column(parts, c);
          const int column = (j + i) * Format::kPerWord + c;
          // A multiply-add of nothing: denormals take it at full speed where Mul is slow.
          const FloatVector value =
              Format::kUnfold == 1 ? w : hn::MulAdd(w, factor, hn::Set(d, -0.0f));
          hn::Store(value, d, panel + (sub * kPanelColumns + column) * kLanes);
        }
      }
    }
  }
}

// Multiplies each weight of a decoded fp4 line by the scale of its row and block.
void scale_line(const Fp4Matrix& w, const Group& group, int64_t line, float* panel) {
  const FloatTag d;
  constexpr int64_t kBlocks = kColumns<Fp4Format> / kQuantBlock;
  const int64_t row_blocks = w.k / kQuantBlock;
  for (int64_t b = 0; b < kBlocks && line * kBlocks + b < row_blocks; ++b) {
    HWY_ALIGN float scales[kGroup] = {};
    for (int64_t n = group.begin; n < group.end; ++n) {
      scales[n - group.first] = ue8m0_to_float(w.scales[n * row_blocks + line * kBlocks + b]);
    }
    for (int sub = 0; sub < kSubs; ++sub) {
      float* columns = panel + (sub * kPanelColumns + b * kQuantBlock) * kLanes;
      const FloatVector scale = hn::Load(d, scales + sub * kLanes);
      for (int i = 0; i < kQuantBlock * kLanes; i += kLanes) {
        hn::Store(hn::Mul(hn::Load(d, columns + i), scale), d, columns + i);
      }
    }
  }
}

// acc[r][output] continues over all columns of a panel, for kRows rows of x.
template <int kRows, int kVectors>
void multiply_panel(const float* panel, int num_columns, const float* x /*[kPanelColumns][kRows]*/,
                    float* acc /*[kRows][kGroup]*/) {
  const FloatTag d;
  for (int first = 0; first < kGroup; first += kVectors * kLanes) {
    FloatVector sums[kRows][kVectors];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::Load(d, acc + r * kGroup + first + v * kLanes);
      }
    }
    for (int k = 0; k < num_columns; ++k) {
      FloatVector w[kVectors];
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        w[v] = hn::Load(d, panel + (first / kLanes + v) * kPanelColumns * kLanes + k * kLanes);
      }
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const FloatVector column = hn::Set(d, x[k * kRows + r]);
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v)
          sums[r][v] = fused_multiply_add(w[v], column, sums[r][v]);
      }
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(sums[r][v], d, acc + r * kGroup + first + v * kLanes);
      }
    }
  }
}

void multiply_panel(int64_t rows, const float* panel, int num_columns, const float* x, float* acc) {
  constexpr int kNarrow = kSubs < 2 ? kSubs : 2;  // eight to twelve accumulators at 8 lanes
  constexpr int kWide = kSubs < 4 ? kSubs : 4;
  switch (rows) {
    case 1:
      return multiply_panel<1, kWide>(panel, num_columns, x, acc);
    case 2:
      return multiply_panel<2, kWide>(panel, num_columns, x, acc);
    case 3:
      return multiply_panel<3, kWide>(panel, num_columns, x, acc);
    case 4:
      return multiply_panel<4, kNarrow>(panel, num_columns, x, acc);
    case 5:
      return multiply_panel<5, kNarrow>(panel, num_columns, x, acc);
    case 6:
      return multiply_panel<6, kNarrow>(panel, num_columns, x, acc);
  }
}

// Floats of scratch memory for multiply_groups.
int64_t groups_scratch(int64_t rows) {
  return kPanelColumns * kGroup + rows * (kPanelColumns + kGroup);
}

// scale_weights: whether fp8 scales go to the weights or to x.
template <class Format>
void multiply_groups(const typename Format::Weights& w, const float* packed, bool scale_weights,
                     Matrix<float> out, Rounding rounding, int64_t group_begin, int64_t group_end,
                     float* scratch) {
  constexpr int kLineColumns = kColumns<Format>;
  constexpr int kBlocks = kLineColumns / int(kQuantBlock);
  const int64_t rows = out.shape[0];
  const RowTiles tiles{rows};
  const int64_t lines = num_lines<Format>(w);
  const int64_t panels = (lines + kPanelLines<Format> - 1) / kPanelLines<Format>;
  float* panel = scratch;                          // [kSubs][kPanelColumns][kLanes]
  float* scaled = panel + kPanelColumns * kGroup;  // [tiles][kPanelColumns][height]
  float* acc = scaled + rows * kPanelColumns;      // [rows][kGroup]
  HWY_ALIGN uint8_t edge[kGroup * kLine];
  for (int64_t g = group_begin; g < group_end; ++g) {
    const Group group = group_at<Format>(w, g);
    __builtin_memset(acc, 0, size_t(rows * kGroup) * sizeof(float));
    for (int64_t step = 0; step < panels; ++step) {
      const int64_t p = nth(step, panels, Format::rows_mutated());
      const float* x = packed + p * rows * kPanelColumns;
      int columns = 0;
      for (int64_t line = p * kPanelLines<Format>;
           line < lines && line < (p + 1) * kPanelLines<Format>; ++line) {
        float factors[kBlocks];
        for (float& factor : factors) factor = Format::kUnfold;
        if constexpr (kIsFp8<Format>) {
          const uint8_t* scales = w.scale_row(group.begin) + line * kBlocks;
          const int64_t num_scales = w.scale_columns() - line * kBlocks;
          for (int i = 0; scale_weights && i < kBlocks && i < num_scales; ++i) {
            factors[i] *= ue8m0_to_float(scales[i]);
          }
          for (int64_t tile = 0; !scale_weights && tile < tiles.count(); ++tile) {
            const int64_t height = tiles.begin(tile + 1) - tiles.begin(tile);
            const int64_t place = tiles.begin(tile) * kPanelColumns + columns * height;
            scale_line(x + place, height, scales, num_scales, 1, scaled + place);
          }
        }
        const Tile ahead = tile_ahead<Format>(w, group, line, lines);
        for (size_t i = 0; i < kGroup; ++i) __builtin_prefetch(ahead.rows + i * ahead.stride);
        float* decoded = panel + columns * kLanes;
        decode_line<Format>(tile_at<Format>(w, group, line, edge), factors, decoded);
        if constexpr (std::is_same_v<Format, Fp4Format>) scale_line(w, group, line, decoded);
        columns += kLineColumns;
      }
      if (kIsFp8<Format> && !scale_weights) x = scaled;
      for (int64_t tile = 0; tile < tiles.count(); ++tile) {
        const int64_t begin = tiles.begin(tile);
        multiply_panel(tiles.begin(tile + 1) - begin, panel, columns, x + begin * kPanelColumns,
                       acc + begin * kGroup);
      }
    }
    for (int64_t t = 0; t < rows; ++t) {
      store_outputs(acc + t * kGroup, group, out.row(t), rounding);
    }
  }
}

// At most kMaxRows rows: their packed x stays in a near cache.
template <class Format>
void multiply_rows(KernelContext& ctx, Matrix<const float> x, const typename Format::Weights& w,
                   Matrix<float> out, Rounding rounding) {
  const int64_t rows = x.shape[0];
  const int64_t packed_size = (w.k + kPanelColumns - 1) / kPanelColumns * kPanelColumns * rows;
  // The packed rows are everybody's, and live with the first thread's own scratch.
  float* packed = ctx.scratch<float>(0, packed_size + groups_scratch(rows));
  Range ranges[kMaxRows];
  const auto pack = [&](const RowTiles& tiles) {
    ctx.pool().parallel_for(tiles.count(), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t tile = begin; tile < end; ++tile) {
        pack_tile(x, tiles, tile, packed);
        if constexpr (!kIsFp8<Format>) continue;
        for (int64_t t = tiles.begin(tile); t < tiles.begin(tile + 1); ++t) {
          ranges[t] = magnitudes(x.row(t), w.k);
        }
      }
    });
  };
  pack({rows});  // a tile that takes all rows if they are few
  bool scale_weights = false;
  bool can_fold = true;
  if constexpr (kIsFp8<Format>) {
    Range range = ranges[0];
    for (int64_t t = 1; t < rows; ++t) range = both(range, ranges[t]);
    const Codes codes = scale_codes(w);
    scale_weights = weights_can_take_scale(range, codes);
    can_fold = x_can_take_fold(range, codes);
  }
  if constexpr (Format::kMaxLineRows > 0) {
    static_assert(Format::kMaxLineRows <= kTileRows);
    if (rows <= Format::kMaxLineRows && can_fold) {
      ctx.pool().parallel_for(num_groups<Format>(w), 1, [&](int64_t begin, int64_t end, int) {
        multiply_lines<Format>(w, packed, out, rounding, begin, end);
      });
      return;
    }
  }
  ctx.pool().parallel_for(
      num_groups<Format>(w), 1, [&](int64_t begin, int64_t end, int thread_idx) {
        float* scratch = thread_idx == 0 ? packed + packed_size
                                         : ctx.scratch<float>(thread_idx, groups_scratch(rows));
        multiply_groups<Format>(w, packed, scale_weights, out, rounding, begin, end, scratch);
      });
}

// ---- The operations.

template <class Format>
void multiply(KernelContext& ctx, Matrix<const float> x, const typename Format::Weights& w,
              Matrix<float> out, Rounding rounding) {
  const int64_t rows = x.shape[0];
  for (int64_t t = 0; t < rows; t += kMaxRows) {
    const int64_t last = t + kMaxRows < rows ? t + kMaxRows : rows;
    multiply_rows<Format>(ctx, x.rows(t, last), w, out.rows(t, last), rounding);
  }
}

void matmul_fp8(KernelContext& ctx, Matrix<const float> x, const Fp8Matrix& w, Matrix<float> out,
                Rounding rounding) {
  Dims("matmul_fp8")
      .bind('T', x.shape[0])
      .bind('K', x.shape[1])
      .bind('N', w.n)
      .bind('K', w.k)
      .bind('T', out.shape[0])
      .bind('N', out.shape[1]);
  multiply<Fp8Format>(ctx, x, w, out, rounding);
}

// Only fp32 numerics, which are there for comparison, come here: row by row will do.
void matmul_fp4_f32(KernelContext& ctx, Matrix<const float> x, const RowGroups& groups,
                    Matrix<float> out, Rounding rounding) {
  for (const RowGroups::Group& group : groups.groups) {
    Dims("matmul_fp4_f32")
        .bind('K', x.shape[1])
        .bind('K', group.w.k)
        .bind('N', group.w.n)
        .bind('N', out.shape[1]);
    for (int64_t r = group.begin; r < group.end; ++r) {
      const bool mutant = mutated("ragged_matmul_fp4_f32");
      const int64_t in = groups.x_rows[size_t(mutant ? group.begin : r)];
      const int64_t to = groups.out_rows[size_t(r)];
      multiply<Fp4Format>(ctx, x.rows(in, in + 1), group.w, out.rows(to, to + 1), rounding);
    }
  }
}

void matmul_bf16(KernelContext& ctx, Matrix<const float> x, const Bf16Matrix& w, Matrix<float> out,
                 Rounding rounding) {
  Dims("matmul_bf16")
      .bind('T', x.shape[0])
      .bind('K', x.shape[1])
      .bind('N', w.n)
      .bind('K', w.k)
      .bind('T', out.shape[0])
      .bind('N', out.shape[1]);
  multiply<Bf16Format>(ctx, x, w, out, rounding);
}

}  // namespace

void add_products(KernelTable& table) {
  table.matmul_fp8 = matmul_fp8;
  table.matmul_fp4_f32 = matmul_fp4_f32;
  table.matmul_bf16 = matmul_bf16;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
