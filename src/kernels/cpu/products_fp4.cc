// matmul_fp4: fp4 weights times fp8 activations, summed exactly inside a block of 32 columns.
//
// A block's sum is an integer below 2^27 whatever the order of its additions, so it is made of
// integer multiply-adds, in the way that suits the number of rows. Lanes are outputs. Weights are
// 2 * e2m1; activations are 512 * e4m3, divided by the largest power of two that leaves the block
// whole.
//
// Few rows are bound by getting at the weights, which stay bytes, four columns a lane:
//   * weights plus 12 are unsigned bytes, straight from a table of 16, and stay in registers while
//     all rows of x use them;
//   * activations are two signed digits of base 169, rarely three;
//   * 12 times the sum of the block's activations is taken off at the end.
//
// Many rows are bound by multiply-adds. 16-bit ones make one digit do for nearly all blocks, and
// need half the additions: the weights of a panel are widened once for all rows.

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/products_fp4.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/kernels.h"
#include "tensor/dims.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

constexpr int kBlock = int(kQuantBlock);
constexpr int kBlockBytes = kBlock / 2;
constexpr int kOffset = 12;  // makes 2 * e2m1 unsigned

// 512 * e4m3 of kLanes codes: the code's bits where a float has them are e4m3 * 2^-120.
HWY_INLINE IntVector fixed_point(const uint8_t* codes) {
  const FloatTag df;
  const WordTag dw;
  const hn::Rebind<uint8_t, FloatTag> bytes;
  const WordVector code = hn::PromoteTo(dw, hn::LoadU(bytes, codes));
  const WordVector magnitude = hn::ShiftLeft<20>(hn::And(code, hn::Set(dw, 0x7f)));
  const WordVector sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(dw, 0x80)));
  const FloatVector tiny = hn::BitCast(df, hn::Or(magnitude, sign));
  return hn::ConvertTo(IntTag(), hn::Mul(hn::Mul(tiny, hn::Set(df, 0x1p120f)), hn::Set(df, 512)));
}

// Of the activations of one row and block, as integers.
struct Integers {
  int32_t largest;  // magnitude
  int32_t sum;
  float scale;  // of the integers, with 1/2 for the weights
};

// `values`: them, in the order `order` of each 16 columns.
HWY_INLINE Integers read_integers(const uint8_t* codes, uint8_t scale,
                                  const uint8_t* order /*[16]*/,
                                  IntVector values[kBlock / kLanes]) {
  const IntTag d;
  constexpr int kVectors = kBlock / kLanes;
  const hn::FixedTag<uint8_t, 16> half;
  HWY_ALIGN uint8_t ordered[kBlock];
  for (int i = 0; i < kBlock; i += 16) {
    hn::Store(hn::TableLookupBytes(hn::LoadU(half, codes + i), hn::Load(half, order)), half,
              ordered + i);
  }
  IntVector sum = hn::Zero(d), largest = hn::Zero(d), lowest_bit = hn::Set(d, 1 << 30);
  HWY_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) {
    const IntVector v = values[i] = fixed_point(ordered + i * kLanes);
    const IntVector minus = hn::Neg(v);
    sum = hn::Add(sum, v);
    largest = hn::Max(largest, hn::Max(v, minus));
    const IntVector low = hn::And(v, minus);
    lowest_bit = hn::IfThenElse(hn::Eq(v, hn::Zero(d)), lowest_bit, hn::Min(lowest_bit, low));
  }
  const int32_t block_largest = hn::GetLane(hn::MaxOfLanes(d, largest));
  // The scale must stay a number: 2^(scale - 137 + shift) <= 2^127.
  int shift = __builtin_ctz(uint32_t(hn::GetLane(hn::MinOfLanes(d, lowest_bit))));
  shift = block_largest == 0 ? 0 : scale + shift > 264 ? 264 - scale : shift;
  Integers in;
  in.largest = block_largest >> shift;
  in.sum = hn::GetLane(hn::SumOfLanes(d, sum)) >> shift;
  in.scale = ue8m0_to_float(scale) * (0x1p-10f * float(1 << shift));
  HWY_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) values[i] = hn::ShiftRightSame(values[i], shift);
  return in;
}

