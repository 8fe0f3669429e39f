// Vector pieces that several kernels share, once per target. Included inside foreach_target.

#if defined(MILLRACE_KERNELS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_VECTORS_INL_H_
#undef MILLRACE_KERNELS_CPU_VECTORS_INL_H_
#else
#define MILLRACE_KERNELS_CPU_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using WordTag = hn::ScalableTag<uint32_t>;
using IntTag = hn::ScalableTag<int32_t>;
using ShortTag = hn::ScalableTag<int16_t>;
using ByteTag = hn::ScalableTag<uint8_t>;
using FloatVector = hn::Vec<FloatTag>;
using WordVector = hn::Vec<WordTag>;
using IntVector = hn::Vec<IntTag>;
using ShortVector = hn::Vec<ShortTag>;
using ByteVector = hn::Vec<ByteTag>;

// 32-bit lanes of a vector.
constexpr int kLanes = int(hn::MaxLanes(FloatTag()));

#if !HWY_NATIVE_FMA
// a * b + c in double, rounded to odd: the rounding to float that follows is then the only one
// that shows. a, b and c are float values.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V multiply_add_to_odd(D d, V a, V b, V c) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const V product = hn::Mul(a, b);  // 24 + 24 bits: exact
  const V sum = hn::Add(product, c);
  const V part = hn::Sub(sum, product);
  const V error = hn::Add(hn::Sub(product, hn::Sub(sum, part)), hn::Sub(c, part));
  const auto bits = hn::BitCast(du, sum);
  const auto one = hn::Set(du, 1);
  const auto even = hn::Eq(hn::And(bits, one), hn::Zero(du));
  // Neither holds for NaN, so infinities and NaN pass unchanged.
  const auto inexact = hn::Or(hn::Lt(error, hn::Zero(d)), hn::Gt(error, hn::Zero(d)));
  // -1 where the exact value lies towards zero, else +1: the odd neighbour.
  const auto inwards = hn::BroadcastSignBit(hn::BitCast(di, hn::Xor(error, sum)));
  const auto neighbour = hn::Add(bits, hn::Or(hn::BitCast(du, inwards), one));
  return hn::IfThenElse(hn::And(inexact, hn::RebindMask(d, even)), hn::BitCast(d, neighbour), sum);
}
#endif

