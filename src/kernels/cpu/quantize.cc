#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

constexpr int64_t kNvfp4Block = 16;
static_assert(kNvfp4Block % kLanes == 0 && kQuantBlock % kLanes == 0);
constexpr uint32_t kInfinityBits = 0x7f800000;

// The largest magnitude by its bits: a NaN counts above infinity, so it is never lost.
HWY_INLINE uint32_t amax_bits(const float* x, int64_t count) {
  const WordTag d;
  WordVector largest = hn::Zero(d);
  for (int64_t i = 0; i < count; i += kLanes) {
    const WordVector bits = hn::BitCast(d, hn::LoadU(FloatTag(), x + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(d, 0x7fffffff)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

HWY_INLINE float from_bits(uint32_t bits) {
  return hn::GetLane(hn::BitCast(FloatTag(), hn::Set(WordTag(), bits)));
}

// A grid of representable magnitudes: the format keeps all but kDropped bits of fp32's mantissa,
// down to its smallest normal number; below that its steps are those of kMagic's last bit.
struct E4m3 {
  static constexpr int kDropped = 20;
  static constexpr float kSmallestNormal = 0x1p-6f, kMagic = 0x1p14f, kLargest = 448;
};
struct E2m1 {
  static constexpr int kDropped = 22;
  static constexpr float kSmallestNormal = 1, kMagic = 0x1p22f, kLargest = 6;
};

// |x| rounded to the grid (nearest, ties to even) after clamping. Finite x.
template <class Format>
HWY_INLINE FloatVector round_magnitude(FloatVector x, bool mutated) {
  const FloatTag d;
  const WordTag du;
  const FloatVector magnitude = hn::Min(hn::Abs(x), hn::Set(d, Format::kLargest));
  const WordVector bits = hn::BitCast(du, magnitude);
  constexpr uint32_t kHalf = 1u << (Format::kDropped - 1);
  const WordVector odd = hn::And(hn::ShiftRight<Format::kDropped>(bits), hn::Set(du, 1));
  const WordVector up = mutated ? hn::Set(du, kHalf) : hn::Add(hn::Set(du, kHalf - 1), odd);
  const WordVector normal = hn::And(hn::Add(bits, up), hn::Set(du, ~(2 * kHalf - 1)));
  const FloatVector magic = hn::Set(d, Format::kMagic);
  const FloatVector subnormal = hn::Sub(hn::Add(magnitude, magic), magic);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, Format::kSmallestNormal)), subnormal,
                        hn::BitCast(d, normal));
}

// x = format(x / scale) * scale. The division is a multiplication where scale is a power of two
// (both are exact but for the same underflow).
template <class Format, bool kPowerOfTwo>
HWY_INLINE void fake_block(float* x, int64_t count, float scale, bool mutated) {
  const FloatTag d;
  const FloatVector s = hn::Set(d, scale), inverse = hn::Set(d, 1.0f / scale);
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVector in = hn::LoadU(d, x + i);
    const FloatVector scaled = kPowerOfTwo ? hn::Mul(in, inverse) : hn::Div(in, s);
    const FloatVector value = round_magnitude<Format>(scaled, mutated);
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
    const WordTag du;
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
        const FloatVector value = round_magnitude<E4m3>(scaled, mutant);
        const WordVector normal =
            hn::Sub(hn::ShiftRight<20>(hn::BitCast(du, value)), hn::Set(du, 120u << 3));
        const WordVector subnormal =
            hn::BitCast(du, hn::ConvertTo(IntTag(), hn::Mul(value, hn::Set(d, 512))));
        const auto is_small = hn::RebindMask(du, hn::Lt(value, hn::Set(d, E4m3::kSmallestNormal)));
        const WordVector sign =
            hn::And(hn::ShiftRight<24>(hn::BitCast(du, scaled)), hn::Set(du, 0x80));
        const WordVector code = hn::Or(hn::IfThenElse(is_small, subnormal, normal), sign);
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
        fake_block<E4m3, true>(block, kQuantBlock, from_bits(uint32_t(code) << 23), mutant);
      }
    }
  });
}

void fake_quantize_nvfp4(KernelContext& ctx, Matrix<float> x) {
  MR_CHECK_OP(x.shape[1] % kNvfp4Block, ==, 0);
  const bool mutant = mutated("fake_quantize_nvfp4");
  each_piece(ctx, x.shape[0], x.shape[1], 4, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    for (float* block = x.row(t) + begin; block < x.row(t) + end; block += kNvfp4Block) {
      const uint32_t largest = amax_bits(block, kNvfp4Block);
      if (largest >= kInfinityBits) {
        fill_nan(block, kNvfp4Block);
        continue;
      }
      const float amax = from_bits(largest);
      const float at_least = amax < 6 * 0x1p-9f ? 6 * 0x1p-9f : amax;
      const FloatVector scale = round_magnitude<E4m3>(hn::Set(FloatTag(), at_least / 6.0f), false);
      fake_block<E2m1, false>(block, kNvfp4Block, hn::GetLane(scale), mutant);
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
      const float amax = from_bits(largest);
      const float at_least = amax < 6 * 0x1p-126f ? 6 * 0x1p-126f : amax;
      const uint32_t code = ue8m0_ceil(at_least / 6.0f);
      fake_block<E2m1, true>(block, kQuantBlock, from_bits(code << 23), mutant);
    }
  });
}

}  // namespace

void add_quantize(KernelTable& table) {
  table.quantize_fp8 = quantize_fp8;
  table.fake_quantize_fp8 = fake_quantize_fp8;
  table.fake_quantize_nvfp4 = fake_quantize_nvfp4;
  table.fake_quantize_mxfp4 = fake_quantize_mxfp4;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