// The weights of kLanes outputs in one block, by a table of 16: vector 2j has columns 8j + 0 2 4 6
// of an output in the four bytes of its lane, vector 2j + 1 the odd columns.
HWY_INLINE void decode_weights(const WordVector words[4], const uint8_t* table,
                               ByteVector weights[8]) {
  const ByteTag d;
  const ByteVector values = hn::LoadDup128(d, table);
  const ByteVector nibble = hn::Set(d, 15);
  const hn::Repartition<uint16_t, ByteTag> shorts;
  HWY_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const ByteVector low = hn::BitCast(d, words[j]);
    const ByteVector high = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(shorts, words[j])));
    weights[2 * j] = hn::TableLookupBytes(values, hn::And(low, nibble));
    weights[2 * j + 1] = hn::TableLookupBytes(values, hn::And(high, nibble));
  }
}

// 2 * e2m1, and the same made unsigned.
HWY_ALIGN constexpr uint8_t kSigned[16] = {0, 1,   2,   3,   4,   6,   8,   12,
                                           0, 255, 254, 253, 252, 250, 248, 244};
HWY_ALIGN constexpr uint8_t kUnsigned[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                             12, 11, 10, 9,  8,  6,  4,  0};

// ue8m0 in byte `kByte` of each lane.
template <int kByte>
HWY_INLINE FloatVector decode_scales(WordVector codes) {
  const WordTag d;
  const FloatTag df;
  const WordVector code = hn::And(hn::ShiftRight<8 * kByte>(codes), hn::Set(d, 0xff));
  // Code 0 is a denormal, 2^-127.
  const WordVector bits = hn::Max(hn::ShiftLeft<23>(code), hn::Set(d, 0x00400000));
  const WordVector nan = hn::Set(d, 0x7fc00000);
  return hn::BitCast(df, hn::IfThenElse(hn::Eq(code, hn::Set(d, 255)), nan, bits));
}

// The scales of kLanes outputs in 16 blocks, `width` numbers from one block to the next.
HWY_INLINE void load_scales(const uint8_t* rows, size_t stride, int width, float* scales) {
  const FloatTag d;
  WordVector words[4];
  load_words(rows, stride, words);
  for (int j = 0; j < 4; ++j) {
    hn::Store(decode_scales<0>(words[j]), d, scales + (4 * j + 0) * width);
    hn::Store(decode_scales<1>(words[j]), d, scales + (4 * j + 1) * width);
    hn::Store(decode_scales<2>(words[j]), d, scales + (4 * j + 2) * width);
    hn::Store(decode_scales<3>(words[j]), d, scales + (4 * j + 3) * width);
  }
}

// `width` bytes of each of kLanes rows, from `data` on; zeros for rows that do not exist.
struct Rows {
  const uint8_t* data;
  size_t stride;
};

Rows copy_rows(const uint8_t* data, int64_t stride, int64_t count, int64_t bytes, int64_t width,
               uint8_t* copy /*[kLanes][width]*/) {
  __builtin_memset(copy, 0, size_t(kLanes * width));
  for (int64_t i = 0; i < count; ++i) {
    __builtin_memcpy(copy + i * width, data + i * stride, size_t(bytes));
  }
  return {copy, size_t(width)};
}

// Blocks that go together: as many as scales are decoded at a time.
constexpr int64_t kStrip = 16;

// The scales of kLanes outputs n, n + 1, ... below `end` in `count` blocks from b on, as a strip of
// kStrip has them. Outputs and blocks that do not exist are zeros.
Rows scale_rows(const Fp4Matrix& w, int64_t n, int64_t end, int64_t b, int64_t count,
                uint8_t* copy /*[kLanes][kStrip]*/) {
  const int64_t num_blocks = w.k / kBlock;
  const uint8_t* data = w.scales + n * num_blocks + b;
  if (end - n >= kLanes && count == kStrip) return {data, size_t(num_blocks)};
  return copy_rows(data, num_blocks, end - n < kLanes ? end - n : kLanes, count, kStrip, copy);
}

// Their weights.
Rows weight_rows(const Fp4Matrix& w, int64_t n, int64_t end, int64_t b, int64_t count,
                 uint8_t* copy /*[kLanes][kStrip * kBlockBytes]*/) {
  const int64_t row_bytes = w.k / 2;
  const uint8_t* data = w.codes + n * row_bytes + b * kBlockBytes;
  if (end - n >= kLanes) return {data, size_t(row_bytes)};
  return copy_rows(data, row_bytes, end - n, count * kBlockBytes, kStrip * kBlockBytes, copy);
}

