#include "kernels/math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace millrace {
namespace {

constexpr double kLn2Hi = 0x1.62e42fefa3p-1;  // 41 bits: n * kLn2Hi is exact for |n| < 2^12
constexpr double kLn2Lo = 0x1.3de6af278ece6p-42;
constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer

// 2^n for -1022 <= n <= 1023.
double power_of_two(int64_t n) { return std::bit_cast<double>(uint64_t(n + 1023) << 52); }

}  // namespace

float exp_f32(float x) {
  if (x > kExpMax) return std::numeric_limits<float>::infinity();
  if (x < kExpMin) return 0.0f;
  if (x != x) return x;
  const float t = std::fma(x, kExpLog2e, kExpMagic);
  const float n = t - kExpMagic;
  const float r = std::fma(-n, kExpLn2Lo, std::fma(-n, kExpLn2Hi, x));
  float p = kExpPoly[0];
  for (int i = 1; i < 7; ++i) p = std::fma(p, r, kExpPoly[i]);
  const int32_t exponent = std::bit_cast<int32_t>(t) - std::bit_cast<int32_t>(kExpMagic);
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return (p * first) * second;
}

float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

double exp_f64(double x) {
  if (x > 709.78) return std::numeric_limits<double>::infinity();
  if (x < -708.39) return 0.0;
  if (x != x) return x;
  const double n = (x * 0x1.71547652b82fep+0 + kMagic) - kMagic;
  const double r = (x - n * kLn2Hi) - n * kLn2Lo;
  double p = 1.0;
  for (int i = 14; i >= 1; --i) p = 1.0 + r * p / i;  // Taylor: |r| < 0.347, the rest is < 2^-60
  const int64_t exponent = int64_t(n);
  return p * power_of_two(exponent >> 1) * power_of_two(exponent - (exponent >> 1));
}

double log_f64(double x) {
  if (!(x > 0)) {
    return x == 0 ? -std::numeric_limits<double>::infinity()
                  : std::numeric_limits<double>::quiet_NaN();
  }
  if (x == std::numeric_limits<double>::infinity()) return x;
  int64_t exponent = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent = -54;
  }
  uint64_t u = std::bit_cast<uint64_t>(x);
  exponent += int64_t(u >> 52) - 1023;
  double m = std::bit_cast<double>((u & 0xfffffffffffffull) | (uint64_t{1023} << 52));
  if (m > 0x1.6a09e667f3bcdp+0) {  // sqrt 2
    m *= 0.5;
    exponent += 1;
  }
  // log m = 2 atanh(s) with |s| < 0.172: the odd series, 12 terms.
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double p = 0;
  for (int i = 23; i >= 3; i -= 2) p = p * s2 + 1.0 / i;
  const double log_m = 2.0 * s + 2.0 * s * s2 * p;
  return double(exponent) * kLn2Hi + (log_m + double(exponent) * kLn2Lo);
}

float softplus_f32(float x) {
  if (x > 20.0f) return x;
  const double e = exp_f64(double(x));
  const double u = 1.0 + e;
  // The factor undoes the rounding of 1 + e, which matters where e is small.
  return u == 1.0 ? float(e) : float(log_f64(u) * (e / (u - 1.0)));
}

void sincos_f64(double x, double& sine, double& cosine) {
  // pi / 2 in pieces of 25 bits: quadrant * piece is exact for quadrants below 2^28.
  constexpr double kPieces[] = {0x1.921fb5p+0, 0x1.110b46p-26, 0x1.1a6263p-54,
                                0x1.8a2e03707344ap-81};
  const double quadrant = (x * 0x1.45f306dc9c883p-1 + kMagic) - kMagic;
  double r = x;
  for (double piece : kPieces) r -= quadrant * piece;
  const double r2 = r * r;
  double s = 1.0, c = 1.0;  // Taylor on |r| <= pi / 4
  for (int i = 20; i >= 2; i -= 2) s = 1.0 - r2 * s / double(i * (i + 1));
  for (int i = 20; i >= 2; i -= 2) c = 1.0 - r2 * c / double((i - 1) * i);
  s *= r;
  switch (int64_t(quadrant) & 3) {
    case 0: sine = s, cosine = c; break;
    case 1: sine = c, cosine = -s; break;
    case 2: sine = -s, cosine = -c; break;
    default: sine = -c, cosine = s; break;
  }
}

void rope_frequencies(double base, const YarnParameters* yarn, std::span<float> frequencies) {
  const double rope_dim = 2.0 * double(frequencies.size());
  const double log_base = log_f64(base);
  double low = 0, high = 1;
  if (yarn != nullptr) {
    constexpr double kTwoPi = 0x1.921fb54442d18p+2;
    const auto correction_dim = [&](double beta) {
      return rope_dim * log_f64(yarn->original_max_position_embeddings / (beta * kTwoPi)) /
             (2.0 * log_base);
    };
    low = std::max(std::floor(correction_dim(yarn->beta_fast)), 0.0);
    high = std::min(std::ceil(correction_dim(yarn->beta_slow)), rope_dim - 1.0);
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double f = exp_f64(-2.0 * double(i) / rope_dim * log_base);
    if (yarn == nullptr) {
      frequencies[i] = float(f);
      continue;
    }
    const double ramp = std::clamp((double(i) - low) / std::max(high - low, 0.001), 0.0, 1.0);
    frequencies[i] = float(f / yarn->factor * ramp + f * (1.0 - ramp));
  }
}

void rope_table(std::span<const int64_t> positions, std::span<const float> frequencies,
                Matrix<float> cos, Matrix<float> sin) {
  MR_CHECK_OP(cos.shape[1], ==, int64_t(frequencies.size()));
  MR_CHECK_OP(sin.shape[1], ==, int64_t(frequencies.size()));
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const float angle = float(positions[t]) * frequencies[i];
      double s, c;
      sincos_f64(double(angle), s, c);
      cos.row(t)[i] = float(c);
      sin.row(t)[i] = float(s);
    }
  }
}

}  // namespace millrace
