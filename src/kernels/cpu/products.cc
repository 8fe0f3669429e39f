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

constexpr int kGroup = 32;      // outputs computed together
constexpr int kLine = 64;       // bytes of each weight row at a time
constexpr int kWords = kLine / 4;
constexpr int kSubs = kGroup / kLanes;  // vectors across a group
constexpr int64_t kMaxRows = 64;        // rows of x that share a decoded panel
constexpr int64_t kTileRows = 6;        // rows of x whose accumulators fit in registers
constexpr int kPrefetchBytes = 256;     // how far ahead of its use a weight row is fetched

// ---- Weight formats. Each 32-bit word of a weight row holds kPerWord columns; a line holds
// kColumns. decode() gives weight * 2^-kFold: the bits moved to where a float keeps them.

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
    const auto shorts = hn::BitCast(ds, words);
    // In each half: the arithmetic shift copies the sign, the mask keeps the upper copy.
    const auto even = hn::And(hn::ShiftRight<4>(hn::ShiftLeft<8>(shorts)), mask);
    const auto odd = hn::And(hn::ShiftRight<4>(shorts), mask);
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

// ---- fp8 scales. A scale covers the 32 outputs of a group, so it multiplies x. decode() gives
// e4m3 * 2^-120 and x is also multiplied by 2^120: each product is the exact number it should be,
// as long as no x overflows. Where one might, weights are unfolded and x is not.

bool folds(float x_max, const Fp8Matrix& w) {
  const int64_t count = (w.row_phase + w.n + kQuantBlock - 1) / kQuantBlock * w.scale_columns();
  uint8_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = w.scales[i] > largest ? w.scales[i] : largest;
  return x_max * ue8m0_to_float(largest) < 0x1p8f;  // false for NaN
}

// One line of x, [kColumns], times its scales [num_blocks], times `fold`.
void scale_line(const float* x, const uint8_t* scales, int64_t num_blocks, float fold, float* out) {
  const FloatTag d;
  for (int block = 0; block < kColumns<Fp8Format> / kQuantBlock; ++block) {
    const FloatVector scale = hn::Set(d, block < num_blocks ? ue8m0_to_float(scales[block]) : 0.0f);
    for (int i = block * int(kQuantBlock); i < (block + 1) * kQuantBlock; i += kLanes) {
      hn::Store(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::Set(d, fold)), d, out + i);
    }
  }
}

// Largest |x|; NaN if there is one.
float max_magnitude(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float result;
  __builtin_memcpy(&result, &largest, 4);
  return result;
}

// ---- One row of x.

// Transposes the rows of a tile that belong to one vector into words[j][output].
HWY_INLINE void stage(const Tile& tile, int sub, uint32_t* words /*[kWords][kGroup]*/) {
  const uint8_t* rows = tile.rows + size_t(sub * kLanes) * tile.stride;
  HWY_UNROLL(4)
  for (int j = 0; j < kWords; j += 4) {
    WordVector v[4];
    load_words(rows + j * 4, tile.stride, v);
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      hn::Store(v[i], WordTag(), words + (j + i) * kGroup + sub * kLanes);
    }
  }
}

template <class Format, int kCount>
HWY_INLINE void multiply_words(const uint32_t* words /*[kCount][kGroup]*/, const float* x,
                               FloatVector acc[kSubs]) {
  HWY_UNROLL(8)
  for (int step = 0; step < kCount; ++step) {
    const int64_t j = nth(step, kCount, Format::row_mutated());
    HWY_UNROLL(8)
    for (int sub = 0; sub < kSubs; ++sub) {
      FloatVector w[Format::kPerWord];
      Format::decode(hn::Load(WordTag(), words + j * kGroup + sub * kLanes), w);
      HWY_UNROLL(8)
      for (int i = 0; i < Format::kPerWord; ++i) {
        const FloatVector column = hn::Set(FloatTag(), x[j * Format::kPerWord + i]);
        acc[sub] = fused_multiply_add(w[i], column, acc[sub]);
      }
    }
  }
}