// The sums of row t go to row out_rows[t] of `out`: outputs n, n + 1, ..., `count` of them.
template <int kWidth>
void store_rows(const float* acc /*[rows][kWidth]*/, int64_t rows, Rounding rounding,
                Matrix<float> out, const int32_t* out_rows, int64_t n, int64_t count) {
  const FloatTag d;
  for (int64_t t = 0; t < rows; ++t) {
    HWY_ALIGN float result[kWidth];
    for (int i = 0; i < kWidth; i += kLanes) {
      hn::Store(rounded(hn::Load(d, acc + t * kWidth + i), rounding), d, result + i);
    }
    __builtin_memcpy(out.row(out_rows[t]) + n, result, size_t(count) * sizeof(float));
  }
}

// ---- Few rows.

// Digits are -84 .. 84: the sum of a block's products, 16 per 16-bit lane, is then at most
// 16 * 2 * 12 * 84 = 32,256. Two digits reach 84 * 169 + 84; three reach every activation.
constexpr int kBase = 169;
constexpr int kTwoDigits = 84 * kBase + 84;
static_assert(16 * 2 * kOffset * 84 <= 32767);
static_assert(84 * kBase * kBase >= 480 * 512);

// The activations of one row and block.
struct Block {
  int32_t correction;  // - 12 * sum of the integers
  float scale;         // of the integers, with 1/2 for the weights
  int32_t num_digits;
  int32_t unused;
  int8_t digits[3][kBlock];  // lowest first; of eight columns first the even ones
};

void prepare_block(const uint8_t* codes, uint8_t scale, Block& block) {
  const FloatTag df;
  const IntTag d;
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                   8, 10, 12, 14, 9, 11, 13, 15};
  IntVector values[kBlock / kLanes];
  const Integers in = read_integers(codes, scale, kOrder, values);
  block.num_digits = in.largest <= kTwoDigits ? 2 : 3;
  block.correction = -kOffset * in.sum;
  block.scale = in.scale;

  const hn::Rebind<int8_t, IntTag> bytes;
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock / kLanes; ++i) {
    IntVector rest = values[i];
    for (int digit = 0; digit < block.num_digits; ++digit) {
      // Never half way between two quotients, and exact enough to tell.
      const FloatVector ratio = hn::Mul(hn::ConvertTo(df, rest), hn::Set(df, 1.0f / kBase));
      const IntVector quotient = hn::NearestInt(ratio);
      const IntVector remainder = hn::Sub(rest, hn::Mul(quotient, hn::Set(d, kBase)));
      hn::StoreU(hn::DemoteTo(bytes, remainder), bytes, block.digits[digit] + i * kLanes);
      rest = quotient;
    }
  }
}

// The sums of a block for kRows rows, each rounded once, times the scale of its activations. All
// of them at a time: one row's sum is a chain that the processor cannot look past.
template <int kDigits, int kRows>
HWY_INLINE void block_sums(const ByteVector weights[8], const Block* blocks /*[kRows]*/,
                           FloatVector out[kRows]) {
  ShortVector sums[kRows][kDigits];
  HWY_UNROLL(8)
  for (int j = 0; j < 8; ++j) {
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(3)
      for (int digit = 0; digit < kDigits; ++digit) {
        int32_t four_columns;
        __builtin_memcpy(&four_columns, blocks[r].digits[digit] + 4 * j, 4);
        const ByteVector columns = hn::BitCast(ByteTag(), hn::Set(IntTag(), four_columns));
        if (j == 0) {
          sums[r][digit] = multiply_byte_pairs(weights[j], columns);
        } else {
          add_byte_pairs(weights[j], columns, sums[r][digit]);
        }
      }
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < kRows; ++r) {
    IntVector sum = hn::Set(IntTag(), blocks[r].correction);
    sum = hn::Add(sum, multiply_short_pairs(sums[r][0], 1));
    sum = hn::Add(sum, multiply_short_pairs(sums[r][1], kBase));
    if constexpr (kDigits == 3) {
      sum = hn::Add(sum, multiply_short_pairs(sums[r][2], kBase * kBase));
    }
    out[r] = hn::Mul(hn::ConvertTo(FloatTag(), sum), hn::Set(FloatTag(), blocks[r].scale));
  }
}

