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
  int8_t digits[3][kBlock];  // lowest first; eight columns are stored as 0 2 4 6 1 3 5 7
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
  HWY_ALIGN int32_t values[kBlock];
  int32_t sum = 0, bits = 0, largest = 0;
  for (int i = 0; i < kBlock; i += kLanes) hn::Store(fixed_point(codes + i), d, values + i);
  for (int i = 0; i < kBlock; ++i) {
    const int32_t magnitude = values[i] < 0 ? -values[i] : values[i];
    sum += values[i];
    bits |= magnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  // The scale must stay a number: 2^(scale - 137 + shift) <= 2^127.
  int shift = bits == 0 ? 0 : __builtin_ctz(uint32_t(bits));
  shift = scale + shift > 264 ? 264 - scale : shift;
  block.num_digits = largest >> shift <= kTwoDigits ? 2 : 3;
  block.correction = -kOffset * (sum >> shift);
  block.scale = ue8m0_to_float(scale) * (0x1p-10f * float(1 << shift));

  for (int digit = 0; digit < block.num_digits; ++digit) {
    HWY_ALIGN int32_t digits[kBlock];
    for (int i = 0; i < kBlock; i += kLanes) {
      IntVector v = hn::Load(d, values + i);
      if (digit == 0) v = hn::ShiftRightSame(v, shift);
      // Never half way between two quotients, and exact enough to tell.
      const FloatVector ratio = hn::Mul(hn::ConvertTo(df, v), hn::Set(df, 1.0f / kBase));
      const IntVector quotient = hn::NearestInt(ratio);
      hn::Store(hn::Sub(v, hn::Mul(quotient, hn::Set(d, kBase))), d, digits + i);
      hn::Store(quotient, d, values + i);
    }
    for (int i = 0; i < kBlock; ++i) {
      const int place = i / 8 * 8 + i % 2 * 4 + i % 8 / 2;
      block.digits[digit][place] = int8_t(digits[i]);
    }
  }
}

// The weights of kLanes outputs in one block: vector 2j has columns 8j + 0 2 4 6 of an output in
// the four bytes of its lane, vector 2j + 1 the odd columns.
HWY_INLINE void load_weights(const uint8_t* rows, size_t stride, ByteVector weights[8]) {
  const ByteTag d;
  HWY_ALIGN static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                   12, 11, 10, 9,  8,  6,  4,  0};
  const ByteVector table = hn::LoadDup128(d, kTable);
  const ByteVector nibble = hn::Set(d, 15);
  const hn::Repartition<uint16_t, ByteTag> shorts;
  WordVector words[4];
  load_words(rows, stride, words);
  HWY_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const ByteVector bytes = hn::BitCast(d, words[j]);
    const ByteVector high = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(shorts, words[j])));
    weights[2 * j] = hn::TableLookupBytes(table, hn::And(bytes, nibble));
    weights[2 * j + 1] = hn::TableLookupBytes(table, hn::And(high, nibble));
  }
}

// Sixteen-bit sums of one digit's products.
HWY_INLINE ShortVector sum_digit(const ByteVector weights[8], const int8_t* digits /*[kBlock]*/) {
  ShortVector sum = hn::Zero(ShortTag());
  HWY_UNROLL(8)
  for (int j = 0; j < 8; ++j) {
    int32_t four;
    __builtin_memcpy(&four, digits + 4 * j, 4);
    const ByteVector columns = hn::BitCast(ByteTag(), hn::Set(IntTag(), four));
    sum = hn::Add(sum, multiply_byte_pairs(weights[j], columns));
  }
  return sum;
}

