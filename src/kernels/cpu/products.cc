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
// kColumns. decode() moves the bits to where a float keeps them, which
// gives weight / kUnfold.

struct Fp8Format {
  using Weights = Fp8Matrix;
  static constexpr int kPerWord = 4;
  static constexpr float kUnfold = 0x1p120f;
  static constexpr bool kHasSingleRow = true;
  static int64_t row_bytes(const Weights& w) { return w.k; }
  static const uint8_t* data(const Weights& w) { return w.codes; }
  static int64_t row_phase(const Weights& w) { return w.row_phase; }
  static HWY_INLINE bool row_mutated() { return mutated("matmul_fp8/row"); }
  static HWY_INLINE bool rows_mutated() { return mutated("matmul_fp8/rows"); }

  static HWY_INLINE void decode(WordVector words, FloatVector out[kPerWord]) {
    const FloatTag df;
    const WordTag dw;
    const ShortTag ds;
    const auto mask = hn::Set(ds, int16_t(0x87f0));
    const auto upper = hn::Set(dw, 0xffff0000u);
    const auto bytes = hn::BitCast(ByteTag(), words);
    // 16 times the even and the odd byte of each half, that is, shifted with copies of the sign,
    // of which the mask keeps the upper one. (Shifts proper are scarcer than products.)
    const auto even =
        hn::And(multiply_byte_pairs(hn::BitCast(ByteTag(), hn::Set(ds, 16)), bytes), mask);
    const auto odd =
        hn::And(multiply_byte_pairs(hn::BitCast(ByteTag(), hn::Set(ds, 16 << 8)), bytes), mask);
    out[0] = hn::BitCast(df, hn::ShiftLeft<16>(hn::BitCast(dw, even)));
    out[1] = hn::BitCast(df, hn::ShiftLeft<16>(hn::BitCast(dw, odd)));
    out[2] = hn::BitCast(df, hn::And(hn::BitCast(dw, even), upper));
    out[3] = hn::BitCast(df, hn::And(hn::BitCast(dw, odd), upper));
  }
};

struct Bf16Format {
  using Weights = Bf16Matrix;
  static constexpr int kPerWord = 2;
  static constexpr float kUnfold = 1;
  static constexpr bool kHasSingleRow = true;
  static int64_t row_bytes(const Weights& w) { return w.k * 2; }
  static const uint8_t* data(const Weights& w) { return reinterpret_cast<const uint8_t*>(w.data); }
  static int64_t row_phase(const Weights&) { return 0; }
  static HWY_INLINE bool row_mutated() { return mutated("matmul_bf16/row"); }
  static HWY_INLINE bool rows_mutated() { return mutated("matmul_bf16/rows"); }

  static HWY_INLINE void decode(WordVector words, FloatVector out[kPerWord]) {
    const FloatTag df;
    out[0] = hn::BitCast(df, hn::ShiftLeft<16>(words));
    out[1] = hn::BitCast(df, hn::And(words, hn::Set(WordTag(), 0xffff0000u)));
  }
};

struct Fp4Format {
  using Weights = Fp4Matrix;
  static constexpr int kPerWord = 8;
  static constexpr float kUnfold = 0x1p126f;
  static constexpr bool kHasSingleRow = false;
  static int64_t row_bytes(const Weights& w) { return w.k / 2; }
  static const uint8_t* data(const Weights& w) { return w.codes; }
  static int64_t row_phase(const Weights&) { return 0; }
  static HWY_INLINE bool rows_mutated() { return mutated("matmul_fp4_f32"); }