HWY_INLINE FloatVector block_sum(const ByteVector weights[8], const Block& block) {
  FloatVector sum[1];
  if (HWY_LIKELY(block.num_digits == 2)) {
    block_sums<2, 1>(weights, &block, sum);
  } else {
    block_sums<3, 1>(weights, &block, sum);
  }
  return sum[0];
}

// Adds the next `count` blocks (at most kStrip) of kLanes outputs to acc.
template <bool kOneRow>
HWY_INLINE void add_strip(const Rows& weights, const float* scales /*[kStrip][kLanes]*/,
                          int64_t count, const Block* blocks /*[count][rows]*/, int64_t rows,
                          const uint8_t* upcoming, float* acc /*[rows][kLanes]*/) {
  const FloatTag d;
  FloatVector sum = hn::Zero(d);
  if constexpr (kOneRow) sum = hn::Load(d, acc);
  for (int64_t step = 0; step < count; ++step) {
    const bool swapped =
        mutated("matmul_fp4") || (!kOneRow && mutated("ragged_matmul_fp4/company"));
    const int64_t b = nth(step, count, swapped);
    WordVector words[4];
    ByteVector bytes[8];
    load_words(weights.data + b * kBlockBytes, weights.stride, words);
    decode_weights(words, kUnsigned, bytes);
    // The weights of the next outputs, in the order of memory: the rows here are too many streams
    // for the hardware to follow.
    constexpr int kLines = kLanes * kBlockBytes / 64;
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(upcoming + (b * kLines + i) * 64, 0, 2);
    // A line of each row is four blocks. It is fetched close by a while before it is needed.
    for (int i = 0; i < kLanes / 4; ++i) {
      __builtin_prefetch(weights.data + (b % 4 * (kLanes / 4) + i) * weights.stride +
                         (b / 4 + 2) * 64, 0, 3);
    }
    const FloatVector scale = hn::Load(d, scales + b * kLanes);
    if constexpr (kOneRow) {
      sum = hn::Add(sum, hn::Mul(block_sum(bytes, blocks[b]), scale));
    } else {
      const Block* block = blocks + b * rows;
      const auto add = [&](int64_t t, FloatVector block_sum) HWY_ATTR {
        float* lanes = acc + t * kLanes;
        hn::Store(hn::Add(hn::Load(d, lanes), hn::Mul(block_sum, scale)), d, lanes);
      };
      int64_t t = 0;
      for (; t + 2 <= rows; t += 2) {
        FloatVector sums[2];
        if (HWY_LIKELY((block[t].num_digits | block[t + 1].num_digits) == 2)) {
          block_sums<2, 2>(bytes, block + t, sums);
        } else {
          sums[0] = block_sum(bytes, block[t]);
          sums[1] = block_sum(bytes, block[t + 1]);
        }
        add(t, sums[0]);
        add(t + 1, sums[1]);
      }
      if (t < rows) add(t, block_sum(bytes, block[t]));
    }
  }
  if constexpr (kOneRow) hn::Store(sum, d, acc);
}

// Outputs [begin, end) of `rows` rows of x, whose blocks are [K / 32][rows]; row t goes to row
// out_rows[t] of `out`.
template <bool kOneRow>
void multiply(const Fp4Matrix& w, const Block* blocks, int64_t rows, const int32_t* out_rows,
              Matrix<float> out, Rounding rounding, int64_t begin, int64_t end,
              float* acc /*[rows][kLanes]*/) {
  const int64_t num_blocks = w.k / kBlock;
  HWY_ALIGN float scales[kStrip * kLanes];
  HWY_ALIGN uint8_t scale_copy[kLanes * kStrip];
  HWY_ALIGN uint8_t weight_copy[kLanes * kStrip * kBlockBytes];
  for (int64_t n = begin; n < end; n += kLanes) {
    const int64_t count = end - n < kLanes ? end - n : kLanes;
    const uint8_t* next_codes = w.codes + (n + kLanes) * (w.k / 2);
    __builtin_memset(acc, 0, size_t(rows * kLanes) * sizeof(float));
    for (int64_t b = 0; b < num_blocks; b += kStrip) {
      const int64_t strip = num_blocks - b < kStrip ? num_blocks - b : kStrip;
      const Rows scale_codes = scale_rows(w, n, end, b, strip, scale_copy);
      for (int i = 0; i < kLanes * kStrip; i += 64) {
        __builtin_prefetch(w.scales + (n + kLanes) * num_blocks + b * kLanes + i, 0, 2);
      }
      load_scales(scale_codes.data, scale_codes.stride, kLanes, scales);
      add_strip<kOneRow>(weight_rows(w, n, end, b, strip, weight_copy), scales, strip,
                         blocks + b * rows, rows, next_codes + b * kLanes * kBlockBytes, acc);
    }
    store_rows<kLanes>(acc, rows, rounding, out, out_rows, n, count);
  }
}