// The block's sum, rounded once, times the activations' scale.
HWY_INLINE FloatVector block_sum(const ByteVector weights[8], const Block& block) {
  IntVector sum = hn::Set(IntTag(), block.correction);
  sum = hn::Add(sum, multiply_short_pairs(sum_digit(weights, block.digits[0]), 1));
  sum = hn::Add(sum, multiply_short_pairs(sum_digit(weights, block.digits[1]), kBase));
  if (HWY_UNLIKELY(block.num_digits == 3)) {
    sum = hn::Add(sum, multiply_short_pairs(sum_digit(weights, block.digits[2]), kBase * kBase));
  }
  return hn::Mul(hn::ConvertTo(FloatTag(), sum), hn::Set(FloatTag(), block.scale));
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

// kLanes rows of bytes; where fewer exist, or where a read of `width` bytes would leave the
// matrix, a copy filled up with zeros.
struct Rows {
  const uint8_t* data;
  size_t stride;
};

HWY_INLINE Rows rows_at(const uint8_t* data, int64_t row_bytes, int64_t count, int64_t offset,
                        int64_t width, uint8_t* edge) {
  if (count == kLanes && offset + width <= row_bytes) return {data + offset, size_t(row_bytes)};
  const int64_t existing = row_bytes - offset < width ? row_bytes - offset : width;
  __builtin_memset(edge, 0, size_t(kLanes * width));
  for (int64_t i = 0; i < count; ++i) {
    __builtin_memcpy(edge + i * width, data + i * row_bytes + offset, size_t(existing));
  }
  return {edge, size_t(width)};
}

// Outputs [begin, end) of `rows` rows of x, whose blocks are [K / 32][rows].
void multiply(const Fp4Matrix& w, const Block* blocks, int64_t rows, Matrix<float> out,
              Rounding rounding, int64_t begin, int64_t end, float* acc /*[rows][kLanes]*/) {
  const FloatTag d;
  const int64_t num_blocks = w.k / kBlock;
  const int64_t row_bytes = w.k / 2;
  HWY_ALIGN float scales[16 * kLanes];
  HWY_ALIGN uint8_t edge[kLanes * 16];
  for (int64_t n = begin; n < end; n += kLanes) {
    const int64_t count = end - n < kLanes ? end - n : kLanes;
    const uint8_t* codes = w.codes + n * row_bytes;
    __builtin_memset(acc, 0, size_t(rows * kLanes) * sizeof(float));
    for (int64_t step = 0; step < num_blocks; ++step) {
      const int64_t b = nth(step, num_blocks, mutated("matmul_fp4"));
      if (step % 16 == 0) {
        const Rows part = rows_at(w.scales + n * num_blocks, num_blocks, count, b, 16, edge);
        load_scales(part.data, part.stride, scales);
      }
      if (b % 4 == 0) {
        // The next outputs' weights, in the order of memory: 8 rows are too many streams for the
        // hardware to follow.
        for (int i = 0; i < kLanes; ++i) {
          __builtin_prefetch(codes + kLanes * row_bytes + (b / 4 * kLanes + i) * 64, 0, 2);
        }
      }
      const Rows part = rows_at(codes, row_bytes, count, b * kBlockBytes, kBlockBytes, edge);
      ByteVector weights[8];
      load_weights(part.data, part.stride, weights);
      const FloatVector scale = hn::Load(d, scales + b % 16 * kLanes);
      for (int64_t t = 0; t < rows; ++t) {
        const FloatVector sum = hn::Mul(block_sum(weights, blocks[b * rows + t]), scale);
        hn::Store(hn::Add(hn::Load(d, acc + t * kLanes), sum), d, acc + t * kLanes);
      }
    }
    for (int64_t t = 0; t < rows; ++t) {
      HWY_ALIGN float result[kLanes];
      hn::Store(rounded(hn::Load(d, acc + t * kLanes), rounding), d, result);
      __builtin_memcpy(out.row(t) + n, result, size_t(count) * sizeof(float));
    }
  }
}

void matmul_fp4(KernelContext& ctx, Fp8Rows x, const Fp4Matrix& w, Matrix<float> out,
                Rounding rounding) {
  const int64_t num_rows = x.codes.shape[0], num_blocks = w.k / kBlock;
  Dims("matmul_fp4").bind('T', num_rows).bind('K', x.codes.shape[1]).bind('N', w.n)
      .bind('K', w.k).bind('T', out.shape[0]).bind('N', out.shape[1])
      .bind('T', x.scales.shape[0]).bind('B', x.scales.shape[1]).bind('B', num_blocks);
  // Rows that are prepared at a time: their blocks stay in the second-level cache.
  constexpr int64_t kCacheBytes = 256 * 1024, kMaxRows = 64;
  const int64_t fitting = kCacheBytes / (num_blocks * int64_t(sizeof(Block)));
  const int64_t chunk = fitting < 8 ? 8 : fitting < kMaxRows ? fitting : kMaxRows;
  const int64_t grain = num_rows * w.n * w.k < kProductsWorthSplitting ? w.n : kLanes;
  ctx.pool().parallel_for(w.n, grain, [&](int64_t begin, int64_t end, int thread_idx) {
    for (int64_t t0 = 0; t0 < num_rows; t0 += chunk) {
      const int64_t rows = num_rows - t0 < chunk ? num_rows - t0 : chunk;
      float* acc = ctx.scratch<float>(
          thread_idx, rows * kLanes + num_blocks * rows * int64_t(sizeof(Block) / sizeof(float)));
      Block* blocks = reinterpret_cast<Block*>(acc + rows * kLanes);
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t b = 0; b < num_blocks; ++b) {
          prepare_block(x.codes.row(t0 + t) + b * kBlock, x.scales.row(t0 + t)[b],
                        blocks[b * rows + t]);
        }
      }
      multiply(w, blocks, rows, out.rows(t0, t0 + rows), rounding, begin, end, acc);
    }
  });
}

}  // namespace

void add_products_fp4(KernelTable& table) { table.matmul_fp4 = matmul_fp4; }

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