  static HWY_INLINE void decode(WordVector words, FloatVector out[kPerWord]) {
    const WordTag dw;
    HWY_UNROLL(8)
    for (int i = 0; i < kPerWord; ++i) {
      const auto magnitude = hn::And(hn::ShiftLeft<22>(words), hn::Set(dw, 7u << 22));
      const auto sign = hn::And(hn::ShiftLeft<28>(words), hn::Set(dw, 1u << 31));
      out[i] = hn::BitCast(FloatTag(), hn::Or(magnitude, sign));
      words = hn::ShiftRight<4>(words);
    }
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

// Fetches part `part` of `parts` of the line that comes kAhead lines after this one in the order
// of use: a group's rows are too many streams for the hardware to follow.
constexpr int64_t kAhead = 4;
template <class Format>
HWY_INLINE void prefetch_ahead(const typename Format::Weights& w, const Group& group, int64_t line,
                               int64_t lines, int part, int parts) {
  const bool in_group = line + kAhead < lines;
  const int64_t row_bytes = Format::row_bytes(w);
  const int64_t first = group.first + (in_group ? 0 : kGroup) + part * kGroup / parts;
  const int64_t ahead = in_group ? line + kAhead : line + kAhead - lines;
  const uint8_t* rows = Format::data(w) + first * row_bytes + ahead * kLine;
  for (int i = 0; i < kGroup / parts; ++i) __builtin_prefetch(rows + i * row_bytes);
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

// One line of x, [kColumns], times its scales [num_blocks], times `fold`; zeros beyond.
void scale_line(const float* x, const uint8_t* scales, int64_t num_blocks, float fold, float* out) {
  const FloatTag d;
  for (int block = 0; block < kColumns<Fp8Format> / kQuantBlock; ++block) {
    const FloatVector scale = hn::Set(d, block < num_blocks ? ue8m0_to_float(scales[block]) : 0.0f);
    for (int i = block * int(kQuantBlock); i < (block + 1) * kQuantBlock; i += kLanes) {
      hn::Store(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::Set(d, fold)), d, out + i);
    }
  }
}

// ---- One row of x.

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

// Continues every chain of the group over the columns of one word.
template <class Format>
HWY_INLINE void multiply_word(const uint32_t* words /*[kGroup]*/, const float* x,
                              FloatVector acc[kSubs]) {
  HWY_UNROLL(8)
  for (int sub = 0; sub < kSubs; ++sub) {
    FloatVector w[Format::kPerWord];
    Format::decode(hn::Load(WordTag(), words + sub * kLanes), w);
    HWY_UNROLL(8)
    for (int i = 0; i < Format::kPerWord; ++i) {
      acc[sub] = fused_multiply_add(w[i], hn::Set(FloatTag(), x[i]), acc[sub]);
    }
  }
}

// Requires: K is a whole number of lines.
template <class Format>
void multiply_row(const typename Format::Weights& w, const float* x, float* out, Rounding rounding,
                  int64_t group_begin, int64_t group_end) {
  HWY_ALIGN uint32_t words[2][kWords * kGroup];
  HWY_ALIGN float scaled[kColumns<Format>];
  HWY_ALIGN uint8_t edge[kGroup * kLine];
  HWY_ALIGN float result[kGroup];
  const int64_t lines = num_lines<Format>(w);

  Group next_group = group_at<Format>(w, group_begin);
  Tile next = tile_at<Format>(w, next_group, 0, edge);
  for (int i = 0; i < 4 * kSubs; ++i) stage(next, i / 4, i % 4, words[0]);
  int present = 0;
  for (int64_t g = group_begin; g < group_end; ++g) {
    const Group group = next_group;
    FloatVector acc[kSubs];
    HWY_UNROLL(8)
    for (int sub = 0; sub < kSubs; ++sub) acc[sub] = hn::Zero(FloatTag());
    for (int64_t line = 0; line < lines; ++line) {
      // After the last line of all comes itself again: staged, never used.
      const bool last = line + 1 == lines;
      if (last && g + 1 < group_end) next_group = group_at<Format>(w, g + 1);
      next = tile_at<Format>(w, next_group, last ? (g + 1 < group_end ? 0 : line) : line + 1, edge);
      const float* columns = x + line * kColumns<Format>;
      if constexpr (kIsFp8<Format>) {
        constexpr int kBlocks = kColumns<Format> / kQuantBlock;
        scale_line(columns, w.scale_row(group.begin) + line * kBlocks,
                   w.scale_columns() - line * kBlocks, Format::kUnfold, scaled);
        columns = scaled;
      }
      // Finely interleaved, so that both find their place in the processor's window.
      for (int step = 0; step < kWords; ++step) {
        for (int i = step * kSubs / 4; i < (step + 1) * kSubs / 4; ++i) {
          stage(next, i / 4, i % 4, words[1 - present]);
        }
        prefetch_ahead<Format>(w, group, line, lines, step, kWords);
        const int64_t word = nth(step, kWords, Format::row_mutated());
        multiply_word<Format>(words[present] + word * kGroup, columns + word * Format::kPerWord,
                              acc);
      }
      present = 1 - present;
    }
    HWY_UNROLL(8)
    for (int sub = 0; sub < kSubs; ++sub) hn::Store(acc[sub], FloatTag(), result + sub * kLanes);
    store_outputs(result, group, out, rounding);
  }
}

// ---- Several rows of x.

// All columns of a tile as floats, times `factors` [kColumns / kQuantBlock].
template <class Format>
void decode_line(const Tile& tile, const float* factors, float* panel /*[kColumns][kGroup]*/) {
  const FloatTag d;
  for (int sub = 0; sub < kSubs; ++sub) {
    const uint8_t* rows = tile.rows + size_t(sub * kLanes) * tile.stride;
    for (int j = 0; j < kWords; j += 4) {
      WordVector words[4];
      load_words(rows + j * 4, tile.stride, words);
      const FloatVector factor = hn::Set(d, factors[j * Format::kPerWord / kQuantBlock]);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        FloatVector w[Format::kPerWord];
        Format::decode(words[i], w);
        HWY_UNROLL(8)
        for (int c = 0; c < Format::kPerWord; ++c) {
          const int column = (j + i) * Format::kPerWord + c;
          // A multiply-add of nothing: denormals take it at full speed where Mul is slow.
          const FloatVector value =
              Format::kUnfold == 1 ? w[c] : hn::MulAdd(w[c], factor, hn::Set(d, -0.0f));
          hn::Store(value, d, panel + column * kGroup + sub * kLanes);
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
    float* columns = panel + b * kQuantBlock * kGroup;
    for (int i = 0; i < kQuantBlock * kGroup; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, columns + i), hn::Load(d, scales + i % kGroup)), d,
                columns + i);
    }
  }
}

// acc[r][output] continues over all columns of a panel, for kRows rows of x.
template <int kRows, int kVectors>
void multiply_panel(const float* panel, int num_columns, const float* x /*[kRows][kPanelColumns]*/,
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
      for (int v = 0; v < kVectors; ++v)
        w[v] = hn::Load(d, panel + k * kGroup + first + v * kLanes);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const FloatVector column = hn::Set(d, x[r * kPanelColumns + k]);
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

// Puts a row of x where multiply_groups wants it: [panels][rows][kPanelColumns]. Beyond K it is
// -0, and what is read as weights there +0: their product -0 leaves every sum as it is, even -0.
void pack_row(const float* x, int64_t k, int64_t row, int64_t rows, float* packed) {
  for (int64_t begin = 0; begin < k; begin += kPanelColumns) {
    const int64_t count = k - begin < kPanelColumns ? k - begin : kPanelColumns;
    float* columns = packed + begin * rows + row * kPanelColumns;
    __builtin_memcpy(columns, x + begin, size_t(count) * sizeof(float));
    for (int64_t i = count; i < kPanelColumns; ++i) columns[i] = -0.0f;
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
  const int64_t lines = num_lines<Format>(w);
  const int64_t panels = (lines + kPanelLines<Format> - 1) / kPanelLines<Format>;
  float* panel = scratch;                          // [kPanelColumns][kGroup]
  float* scaled = panel + kPanelColumns * kGroup;  // [rows][kPanelColumns]
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
          for (int64_t t = 0; !scale_weights && t < rows; ++t) {
            const int64_t place = t * kPanelColumns + columns;
            scale_line(x + place, scales, num_scales, 1, scaled + place);
          }
        }
        prefetch_ahead<Format>(w, group, line, lines, 0, 1);
        float* decoded = panel + columns * kGroup;
        decode_line<Format>(tile_at<Format>(w, group, line, edge), factors, decoded);
        if constexpr (std::is_same_v<Format, Fp4Format>) scale_line(w, group, line, decoded);
        columns += kLineColumns;
      }
      if (kIsFp8<Format> && !scale_weights) x = scaled;
      const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
      for (int64_t tile = 0; tile < tiles; ++tile) {  // of nearly equal height
        const int64_t begin = rows * tile / tiles, end = rows * (tile + 1) / tiles;
        multiply_panel(end - begin, panel, columns, x + begin * kPanelColumns,
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
  Range ranges[kMaxRows] = {};
  ctx.pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      pack_row(x.row(t), w.k, t, rows, packed);
      if constexpr (kIsFp8<Format>) ranges[t] = magnitudes(x.row(t), w.k);
    }
  });
  bool scale_weights = kIsFp8<Format>;
  if constexpr (kIsFp8<Format>) {
    const Codes codes = scale_codes(w);
    for (int64_t t = 0; t < rows; ++t) {
      scale_weights = scale_weights && weights_can_take_scale(ranges[t], codes);
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
  if constexpr (Format::kHasSingleRow) {
    bool single = rows == 1 && w.k % kColumns<Format> == 0;
    if constexpr (kIsFp8<Format>)
      single = single && x_can_take_fold(magnitudes(x.data, w.k), scale_codes(w));
    if (single) {
      ctx.pool().parallel_for(num_groups<Format>(w), 1, [&](int64_t begin, int64_t end, int) {
        multiply_row<Format>(w, x.data, out.data, rounding, begin, end);
      });
      return;
    }
  }
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