// The outputs [first, last) of a group's rows.
void multiply_few(KernelContext& ctx, int thread_idx, Fp8Rows x, const RowGroups& groups,
                  const RowGroups::Group& group, int64_t first, int64_t last, Matrix<float> out,
                  Rounding rounding) {
  const int64_t num_blocks = group.w.k / kBlock;
  const int64_t rows = group.end - group.begin;
  const int64_t acc_size = rows * kLanes;
  const int64_t blocks_size = rows * num_blocks * int64_t(sizeof(Block) / sizeof(float));
  float* acc = ctx.scratch<float>(thread_idx, acc_size + blocks_size);
  auto* blocks = reinterpret_cast<Block*>(acc + acc_size);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = groups.x_rows[size_t(group.begin + r)];
    for (int64_t b = 0; b < num_blocks; ++b) {
      prepare_block(x.codes.row(t) + b * kBlock, x.scales.row(t)[b], blocks[b * rows + r]);
    }
  }
  const auto multiply_part = rows == 1 ? multiply<true> : multiply<false>;
  multiply_part(group.w, blocks, rows, &groups.out_rows[size_t(group.begin)], out, rounding, first,
                last, acc);
}

// ---- Many rows.

constexpr int kPairs = kBlock / 2;         // of columns, in the halves of a 32-bit lane
constexpr int kGroup = 32;                 // outputs whose weights are widened together
constexpr int64_t kPanelBlocks = 4;        // blocks as well: 8 KiB
constexpr int64_t kAhead = 3;              // panels whose weights are on their way
constexpr int64_t kTileRows = 6;           // rows of x whose sums fit in registers
constexpr int64_t kMaxRows = 48;           // that share a panel
constexpr int kOneDigit = 32767;           // beyond, a block is wide: it takes a second digit of
constexpr int kHighShift = 12;             // so many bits less
static_assert(kPairs * 2 * kOffset * (1 << (kHighShift - 1)) < (1 << 30));

// The activations of some rows, K / 32 blocks each.
struct ShortRows {
  int64_t num_rows;
  int16_t* digits;      // [blocks][num_rows][kBlock]; of wide blocks zeros
  float* scales;        // [blocks][num_rows]
  uint64_t* wide;       // [blocks] a bit for each row whose block is wide
  int16_t* wide_digits; // [blocks][num_rows][2][kBlock], low and high; only those of wide blocks

  static int64_t bytes(int64_t num_rows, int64_t num_blocks) {
    return num_blocks * (num_rows * (1 + 2) * kBlock * int64_t(sizeof(int16_t)) +
                         even(num_rows) * int64_t(sizeof(float)) + int64_t(sizeof(uint64_t)));
  }
  ShortRows(int64_t num_rows, int64_t num_blocks, uint8_t* memory /*[bytes()]*/)
      : num_rows(num_rows),
        digits(reinterpret_cast<int16_t*>(memory)),
        scales(reinterpret_cast<float*>(digits + num_blocks * num_rows * kBlock)),
        wide(reinterpret_cast<uint64_t*>(scales + num_blocks * even(num_rows))),
        wide_digits(reinterpret_cast<int16_t*>(wide + num_blocks)) {}

 private:
  static int64_t even(int64_t count) { return count + count % 2; }
};

void store_digits(const IntVector values[kBlock / kLanes], int16_t* digits) {
  const hn::Rebind<int16_t, IntTag> shorts;
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock / kLanes; ++i) {
    hn::StoreU(hn::DemoteTo(shorts, values[i]), shorts, digits + i * kLanes);
  }
}

