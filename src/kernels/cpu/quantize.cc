#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/quantize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// x = format(x / scale) * scale for a scale that is a power of two: multiplying by its inverse is
// the division (both are exact but for the same underflow).
template <class Format>
HWY_INLINE void fake_block(float* x, int64_t count, float scale, bool mutated) {
  const FloatTag d;
  const FloatVector s = hn::Set(d, scale), inverse = hn::Set(d, 1.0f / scale);
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVector in = hn::LoadU(d, x + i);
    const FloatVector value = round_magnitude<Format>(hn::Mul(in, inverse), mutated);
    hn::StoreU(hn::Mul(hn::CopySign(value, in), s), d, x + i);
  }
}

HWY_INLINE void fill_nan(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) hn::StoreU(hn::NaN(FloatTag()), FloatTag(), x + i);
}

void quantize_fp8(KernelContext& ctx, Matrix<const float> x, MutableFp8Rows out) {
  Dims("quantize_fp8").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('T', out.codes.shape[0])
      .bind('K', out.codes.shape[1]).bind('T', out.scales.shape[0])
      .bind('B', out.scales.shape[1]).bind('B', x.shape[1] / kQuantBlock);
  const bool mutant = mutated("quantize_fp8");
  const int64_t whole = x.shape[1] / kQuantBlock * kQuantBlock;
  each_piece(ctx, x.shape[0], whole, 2, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    const FloatTag d;
    const hn::Rebind<uint8_t, IntTag> bytes;
    for (int64_t at = begin; at < end; at += kQuantBlock) {
      const float* in = x.row(t) + at;
      uint8_t* codes = out.codes.row(t) + at;
      const uint8_t scale = fp8_block_scale(amax_bits(in, kQuantBlock));
      out.scales.row(t)[at / kQuantBlock] = scale;
      if (scale == 255) {
        for (int64_t i = 0; i < kQuantBlock; ++i) codes[i] = 0;
        continue;
      }
      const FloatVector inverse = hn::Set(d, from_bits(uint32_t(254 - scale) << 23));
      for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
        const FloatVector scaled = hn::Mul(hn::LoadU(d, in + i), inverse);
        const WordVector code = encode_e4m3(scaled, mutant);
        hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(IntTag(), code)), bytes, codes + i);
      }
    }
  });
}

void fake_quantize_fp8(KernelContext& ctx, Matrix<float> x) {
  MR_CHECK_OP(x.shape[1] % kQuantBlock, ==, 0);
  const bool mutant = mutated("fake_quantize_fp8");
  each_piece(ctx, x.shape[0], x.shape[1], 2, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    for (float* block = x.row(t) + begin; block < x.row(t) + end; block += kQuantBlock) {
      const uint8_t code = fp8_block_scale(amax_bits(block, kQuantBlock));
      if (code == 255) {
        fill_nan(block, kQuantBlock);
      } else {
        fake_block<E4m3>(block, kQuantBlock, from_bits(uint32_t(code) << 23), mutant);
      }
    }
  });
}

void fake_quantize_mxfp4(KernelContext& ctx, Matrix<float> x) {
  MR_CHECK_OP(x.shape[1] % kQuantBlock, ==, 0);
  const bool mutant = mutated("fake_quantize_mxfp4");
  each_piece(ctx, x.shape[0], x.shape[1], 2, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    for (float* block = x.row(t) + begin; block < x.row(t) + end; block += kQuantBlock) {
      const uint32_t largest = amax_bits(block, kQuantBlock);
      if (largest >= kInfinityBits) {
        fill_nan(block, kQuantBlock);
        continue;
      }
      const uint32_t code = mxfp4_scale(from_bits(largest));
      fake_block<E2m1>(block, kQuantBlock, from_bits(code << 23), mutant);
    }
  });
}

}  // namespace

void add_quantize(KernelTable& table) {
  table.quantize_fp8 = quantize_fp8;
  table.fake_quantize_fp8 = fake_quantize_fp8;
  table.fake_quantize_mxfp4 = fake_quantize_mxfp4;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
