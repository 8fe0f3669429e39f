#pragma once

// Randomness as a function of a seed. Bits, integers and uniform() are the same on every machine;
// what is made with logarithms and cosines is, with the same mathematical library.

#include <cmath>
#include <cstdint>

namespace millrace {

inline uint64_t mix64(uint64_t x) {  // the finaliser of SplitMix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline uint64_t mix64(uint64_t a, uint64_t b) { return mix64(mix64(a) ^ b); }

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(mix64(seed)) {}

  uint64_t bits() { return mix64(seed_, next_++); }
  // Above 0, at most 1.
  double uniform() { return (double(bits() >> 11) + 1) * 0x1p-53; }
  // least..most, both included. Requires: least <= most.
  int64_t between(int64_t least, int64_t most) {
    const uint64_t count = uint64_t(most - least) + 1;
    return least + int64_t(bits() % count);  // counts are small beside 2^64: no bias to be seen
  }
  double exponential() { return -std::log(uniform()); }  // mean 1
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  double gamma(double shape);  // mean `shape`. Requires: shape > 0

 private:
  uint64_t seed_, next_ = 0;
};

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
inline double Random::gamma(double shape) {
  if (shape < 1) {
    const double more = gamma(shape + 1);
    return more * std::pow(uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(), t = 1 + c * x;
    if (t <= 0) continue;
    const double v = t * t * t;
    if (std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace millrace