void prepare_block(const uint8_t* codes, uint8_t scale, int64_t b, int64_t row, ShortRows& x) {
  // The order in which widen_weights() leaves eight columns.
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 4,  2,  6,  1, 5,  3,  7,
                                                   8, 12, 10, 14, 9, 13, 11, 15};
  IntVector values[kBlock / kLanes];
  const Integers in = read_integers(codes, scale, kOrder, values);
  const int64_t place = b * x.num_rows + row;
  int16_t* digits = x.digits + place * kBlock;
  x.scales[place] = in.scale;
  if (HWY_LIKELY(in.largest <= kOneDigit)) return store_digits(values, digits);

  x.wide[b] |= uint64_t(1) << row;
  __builtin_memset(digits, 0, kBlock * sizeof(int16_t));
  IntVector low[kBlock / kLanes], high[kBlock / kLanes];
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock / kLanes; ++i) {
    const IntVector half = hn::Set(IntTag(), 1 << (kHighShift - 1));
    high[i] = hn::ShiftRight<kHighShift>(hn::Add(values[i], half));
    low[i] = hn::Sub(values[i], hn::ShiftLeft<kHighShift>(high[i]));
  }
  store_digits(low, x.wide_digits + place * 2 * kBlock);
  store_digits(high, x.wide_digits + (place * 2 + 1) * kBlock);
}

// The weights of kLanes outputs in one block, in 16 bits: of eight columns the pairs 0 4, 2 6, 1 5,
// 3 7.
HWY_INLINE void widen_weights(const Rows& rows, int64_t b, int16_t* panel /*[kPairs][kGroup][2]*/) {
  const ShortTag d;
  WordVector words[4];
  ByteVector bytes[8];
  load_words(rows.data + b * kBlockBytes, rows.stride, words);
  decode_weights(words, kSigned, bytes);
  HWY_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    const ShortVector both = hn::BitCast(d, bytes[i]);
    hn::Store(hn::ShiftRight<8>(hn::ShiftLeft<8>(both)), d, panel + (2 * i) * 2 * kGroup);
    hn::Store(hn::ShiftRight<8>(both), d, panel + (2 * i + 1) * 2 * kGroup);
  }
}

// The sums of a block for kRows rows and kVectors vectors of outputs.
template <int kRows, int kVectors>
HWY_INLINE void sum_pairs(const int16_t* panel /*[kPairs][kGroup][2]*/,
                          const int16_t* digits /*[kRows][kBlock]*/,
                          IntVector sums[kRows][kVectors]) {
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(IntTag());
  }
  for (int p = 0; p < kPairs; ++p) {
    ShortVector weights[kVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = hn::Load(ShortTag(), panel + p * 2 * kGroup + v * 2 * kLanes);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      int32_t two_columns;
      __builtin_memcpy(&two_columns, digits + r * kBlock + 2 * p, 4);
      const ShortVector columns = hn::BitCast(ShortTag(), hn::Set(IntTag(), two_columns));
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) add_short_pairs(weights[v], columns, sums[r][v]);
    }
  }
}

// acc += (sum, rounded once, * scale of x) * scale of the weights
HWY_INLINE void add_sum(IntVector sum, float x_scale, const float* w_scales, float* acc) {
  const FloatTag d;
  const FloatVector scaled = hn::Mul(hn::ConvertTo(d, sum), hn::Set(d, x_scale));
  hn::Store(hn::Add(hn::Load(d, acc), hn::Mul(scaled, hn::Load(d, w_scales))), d, acc);
}

template <int kRows, int kVectors>
void add_block(const int16_t* panel /*[kPairs][kGroup][2]*/, const int16_t* digits,
               const float* x_scales /*[kRows]*/, const float* w_scales /*[kGroup]*/,
               float* acc /*[kRows][kGroup]*/) {
  for (int first = 0; first < kGroup; first += kVectors * kLanes) {
    IntVector sums[kRows][kVectors];
    sum_pairs<kRows, kVectors>(panel + 2 * first, digits, sums);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) {
        const int place = first + v * kLanes;
        add_sum(sums[r][v], x_scales[r], w_scales + place, acc + r * kGroup + place);
      }
    }
  }
}

void add_wide_block(const int16_t* panel, const int16_t* digits /*[2][kBlock]*/, float x_scale,
                    const float* w_scales, float* acc /*[kGroup]*/) {
  for (int place = 0; place < kGroup; place += kLanes) {
    IntVector sums[2][1];
    sum_pairs<2, 1>(panel + 2 * place, digits, sums);
    const IntVector sum = hn::Add(sums[0][0], hn::ShiftLeft<kHighShift>(sums[1][0]));
    add_sum(sum, x_scale, w_scales + place, acc + place);
  }
}

