// matmul_fp4: fp4 weights times fp8 activations, summed exactly inside a block of 32 columns.
//
// A block's sum is an integer below 2^27 whatever the order of its additions, so it is made of
// byte multiply-adds, the cheapest products there are (twice the rate of fp32 ones per
// instruction, and four columns a lane):
//   * weights are 2 * e2m1 + 12 in unsigned bytes, straight from a table of 16;
//   * activations are integers (512 * e4m3, divided by the largest power of two that leaves the
//     block whole) in two signed digits of base 169, rarely three;
//   * 12 times the sum of the block's activations is taken off at the end.
// Lanes are outputs. The weights of a block stay in registers while all rows of x use them.

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

void prepare_block(const uint8_t* codes, uint8_t scale, Block& block) {
  const FloatTag df;
  const IntTag d;
  constexpr int kVectors = kBlock / kLanes;

  const hn::FixedTag<uint8_t, 16> half;
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                   8, 10, 12, 14, 9, 11, 13, 15};
  HWY_ALIGN uint8_t ordered[kBlock];
  for (int i = 0; i < kBlock; i += 16) {
    hn::Store(hn::TableLookupBytes(hn::LoadU(half, codes + i), hn::Load(half, kOrder)), half,
              ordered + i);
  }

  IntVector values[kVectors];
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
  block.num_digits = block_largest >> shift <= kTwoDigits ? 2 : 3;
  block.correction = -kOffset * (hn::GetLane(hn::SumOfLanes(d, sum)) >> shift);
  block.scale = ue8m0_to_float(scale) * (0x1p-10f * float(1 << shift));

  const hn::Rebind<int8_t, IntTag> bytes;
  HWY_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) {
    IntVector rest = hn::ShiftRightSame(values[i], shift);
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

// The weights of kLanes outputs in one block, decoded: vector 2j has columns 8j + 0 2 4 6 of an
// output in the four bytes of its lane, vector 2j + 1 the odd columns.
HWY_INLINE void decode_weights(const WordVector words[4], ByteVector weights[8]) {
  const ByteTag d;
  HWY_ALIGN static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                   12, 11, 10, 9,  8,  6,  4,  0};
  const ByteVector table = hn::LoadDup128(d, kTable);
  const ByteVector nibble = hn::Set(d, 15);
  const hn::Repartition<uint16_t, ByteTag> shorts;
  HWY_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const ByteVector low = hn::BitCast(d, words[j]);
    const ByteVector high = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(shorts, words[j])));
    weights[2 * j] = hn::TableLookupBytes(table, hn::And(low, nibble));
    weights[2 * j + 1] = hn::TableLookupBytes(table, hn::And(high, nibble));
  }
}

// The sum of a block, rounded once, times the scale of its activations.
template <int kDigits>
HWY_INLINE FloatVector block_sum(const ByteVector weights[8], const Block& block) {
  ShortVector sums[kDigits];
  HWY_UNROLL(8)
  for (int j = 0; j < 8; ++j) {
    HWY_UNROLL(3)
    for (int digit = 0; digit < kDigits; ++digit) {
      int32_t four_columns;
      __builtin_memcpy(&four_columns, block.digits[digit] + 4 * j, 4);
      const ByteVector columns = hn::BitCast(ByteTag(), hn::Set(IntTag(), four_columns));
      const ShortVector products = multiply_byte_pairs(weights[j], columns);
      sums[digit] = j == 0 ? products : hn::Add(sums[digit], products);
    }
  }
  IntVector sum = hn::Set(IntTag(), block.correction);
  sum = hn::Add(sum, multiply_short_pairs(sums[0], 1));
  sum = hn::Add(sum, multiply_short_pairs(sums[1], kBase));
  if constexpr (kDigits == 3) sum = hn::Add(sum, multiply_short_pairs(sums[2], kBase * kBase));
  return hn::Mul(hn::ConvertTo(FloatTag(), sum), hn::Set(FloatTag(), block.scale));
}

HWY_INLINE FloatVector block_sum(const ByteVector weights[8], const Block& block) {
  return HWY_LIKELY(block.num_digits == 2) ? block_sum<2>(weights, block)
                                           : block_sum<3>(weights, block);
}

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

