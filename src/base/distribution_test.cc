#include "base/distribution.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

TEST(Distribution, InterpolatesBetweenOrderStatisticsAtRankNMinusOneTimesP) {
  // Ranks of 4 values: 0 to 3; the median lies at 1.5, the 90th percentile at 2.7.
  const Distribution d = distribution({40, 10, 30, 20});
  EXPECT_EQ(d.n, 4);
  EXPECT_DOUBLE_EQ(d.mean, 25);
  EXPECT_DOUBLE_EQ(d.std, std::sqrt(125.0));
  EXPECT_DOUBLE_EQ(d.p50, 25);
  EXPECT_DOUBLE_EQ(d.p75, 32.5);
  EXPECT_DOUBLE_EQ(d.p90, 37);
  EXPECT_DOUBLE_EQ(d.p95, 38.5);
  EXPECT_DOUBLE_EQ(d.p99, 39.7);
  EXPECT_DOUBLE_EQ(d.max, 40);
}

TEST(Distribution, OfOneValueIsThatValueAndOfNoneHasNoValues) {
  const Distribution one = distribution({7});
  for (const double value : {one.mean, one.p50, one.p99, one.max}) EXPECT_DOUBLE_EQ(value, 7);
  EXPECT_DOUBLE_EQ(one.std, 0);
  EXPECT_EQ(distribution({}).n, 0);
}

TEST(Distribution, AWeightIsAsGoodAsSoManyValues) {
  const Distribution weighted = distribution({5, 1, 3}, {2, 3, 1});
  const Distribution listed = distribution({1, 1, 1, 3, 5, 5});
  EXPECT_EQ(weighted.n, listed.n);
  EXPECT_DOUBLE_EQ(weighted.mean, listed.mean);
  EXPECT_DOUBLE_EQ(weighted.std, listed.std);
  EXPECT_DOUBLE_EQ(weighted.p50, listed.p50);
  EXPECT_DOUBLE_EQ(weighted.p75, listed.p75);
  EXPECT_DOUBLE_EQ(weighted.p90, listed.p90);
  EXPECT_DOUBLE_EQ(weighted.max, listed.max);
}

}  // namespace
}  // namespace millrace