void add_block(int64_t rows, const int16_t* panel, const int16_t* digits, const float* x_scales,
               const float* w_scales, float* acc) {
  constexpr int kVectors = 2;
  switch (rows) {
    case 1:
      return add_block<1, kVectors>(panel, digits, x_scales, w_scales, acc);
    case 2:
      return add_block<2, kVectors>(panel, digits, x_scales, w_scales, acc);
    case 3:
      return add_block<3, kVectors>(panel, digits, x_scales, w_scales, acc);
    case 4:
      return add_block<4, kVectors>(panel, digits, x_scales, w_scales, acc);
    case 5:
      return add_block<5, kVectors>(panel, digits, x_scales, w_scales, acc);
    case 6:
      return add_block<6, kVectors>(panel, digits, x_scales, w_scales, acc);
  }
}

// Continues the sums of kGroup outputs over the blocks b, b + 1, ... of a panel.
void add_panel(const int16_t* panel /*[count][kPairs][kGroup][2]*/,
               const float* w_scales /*[count][kGroup]*/, int64_t b, int64_t count,
               const ShortRows& x, float* acc /*[rows][kGroup]*/) {
  const int64_t tiles = (x.num_rows + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {  // of nearly equal height
    const int64_t begin = x.num_rows * tile / tiles, end = x.num_rows * (tile + 1) / tiles;
    for (int64_t step = 0; step < count; ++step) {
      const int64_t i =
          nth(step, count, mutated("matmul_fp4/many") || mutated("ragged_matmul_fp4/company"));
      const int64_t place = (b + i) * x.num_rows + begin;
      const int16_t* block = panel + i * kBlock * kGroup;
      const float* scales = w_scales + i * kGroup;
      add_block(end - begin, block, x.digits + place * kBlock, x.scales + place, scales,
                acc + begin * kGroup);
      uint64_t wide = x.wide[b + i] >> begin & ((uint64_t(1) << (end - begin)) - 1);
      for (; HWY_UNLIKELY(wide != 0); wide &= wide - 1) {
        const int64_t r = __builtin_ctzll(wide);
        add_wide_block(block, x.wide_digits + (place + r) * 2 * kBlock, x.scales[place + r], scales,
                       acc + (begin + r) * kGroup);
      }
    }
  }
}

// Outputs [begin, end) of all rows; row t goes to row out_rows[t] of `out`.
void multiply(const Fp4Matrix& w, const ShortRows& x, const int32_t* out_rows, Matrix<float> out,
              Rounding rounding, int64_t begin, int64_t end, float* acc /*[rows][kGroup]*/) {
  HWY_ALIGN int16_t panel[kPanelBlocks * kBlock * kGroup] = {};  // outputs that do not exist are 0
  HWY_ALIGN float scales[kStrip * kGroup] = {};
  HWY_ALIGN uint8_t scale_copy[kLanes * kStrip];
  HWY_ALIGN uint8_t weight_copy[kLanes * kStrip * kBlockBytes];
  const int64_t num_blocks = w.k / kBlock;
  for (int64_t n = begin; n < end; n += kGroup) {
    const int64_t count = end - n < kGroup ? end - n : kGroup;
    __builtin_memset(acc, 0, size_t(x.num_rows * kGroup) * sizeof(float));
    for (int64_t b = 0; b < num_blocks; b += kPanelBlocks) {
      const int64_t in_strip = b % kStrip;
      const int64_t blocks = num_blocks - b < kPanelBlocks ? num_blocks - b : kPanelBlocks;
      for (int64_t i = 0; i < count; i += kLanes) {
        if (in_strip == 0) {
          const int64_t strip = num_blocks - b < kStrip ? num_blocks - b : kStrip;
          const Rows codes = scale_rows(w, n + i, end, b, strip, scale_copy);
          load_scales(codes.data, codes.stride, kGroup, scales + i);
        }
        const Rows weights = weight_rows(w, n + i, end, b, blocks, weight_copy);
        for (int64_t p = 0; p < blocks; ++p) {
          widen_weights(weights, p, panel + p * kBlock * kGroup + 2 * i);
        }
        for (int r = 0; r < kLanes; ++r) {  // a panel is a line of each row
          __builtin_prefetch(weights.data + r * weights.stride + kAhead * kPanelBlocks * kBlockBytes);
        }
      }
      add_panel(panel, scales + in_strip * kGroup, b, blocks, x, acc);
    }
    store_rows<kGroup>(acc, x.num_rows, rounding, out, out_rows, n, count);
  }
}

void multiply_many(KernelContext& ctx, int thread_idx, Fp8Rows x, const RowGroups& groups,
                   const RowGroups::Group& group, int64_t first, int64_t last, Matrix<float> out,
                   Rounding rounding) {
  const int64_t num_blocks = group.w.k / kBlock;
  const int64_t num_rows = group.end - group.begin;
  const int64_t chunks = (num_rows + kMaxRows - 1) / kMaxRows;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = group.begin + num_rows * chunk / chunks;
    const int64_t rows = group.begin + num_rows * (chunk + 1) / chunks - begin;
    const int64_t acc_bytes = rows * kGroup * int64_t(sizeof(float));
    auto* memory = static_cast<uint8_t*>(
        ctx.scratch(thread_idx, size_t(acc_bytes + ShortRows::bytes(rows, num_blocks))));
    ShortRows digits(rows, num_blocks, memory + acc_bytes);
    __builtin_memset(digits.wide, 0, size_t(num_blocks) * sizeof(uint64_t));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = groups.x_rows[size_t(begin + r)];
      for (int64_t b = 0; b < num_blocks; ++b) {
        prepare_block(x.codes.row(t) + b * kBlock, x.scales.row(t)[b], b, r, digits);
      }
    }
    const int64_t out_begin = mutated("ragged_matmul_fp4/chunks") ? group.begin : begin;
    multiply(group.w, digits, &groups.out_rows[size_t(out_begin)], out, rounding, first, last,
             reinterpret_cast<float*>(memory));
  }
}

