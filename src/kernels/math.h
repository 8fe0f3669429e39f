#pragma once

// The transcendental functions of the forward pass and of the sampler. They are ours because libm
// differs between machines and releases: these give the same bits everywhere. Plain functions,
// not inline: code built for one instruction set must not leak into another (docs/numerics.md).

#include <cstdint>
#include <span>

#include "tensor/tensor_view.h"

namespace millrace {

// Single precision, one fixed sequence of fp32 operations with explicit fma, which vector code
// repeats lane by lane. Error below 1.5 ulp; never a denormal.
float exp_f32(float x);
// 1 / (1 + exp(-x)).
float sigmoid_f32(float x);

// Double precision, about 1 ulp, for scalar work: sampler, router, tables.
double exp_f64(double x);
double log_f64(double x);  // x > 0; 0 gives -infinity, negative and NaN give NaN
// sin and cos of an angle in radians, |x| <= 2^27.
void sincos_f64(double x, double& sine, double& cosine);

// log(1 + exp(x)), or x itself above 20; computed in double, rounded once.
float softplus_f32(float x);

// How exp_f32 goes, for the vector versions: t = fma(x, kExpLog2e, kExpMagic); n = t - kExpMagic;
// r = fma(-n, kExpLn2Lo, fma(-n, kExpLn2Hi, x)); p = Horner by fma over kExpPoly, highest power
// first; p * 2^(n >> 1) * 2^(n - (n >> 1)), left to right; infinity above kExpMax, 0 below kExpMin.
inline constexpr float kExpLog2e = 0x1.715476p+0f;
inline constexpr float kExpMagic = 0x1.8p+23f;  // adding it rounds to an integer
inline constexpr float kExpLn2Hi = 0x1.62e4p-1f;
inline constexpr float kExpLn2Lo = 0x1.7f7d1cp-20f;
inline constexpr float kExpPoly[7] = {0x1.6cdf66p-10f, 0x1.11d9c6p-7f, 0x1.55553ep-5f,
                                      0x1.555524p-3f,  0x1p-1f,        0x1p+0f, 0x1p+0f};
inline constexpr float kExpMax = 0x1.62e42ep+6f;
inline constexpr float kExpMin = -0x1.5d589ep+6f;

// Rotary frequencies for `count` pairs: base^(-2i / (2 count)), fp32.
struct YarnParameters {
  double factor;
  double beta_fast, beta_slow;
  double original_max_position_embeddings;
};
void rope_frequencies(double base, const YarnParameters* yarn, std::span<float> frequencies);

// cos and sin of float(position) * frequency (an fp32 product), [T, count] each.
void rope_table(std::span<const int64_t> positions, std::span<const float> frequencies,
                Matrix<float> cos, Matrix<float> sin);

}  // namespace millrace
