#pragma once

// The number formats of the checkpoint and of the KV cache, as scalar functions.
// All conversions round to nearest, ties to even, and are exact in the other direction.

#include <bit>
#include <cstdint>

namespace millrace {

// A bfloat16 number by its bits.
struct bf16 {
  uint16_t bits;
};

constexpr float to_float(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

constexpr bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {uint16_t((u >> 16) | 0x40)};  // NaN stays NaN
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

// x rounded to the nearest bf16, kept in a float.
constexpr float round_to_bf16(float x) { return to_float(to_bf16(x)); }

// ue8m0 scale: 2^(code - 127); 255 is NaN.
constexpr float ue8m0_to_float(uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  if (code == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127, a denormal
  return std::bit_cast<float>(uint32_t(code) << 23);
}

// OCP e4m3fn: bias 7, largest 448, no infinity; 0x7f and 0xff are NaN by the standard. No
// released weight and no quantised activation uses them, and kernels read them as the number
// the other codes suggest, +-480, so that decoding needs no test.
constexpr float e4m3_to_float(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const float magnitude =
      exponent == 0 ? float(mantissa) * 0x1p-9f
                    : std::bit_cast<float>(uint32_t(exponent + 120) << 23 | uint32_t(mantissa) << 20);
  return (code & 0x80) ? -magnitude : magnitude;
}

// Requires: |x| <= 448 (clamp first). Keeps the sign of zero.
constexpr uint8_t float_to_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint8_t sign = uint8_t((u >> 24) & 0x80);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude < 0x3c800000u) {  // below 2^-6: subnormal, steps of 2^-9
    // Adding 2^14 leaves steps of 2^-9 in the mantissa's last bit, rounded by the hardware's rule.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | uint8_t(std::bit_cast<uint32_t>(shifted) & 0xff);
  }
  const uint32_t rounded = magnitude + 0x7ffff + ((magnitude >> 20) & 1);
  return sign | uint8_t((rounded >> 20) - (120u << 3));
}

// e2m1: {0, .5, 1, 1.5, 2, 3, 4, 6} with a sign in bit 3.
inline constexpr float kE2m1Values[16] = {0,   0.5f,  1,   1.5f,  2,   3,   4,   6,
                                          -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr float e2m1_to_float(uint8_t code) { return kE2m1Values[code & 15]; }

// Requires: |x| <= 6 (clamp first). Midpoints go to the even code; the sign of zero is kept.
constexpr uint8_t float_to_e2m1(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint8_t sign = uint8_t((u >> 28) & 8);
  const float m = std::bit_cast<float>(u & 0x7fffffffu);
  const uint8_t code = m <= 0.25f   ? 0
                       : m < 0.75f  ? 1
                       : m <= 1.25f ? 2
                       : m < 1.75f  ? 3
                       : m <= 2.5f  ? 4
                       : m < 3.5f   ? 5
                       : m <= 5.0f  ? 6
                                    : 7;
  return sign | code;
}

// The ue8m0 code of the smallest power of two that is >= x. Requires: x > 0, normal, finite.
constexpr uint8_t ue8m0_ceil(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return uint8_t((u >> 23) + ((u & 0x7fffff) != 0));
}

}  // namespace millrace