// ---- Groups of rows.

constexpr int64_t kFewRows = 15;  // up to here

// Work is counted in units, so that threads get equal shares of it whatever the groups: a unit is
// kLanes outputs of one row. Reading and decoding the weights counts as kDecodeRows rows more.
constexpr int64_t kDecodeRows = 2;

int64_t units_per_column(const RowGroups::Group& group) {
  return group.end == group.begin ? 0 : group.end - group.begin + kDecodeRows;
}

// The part of a group's outputs that lies in [begin, end) of its units.
void multiply_group(KernelContext& ctx, int thread_idx, Fp8Rows x, const RowGroups& groups,
                    const RowGroups::Group& group, int64_t begin, int64_t end, Matrix<float> out,
                    Rounding rounding) {
  const int64_t units = units_per_column(group);
  const int64_t first = (begin + units - 1) / units * kLanes;
  const int64_t beyond = (end + units - 1) / units * kLanes;
  const int64_t last = beyond < group.w.n ? beyond : group.w.n;
  if (first >= last) return;
  const auto multiply_part = group.end - group.begin <= kFewRows ? multiply_few : multiply_many;
  multiply_part(ctx, thread_idx, x, groups, group, first, last, out, rounding);
}

void matmul_fp4(KernelContext& ctx, Fp8Rows x, const RowGroups& groups, Matrix<float> out,
                Rounding rounding) {
  int64_t total = 0, products = 0;
  for (const RowGroups::Group& group : groups.groups) {
    const Fp4Matrix& w = group.w;
    Dims("matmul_fp4")
        .bind('K', x.codes.shape[1])
        .bind('K', w.k)
        .bind('N', w.n)
        .bind('N', out.shape[1])
        .bind('T', x.codes.shape[0])
        .bind('T', x.scales.shape[0])
        .bind('B', x.scales.shape[1])
        .bind('B', w.k / kBlock);
    total += units_per_column(group) * ((w.n + kLanes - 1) / kLanes);
    products += (group.end - group.begin) * w.n * w.k;
  }
  if (total == 0) return;
  const int64_t grain = products < kProductsWorthSplitting ? total : 1;
  ctx.pool().parallel_for(total, grain, [&](int64_t begin, int64_t end, int thread_idx) {
    int64_t offset = 0;  // of a group's units
    for (const RowGroups::Group& group : groups.groups) {
      const int64_t size = units_per_column(group) * ((group.w.n + kLanes - 1) / kLanes);
      const int64_t from = begin > offset ? begin - offset : 0;
      const int64_t to = end < offset + size ? end - offset : size;
      if (from < to) {
        multiply_group(ctx, thread_idx, x, groups, group, from, to, out, rounding);
      }
      offset += size;
    }
  });
}

}  // namespace

void add_products_fp4(KernelTable& table) { table.matmul_fp4 = matmul_fp4; }

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
