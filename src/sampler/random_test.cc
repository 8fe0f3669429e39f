#include "sampler/random.h"

#include <gtest/gtest.h>

#include <set>

namespace millrace {
namespace {

double sample(uint64_t seed, int64_t position, uint32_t choice_idx) {
  return uniform01(seed, position, choice_idx, RandomPurpose::kSample);
}

TEST(Uniform01, IsTheDocumentedFunction) {
  // Computed with the formula in random.h in arbitrary-precision integers.
  EXPECT_EQ(sample(0, 0, 0), 0x1.cd364143cce48p-4);
  EXPECT_EQ(sample(1, 0, 0), 0x1.716c9226cc6fap-2);
  EXPECT_EQ(sample(42, 1000, 3), 0x1.82a9134b4f15bp-1);
  EXPECT_EQ(sample(~uint64_t{0}, int64_t{1} << 40, ~uint32_t{0}), 0x1.c187e00c8ec7bp-1);
}

TEST(Uniform01, EveryArgumentMatters) {
  std::set<double> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (int64_t position = 0; position < 20; ++position) {
      for (uint32_t choice = 0; choice < 20; ++choice) {
        const double u = sample(seed, position, choice);
        EXPECT_GE(u, 0.0);
        EXPECT_LT(u, 1.0);
        seen.insert(u);
      }
    }
  }
  EXPECT_EQ(seen.size(), 8000u);
}

TEST(Uniform01, FillsTheIntervalEvenlyAlongEveryArgument) {
  constexpr int kDraws = 64000, kBins = 64;
  for (int along = 0; along < 3; ++along) {
    int count[kBins] = {};
    for (int i = 0; i < kDraws; ++i) {
      const double u = along == 0 ? sample(uint64_t(i), 7, 0)
                       : along == 1 ? sample(7, i, 0)
                                    : sample(7, 7, uint32_t(i));
      ++count[int(u * kBins)];
    }
    double chi_square = 0;
    for (int n : count) chi_square += (n - 1000.0) * (n - 1000.0) / 1000.0;
    EXPECT_LT(chi_square, 117) << "argument " << along;  // 63 degrees of freedom: p = 4e-5
  }
}

}  // namespace
}  // namespace millrace
