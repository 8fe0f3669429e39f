// Rows of keys to floats, and queries beside them, once per target. Included inside foreach_target.

#if defined(MILLRACE_KERNELS_CPU_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_KEYS_INL_H_
#undef MILLRACE_KERNELS_CPU_KEYS_INL_H_
#else
#define MILLRACE_KERNELS_CPU_KEYS_INL_H_
#endif

#include "kernels/cpu/lanes-inl.h"
#include "tensor/key_format.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {

// e4m3 codes: where a float has them, their bits are the value * 2^-120.
HWY_INLINE FloatVector decode_e4m3(const uint8_t* codes) {
  const WordTag d;
  const hn::Rebind<uint8_t, WordTag> bytes;
  const WordVector code = hn::PromoteTo(d, hn::LoadU(bytes, codes));
  const WordVector magnitude = hn::ShiftLeft<20>(hn::And(code, hn::Set(d, 0x7f)));
  const WordVector sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(d, 0x80)));
  return hn::Mul(hn::BitCast(FloatTag(), hn::Or(magnitude, sign)), hn::Set(FloatTag(), 0x1p120f));
}

// e2m1 codes, one in each byte: their bits are the value * 2^-126.
HWY_INLINE FloatVector decode_e2m1(const uint8_t* nibbles) {
  const WordTag d;
  const hn::Rebind<uint8_t, WordTag> bytes;
  const WordVector code = hn::PromoteTo(d, hn::LoadU(bytes, nibbles));
  const WordVector magnitude = hn::ShiftLeft<22>(hn::And(code, hn::Set(d, 7)));
  const WordVector sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(d, 8)));
  return hn::Mul(hn::BitCast(FloatTag(), hn::Or(magnitude, sign)), hn::Set(FloatTag(), 0x1p126f));
}

// The codes of eight bytes of pairs, one in each byte.
HWY_INLINE void split_nibbles(const uint8_t* pairs, uint8_t* nibbles /*[16]*/) {
  const hn::FixedTag<uint8_t, 8> half;
  const hn::FixedTag<uint8_t, 16> whole;
  const auto both = hn::ZeroExtendVector(whole, hn::LoadU(half, pairs));
  const hn::FixedTag<uint16_t, 8> shorts;
  const auto high = hn::BitCast(whole, hn::ShiftRight<4>(hn::BitCast(shorts, both)));
  const auto fifteen = hn::Set(whole, 15);
  hn::Store(hn::InterleaveLower(whole, hn::And(both, fifteen), hn::And(high, fifteen)), whole,
            nibbles);
}

HWY_INLINE void unpack_fp4(const uint8_t* codes, int64_t count, float scale, float* out) {
  HWY_ALIGN uint8_t nibbles[16];
  const FloatVector s = hn::Set(FloatTag(), scale);
  for (int64_t i = 0; i < count; i += 16) {
    split_nibbles(codes + i / 2, nibbles);
    for (int64_t j = 0; j < 16; j += kLanes) {
      hn::StoreU(hn::Mul(decode_e2m1(nibbles + j), s), FloatTag(), out + i + j);
    }
  }
}

// One row of `width` keys.
HWY_INLINE void unpack_row(KeyFormat format, const std::byte* row, int64_t width, float* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  switch (format) {
    case KeyFormat::kF32:
      __builtin_memcpy(out, row, size_t(width) * sizeof(float));
      return;
    case KeyFormat::kMxfp8:
      for (int64_t at = 0; at < width; at += 32) {
        const FloatVector scale = hn::Set(FloatTag(), ue8m0_to_float(codes[width + at / 32]));
        for (int64_t i = at; i < at + 32; i += kLanes) {
          hn::StoreU(hn::Mul(decode_e4m3(codes + i), scale), FloatTag(), out + i);
        }
      }
      return;
    case KeyFormat::kNvfp4:
      for (int64_t at = 0; at < width; at += 16) {
        unpack_fp4(codes + at / 2, 16, nvfp4_scale_value(codes[width / 2 + at / 16]), out + at);
      }
      return;
    case KeyFormat::kMxfp4:
      for (int64_t at = 0; at < width; at += 32) {
        unpack_fp4(codes + at / 2, 32, ue8m0_to_float(codes[width / 2 + at / 32]), out + at);
      }
      return;
  }
}

// Queries `q` [heads, size] transposed: out[d * width + h]. Heads up to the width are zero.
HWY_INLINE void transpose_heads(const float* q, int64_t head_stride, int64_t size, int64_t heads,
                                int64_t width, float* out) {
  for (int64_t d = 0; d < size; ++d) {
    for (int64_t h = 0; h < heads; ++h) out[d * width + h] = q[h * head_stride + d];
    for (int64_t h = heads; h < width; ++h) out[d * width + h] = 0;
  }
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