// x is padded with zeros to whole lines.
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
  for (int sub = 0; sub < kSubs; ++sub) stage(next, sub, words[0]);
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
      if constexpr (Format::kPerWord == Fp8Format::kPerWord) {
        constexpr int kBlocks = kColumns<Format> / kQuantBlock;
        scale_line(columns, w.scale_row(group.begin) + line * kBlocks,
                   w.scale_columns() - line * kBlocks, Format::kUnfold, scaled);
        columns = scaled;
      }
      for (int sub = 0; sub < kSubs; ++sub) {
        stage(next, sub, words[1 - present]);
        HWY_UNROLL(16)
        for (int i = 0; i < kLanes; ++i) {
          __builtin_prefetch(next.rows + size_t(sub * kLanes + i) * next.stride + kPrefetchBytes, 0, 2);
        }
        constexpr int kCount = kWords / kSubs;
        multiply_words<Format, kCount>(words[present] + sub * kCount * kGroup,
                                       columns + sub * kCount * Format::kPerWord, acc);
      }
      present = 1 - present;
    }
    HWY_UNROLL(8)
    for (int sub = 0; sub < kSubs; ++sub) hn::Store(acc[sub], FloatTag(), result + sub * kLanes);
    store_outputs(result, group, out, rounding);
  }
}

// ---- Several rows of x.

// All columns of a tile as floats.
template <class Format>
void decode_panel(const Tile& tile, float* panel /*[kColumns][kGroup]*/) {
  for (int sub = 0; sub < kSubs; ++sub) {
    const uint8_t* rows = tile.rows + size_t(sub * kLanes) * tile.stride;
    for (int j = 0; j < kWords; j += 4) {
      WordVector words[4];
      load_words(rows + j * 4, tile.stride, words);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        FloatVector w[Format::kPerWord];
        Format::decode(words[i], w);
        HWY_UNROLL(8)
        for (int c = 0; c < Format::kPerWord; ++c) {
          const int column = (j + i) * Format::kPerWord + c;
          hn::Store(w[c], FloatTag(), panel + column * kGroup + sub * kLanes);
        }
      }
    }
  }
}

template <class Format>
void unfold_panel(float* panel) {
  const FloatTag d;
  for (int i = 0; i < kColumns<Format> * kGroup; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, panel + i), hn::Set(d, Format::kUnfold)), d, panel + i);
  }
}

// Multiplies each weight of an fp4 panel by the scale of its row and block.
void scale_panel(const Fp4Matrix& w, const Group& group, int64_t line, float* panel) {
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
      hn::Store(hn::Mul(hn::Load(d, columns + i), hn::Load(d, scales + i % kGroup)), d, columns + i);
    }
  }
}

// acc[r][output] continues over all columns of a panel, for kRows rows of x.
template <int kRows, int kVectors>
void multiply_panel(const float* panel, int num_columns, const float* x /*[kRows][num_columns]*/,
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
      for (int v = 0; v < kVectors; ++v) w[v] = hn::Load(d, panel + k * kGroup + first + v * kLanes);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const FloatVector column = hn::Set(d, x[r * num_columns + k]);
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) sums[r][v] = fused_multiply_add(w[v], column, sums[r][v]);
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
    case 1: return multiply_panel<1, kWide>(panel, num_columns, x, acc);
    case 2: return multiply_panel<2, kWide>(panel, num_columns, x, acc);
    case 3: return multiply_panel<3, kWide>(panel, num_columns, x, acc);
    case 4: return multiply_panel<4, kNarrow>(panel, num_columns, x, acc);
    case 5: return multiply_panel<5, kNarrow>(panel, num_columns, x, acc);
    case 6: return multiply_panel<6, kNarrow>(panel, num_columns, x, acc);
  }
}

// Scratch of multiply_rows, in floats.
template <class Format>
struct RowsScratch {
  float* x;       // [lines][rows][kColumns], zeros beyond K
  float* scaled;  // [rows][kColumns]
  float* panel;   // [kColumns][kGroup]
  float* acc;     // [rows][kGroup]

  RowsScratch(KernelContext& ctx, int thread_idx, int64_t lines, int64_t rows) {
    const int64_t line = rows * kColumns<Format>;
    x = ctx.scratch<float>(thread_idx, (lines + 1) * line + kColumns<Format> * kGroup + rows * kGroup);
    scaled = x + lines * line;
    panel = scaled + line;
    acc = panel + kColumns<Format> * kGroup;
  }
};

