// Rounding of vectors to the grids of e4m3 and e2m1, once per target. Included inside
// foreach_target.

#if defined(MILLRACE_KERNELS_CPU_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_QUANTIZE_INL_H_
#undef MILLRACE_KERNELS_CPU_QUANTIZE_INL_H_
#else
#define MILLRACE_KERNELS_CPU_QUANTIZE_INL_H_
#endif

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {

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

// The code of a value that is already divided by its scale. Finite x.
HWY_INLINE WordVector encode_e4m3(FloatVector x, bool mutated) {
  const FloatTag d;
  const WordTag du;
  const FloatVector value = round_magnitude<E4m3>(x, mutated);
  const WordVector normal =
      hn::Sub(hn::ShiftRight<20>(hn::BitCast(du, value)), hn::Set(du, 120u << 3));
  const WordVector subnormal =
      hn::BitCast(du, hn::ConvertTo(IntTag(), hn::Mul(value, hn::Set(d, 512))));
  const auto is_small = hn::RebindMask(du, hn::Lt(value, hn::Set(d, E4m3::kSmallestNormal)));
  const WordVector sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80));
  return hn::Or(hn::IfThenElse(is_small, subnormal, normal), sign);
}

// The same for e2m1: its exponent and mantissa are the top bits of value * 2^-126, a denormal.
HWY_INLINE WordVector encode_e2m1(FloatVector x, bool mutated) {
  const FloatTag d;
  const WordTag du;
  const FloatVector value = round_magnitude<E2m1>(x, mutated);
  const WordVector code =
      hn::ShiftRight<22>(hn::BitCast(du, hn::Mul(value, hn::Set(d, 0x1p-126f))));
  const WordVector sign = hn::And(hn::ShiftRight<28>(hn::BitCast(du, x)), hn::Set(du, 8));
  return hn::Or(code, sign);
}

// The scale of a block of nvfp4, an e4m3 number, from the largest magnitude in it.
HWY_INLINE float nvfp4_scale(float amax) {
  const float at_least = amax < 6 * 0x1p-9f ? 6 * 0x1p-9f : amax;
  return hn::GetLane(round_magnitude<E4m3>(hn::Set(FloatTag(), at_least / 6.0f), false));
}

// The ue8m0 code of the scale of a block of mxfp4.
HWY_INLINE uint8_t mxfp4_scale(float amax) {
  const float at_least = amax < 6 * 0x1p-126f ? 6 * 0x1p-126f : amax;
  return ue8m0_ceil(at_least / 6.0f);
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