// a * b + c with one rounding, on every target.
HWY_INLINE FloatVector fused_multiply_add(FloatVector a, FloatVector b, FloatVector c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#elif HWY_TARGET == HWY_EMU128
  // Highway's conversion from double saturates here where it must overflow to infinity.
  const FloatTag d;
  HWY_ALIGN float x[kLanes];
  HWY_ALIGN float y[kLanes];
  HWY_ALIGN float z[kLanes];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (int i = 0; i < kLanes; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return hn::Load(d, z);
#else
  const FloatTag d;
  const hn::Half<FloatTag> half;
  const hn::Repartition<double, FloatTag> wide;
  const auto low = multiply_add_to_odd(wide, hn::PromoteTo(wide, hn::LowerHalf(half, a)),
                                       hn::PromoteTo(wide, hn::LowerHalf(half, b)),
                                       hn::PromoteTo(wide, hn::LowerHalf(half, c)));
  const auto high = multiply_add_to_odd(wide, hn::PromoteTo(wide, hn::UpperHalf(half, a)),
                                        hn::PromoteTo(wide, hn::UpperHalf(half, b)),
                                        hn::PromoteTo(wide, hn::UpperHalf(half, c)));
  return hn::Combine(d, hn::DemoteTo(half, high), hn::DemoteTo(half, low));
#endif
}

// tensor/dtype.h's round_to_bf16 on every lane.
HWY_INLINE FloatVector round_to_bf16(FloatVector x) {
  const FloatTag d;
  const WordTag du;
  const WordVector bits = hn::BitCast(du, x);
  const WordVector odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const WordVector rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const WordVector quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const WordVector top = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
  return hn::BitCast(d, hn::And(top, hn::Set(du, 0xffff0000u)));
}

// Lane i is a[2i] * b[2i] + a[2i + 1] * b[2i + 1], of unsigned and signed bytes. Requires: it fits.
HWY_INLINE ShortVector multiply_byte_pairs(ByteVector a, ByteVector b) {
#if HWY_TARGET == HWY_AVX3
  return ShortVector{_mm512_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return ShortVector{_mm256_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return ShortVector{_mm_maddubs_epi16(a.raw, b.raw)};
#else
  const ShortTag d;
  const ShortVector wide_a = hn::BitCast(d, a), wide_b = hn::BitCast(d, b);
  const ShortVector even_a = hn::And(wide_a, hn::Set(d, 0xff));
  const ShortVector odd_a = hn::And(hn::ShiftRight<8>(wide_a), hn::Set(d, 0xff));
  const ShortVector even_b = hn::ShiftRight<8>(hn::ShiftLeft<8>(wide_b));
  const ShortVector odd_b = hn::ShiftRight<8>(wide_b);
  return hn::Add(hn::Mul(even_a, even_b), hn::Mul(odd_a, odd_b));
#endif
}

// Lane i is a[2i] * b[2i] + a[2i + 1] * b[2i + 1]. Requires: it fits.
HWY_INLINE IntVector multiply_short_pairs(ShortVector a, ShortVector b) {
#if HWY_TARGET == HWY_AVX3
  return IntVector{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return IntVector{_mm256_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return IntVector{_mm_madd_epi16(a.raw, b.raw)};
#else
  const IntTag d;
  const IntVector wide_a = hn::BitCast(d, a), wide_b = hn::BitCast(d, b);
  const IntVector even_a = hn::ShiftRight<16>(hn::ShiftLeft<16>(wide_a));
  const IntVector even_b = hn::ShiftRight<16>(hn::ShiftLeft<16>(wide_b));
  return hn::Add(hn::Mul(even_a, even_b),
                 hn::Mul(hn::ShiftRight<16>(wide_a), hn::ShiftRight<16>(wide_b)));
#endif
}

// sum += multiply_short_pairs(a, b), in the order and the register that stand here: compilers make
// trees of long sums, which need more registers than there are.
HWY_INLINE void add_short_pairs(ShortVector a, ShortVector b, IntVector& sum) {
#if HWY_TARGET == HWY_AVX2
  __m256i products;
  asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sum.raw), "=&x"(products)
      : "x"(a.raw), "x"(b.raw));
#elif HWY_TARGET == HWY_AVX3
  __m512i products;
  asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0"
      : "+v"(sum.raw), "=&v"(products)
      : "v"(a.raw), "v"(b.raw));
#else
  sum = hn::Add(sum, multiply_short_pairs(a, b));
#endif
}

// sum += multiply_byte_pairs(a, b), likewise.
HWY_INLINE void add_byte_pairs(ByteVector a, ByteVector b, ShortVector& sum) {
#if HWY_TARGET == HWY_AVX2
  __m256i products;
  asm("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0"
      : "+x"(sum.raw), "=&x"(products)
      : "x"(b.raw), "x"(a.raw));
#elif HWY_TARGET == HWY_AVX3
  __m512i products;
  asm("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0"
      : "+v"(sum.raw), "=&v"(products)
      : "v"(b.raw), "v"(a.raw));
#else
  sum = hn::Add(sum, multiply_byte_pairs(a, b));
#endif
}

// Lane i is (v[2i] + v[2i + 1]) * factor. Requires: factor fits in 16 bits.
HWY_INLINE IntVector multiply_short_pairs(ShortVector v, int16_t factor) {
  return multiply_short_pairs(v, hn::Set(ShortTag(), factor));
}

// Sixteen bytes of row 0 in the lowest block of a vector, of rows 4, 8, 12 in the blocks above.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const uint8_t* rows, size_t stride) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    return hn::LoadU(d, rows);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, rows + hn::MaxLanes(d) / 8 * stride, stride),
                       load_blocks(half, rows, stride));
  }
}

// Sixteen bytes from each of kLanes rows, transposed: lane i of words[j] is the j-th 32-bit word
// of row i.
HWY_INLINE void load_words(const uint8_t* rows, size_t stride, WordVector words[4]) {
  const ByteTag d;
  const WordTag dw;
  const hn::Repartition<uint64_t, WordTag> dq;
  const WordVector r0 = hn::BitCast(dw, load_blocks(d, rows, stride));
  const WordVector r1 = hn::BitCast(dw, load_blocks(d, rows + stride, stride));
  const WordVector r2 = hn::BitCast(dw, load_blocks(d, rows + 2 * stride, stride));
  const WordVector r3 = hn::BitCast(dw, load_blocks(d, rows + 3 * stride, stride));
  const auto low01 = hn::BitCast(dq, hn::InterleaveLower(dw, r0, r1));
  const auto high01 = hn::BitCast(dq, hn::InterleaveUpper(dw, r0, r1));
  const auto low23 = hn::BitCast(dq, hn::InterleaveLower(dw, r2, r3));
  const auto high23 = hn::BitCast(dq, hn::InterleaveUpper(dw, r2, r3));
  words[0] = hn::BitCast(dw, hn::InterleaveLower(dq, low01, low23));
  words[1] = hn::BitCast(dw, hn::InterleaveUpper(dq, low01, low23));
  words[2] = hn::BitCast(dw, hn::InterleaveLower(dq, high01, high23));
  words[3] = hn::BitCast(dw, hn::InterleaveUpper(dq, high01, high23));
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