template <class Format>
void multiply_rows(const typename Format::Weights& w, Matrix<const float> x, Matrix<float> out,
                   Rounding rounding, int64_t group_begin, int64_t group_end, KernelContext& ctx,
                   int thread_idx) {
  constexpr int kLineColumns = kColumns<Format>;
  const int64_t rows = x.shape[0];
  const int64_t lines = num_lines<Format>(w);
  const RowsScratch<Format> scratch(ctx, thread_idx, lines, rows);
  HWY_ALIGN uint8_t edge[kGroup * kLine];

  __builtin_memset(scratch.x + (lines - 1) * rows * kLineColumns, 0,
                   size_t(rows) * kLineColumns * sizeof(float));
  float x_max = 0;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t line = 0; line < lines; ++line) {
      const int64_t k = line * kLineColumns;
      const int64_t count = w.k - k < kLineColumns ? w.k - k : kLineColumns;
      __builtin_memcpy(scratch.x + (line * rows + t) * kLineColumns, x.row(t) + k,
                       size_t(count) * sizeof(float));
    }
  }
  bool fold = false;
  if constexpr (Format::kPerWord == Fp8Format::kPerWord) {
    for (int64_t t = 0; t < rows; ++t) {
      const float row_max = max_magnitude(x.row(t), w.k);
      if (!(row_max <= x_max)) x_max = row_max;  // NaN stays
    }
    fold = folds(x_max, w);
  }

  for (int64_t g = group_begin; g < group_end; ++g) {
    const Group group = group_at<Format>(w, g);
    __builtin_memset(scratch.acc, 0, size_t(rows * kGroup) * sizeof(float));
    for (int64_t step = 0; step < lines; ++step) {
      const int64_t line = nth(step, lines, Format::rows_mutated());
      decode_panel<Format>(tile_at<Format>(w, group, line, edge), scratch.panel);
      if (Format::kUnfold != 1 && !fold) unfold_panel<Format>(scratch.panel);
      const float* columns = scratch.x + line * rows * kLineColumns;
      if constexpr (Format::kPerWord == Fp8Format::kPerWord) {
        constexpr int kBlocks = kLineColumns / kQuantBlock;
        for (int64_t t = 0; t < rows; ++t) {
          scale_line(columns + t * kLineColumns, w.scale_row(group.begin) + line * kBlocks,
                     w.scale_columns() - line * kBlocks, fold ? Format::kUnfold : 1.0f,
                     scratch.scaled + t * kLineColumns);
        }
        columns = scratch.scaled;
      }
      if constexpr (Format::kPerWord == Fp4Format::kPerWord) {
        scale_panel(w, group, line, scratch.panel);
      }
      const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
      for (int64_t tile = 0; tile < tiles; ++tile) {  // of nearly equal height
        const int64_t begin = rows * tile / tiles, end = rows * (tile + 1) / tiles;
        multiply_panel(end - begin, scratch.panel, kLineColumns, columns + begin * kLineColumns,
                       scratch.acc + begin * kGroup);
      }
    }
    for (int64_t t = 0; t < rows; ++t) {
      store_outputs(scratch.acc + t * kGroup, group, out.row(t), rounding);
    }
  }
}

// ---- The operations.

template <class Format>
void multiply(KernelContext& ctx, Matrix<const float> x, const typename Format::Weights& w,
              Matrix<float> out, Rounding rounding) {
  const int64_t rows = x.shape[0];
  bool single = Format::kHasSingleRow && rows == 1 && w.k % kColumns<Format> == 0;
  if constexpr (Format::kPerWord == Fp8Format::kPerWord) {
    single = single && folds(max_magnitude(x.data, w.k), w);
  }
  const int64_t groups = num_groups<Format>(w);
  const int64_t grain = rows * w.n * w.k < kProductsWorthSplitting ? groups : 1;
  ctx.pool().parallel_for(groups, grain, [&](int64_t begin, int64_t end, int thread) {
    if constexpr (Format::kHasSingleRow) {
      if (single) return multiply_row<Format>(w, x.data, out.data, rounding, begin, end);
    }
    for (int64_t t = 0; t < rows; t += kMaxRows) {
      const int64_t last = t + kMaxRows < rows ? t + kMaxRows : rows;
      multiply_rows<Format>(w, x.rows(t, last), out.rows(t, last), rounding, begin, end, ctx, thread);
    }
  });
}

void matmul_fp8(KernelContext& ctx, Matrix<const float> x, const Fp8Matrix& w, Matrix<float> out,
                Rounding rounding) {
  Dims("matmul_fp8").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('N', w.n).bind('K', w.k)
      .bind('T', out.shape[0]).bind('N', out.shape[1]);
  multiply<Fp8Format>(ctx, x, w, out, rounding);
}

void matmul_fp4_f32(KernelContext& ctx, Matrix<const float> x, const Fp4Matrix& w,
                    Matrix<float> out, Rounding rounding) {
  Dims("matmul_fp4_f32").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('N', w.n).bind('K', w.k)
      .bind('T', out.shape[0]).bind('N', out.shape[1]);
  multiply<Fp4Format>(ctx, x, w, out, rounding);
}

void matmul_bf16(KernelContext& ctx, Matrix<const float> x, const Bf16Matrix& w, Matrix<float> out,
                 Rounding rounding) {
  Dims("matmul_bf16").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('N', w.n).bind('K', w.k)
      .bind('T', out.shape[0]).bind('N', out.shape[1]);
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