// The scales of kLanes outputs in 16 blocks.
HWY_INLINE void load_scales(const uint8_t* rows, size_t stride, float* scales /*[16][kLanes]*/) {
  const FloatTag d;
  WordVector words[4];
  load_words(rows, stride, words);
  for (int j = 0; j < 4; ++j) {
    hn::Store(decode_scales<0>(words[j]), d, scales + (4 * j + 0) * kLanes);
    hn::Store(decode_scales<1>(words[j]), d, scales + (4 * j + 1) * kLanes);
    hn::Store(decode_scales<2>(words[j]), d, scales + (4 * j + 2) * kLanes);
    hn::Store(decode_scales<3>(words[j]), d, scales + (4 * j + 3) * kLanes);
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
    decode_weights(words, bytes);
    // The weights of the next outputs, in the order of memory: the rows here are too many streams
    // for the hardware to follow.
    constexpr int kLines = kLanes * kBlockBytes / 64;
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(upcoming + (b * kLines + i) * 64, 0, 2);
    const FloatVector scale = hn::Load(d, scales + b * kLanes);
    if constexpr (kOneRow) {
      sum = hn::Add(sum, hn::Mul(block_sum(bytes, blocks[b]), scale));
    } else {
      for (int64_t t = 0; t < rows; ++t) {
        const FloatVector product = hn::Mul(block_sum(bytes, blocks[b * rows + t]), scale);
        hn::Store(hn::Add(hn::Load(d, acc + t * kLanes), product), d, acc + t * kLanes);
      }
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
  const FloatTag d;
  const int64_t num_blocks = w.k / kBlock;
  const int64_t row_bytes = w.k / 2;
  HWY_ALIGN float scales[kStrip * kLanes];
  HWY_ALIGN uint8_t scale_copy[kLanes * kStrip];
  HWY_ALIGN uint8_t weight_copy[kLanes * kStrip * kBlockBytes];
  for (int64_t n = begin; n < end; n += kLanes) {
    const int64_t count = end - n < kLanes ? end - n : kLanes;
    const uint8_t* codes = w.codes + n * row_bytes;
    __builtin_memset(acc, 0, size_t(rows * kLanes) * sizeof(float));
    for (int64_t b = 0; b < num_blocks; b += kStrip) {
      const int64_t strip = num_blocks - b < kStrip ? num_blocks - b : kStrip;
      Rows scale_rows{w.scales + n * num_blocks + b, size_t(num_blocks)};
      Rows weight_rows{codes + b * kBlockBytes, size_t(row_bytes)};
      if (count < kLanes || strip < kStrip) {
        scale_rows = copy_rows(scale_rows.data, num_blocks, count, strip, kStrip, scale_copy);
      }
      if (count < kLanes) {
        weight_rows = copy_rows(weight_rows.data, row_bytes, count, strip * kBlockBytes,
                                kStrip * kBlockBytes, weight_copy);
      }
      for (int i = 0; i < kLanes * kStrip; i += 64) {
        __builtin_prefetch(w.scales + (n + kLanes) * num_blocks + b * kLanes + i, 0, 2);
      }
      load_scales(scale_rows.data, scale_rows.stride, scales);
      add_strip<kOneRow>(weight_rows, scales, strip, blocks + b * rows, rows,
                         codes + kLanes * (row_bytes + b * kBlockBytes), acc);
    }
    for (int64_t t = 0; t < rows; ++t) {
      HWY_ALIGN float result[kLanes];
      hn::Store(rounded(hn::Load(d, acc + t * kLanes), rounding), d, result);
      __builtin_memcpy(out.row(out_rows[t]) + n, result, size_t(count) * sizeof(float));
    }
  }
}

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
  const Fp4Matrix& w = group.w;
  const int64_t units = units_per_column(group);
  const int64_t first = (begin + units - 1) / units * kLanes;
  const int64_t beyond = (end + units - 1) / units * kLanes;
  const int64_t last = beyond < w.n ? beyond : w.n;
  if (first >= last) return;
  const int64_t num_blocks = w.k / kBlock;
  // Rows that are prepared at a time: their blocks stay in the second-level cache.
  constexpr int64_t kCacheBytes = 256 * 1024, kMaxRows = 64;
  const int64_t fitting = kCacheBytes / (num_blocks * int64_t(sizeof(Block)));
  const int64_t chunk = fitting < 8 ? 8 : fitting < kMaxRows ? fitting : kMaxRows;
  for (int64_t r0 = group.begin; r0 < group.end; r0 += chunk) {
    const int64_t rows = group.end - r0 < chunk ? group.end - r0 : chunk;
    const int64_t acc_size = rows * kLanes;
    const int64_t blocks_size = rows * num_blocks * int64_t(sizeof(Block) / sizeof(float));
    float* acc = ctx.scratch<float>(thread_idx, acc_size + blocks_size);
    auto* blocks = reinterpret_cast<Block*>(acc + acc_size);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = groups.x_rows[size_t(r0 + r)];
      for (int64_t b = 0; b < num_blocks; ++b) {
        prepare_block(x.codes.row(t) + b * kBlock, x.scales.row(t)[b], blocks[b * rows + r]);
      }
    }
    const auto multiply_part = rows == 1 ? multiply<true> : multiply<false>;
    const int64_t out_begin = mutated("ragged_matmul_fp4/chunks") ? group.begin : r0;
    multiply_part(w, blocks, rows, &groups.out_rows[size_t(out_begin)], out, rounding, first, last,
                  acc);
  }
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
