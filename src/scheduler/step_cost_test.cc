#include "scheduler/step_cost.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace millrace {
namespace {

double linear(int64_t rows) { return 12 + 0.5 * double(rows); }

TEST(StepCost, KnowsNothingBeforeTheFirstStep) {
  const StepCost cost;
  EXPECT_FALSE(cost.is_measured());
  EXPECT_EQ(cost.estimate_ms(100), 0);
}

TEST(StepCost, BetweenMeasurementsTheCurveIsStraight) {
  StepCost cost;
  cost.add(10, linear(10));
  cost.add(1000, linear(1000));
  for (int64_t rows : {10, 11, 100, 640, 1000}) {
    EXPECT_NEAR(cost.estimate_ms(rows), linear(rows), 1e-9) << rows;
  }
}

TEST(StepCost, OutsideOfThemItIsCareful) {
  StepCost cost;
  cost.add(10, 100);
  EXPECT_EQ(cost.estimate_ms(1), 100);   // what fewer rows save is not known
  EXPECT_EQ(cost.estimate_ms(20), 200);  // nothing is fixed, as far as we know
  EXPECT_EQ(cost.rows_within(99), 0);
  EXPECT_EQ(cost.rows_within(100), 10);
  EXPECT_EQ(cost.rows_within(150), 15);
  EXPECT_EQ(cost.rows_within(1e9), 20);  // at most twice as many as were ever tried
}

TEST(StepCost, ForLinearCostsNoEstimateIsBelowTheTruth) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    StepCost cost;
    for (int i = 0; i < 30; ++i) {
      const int64_t rows = 1 + int64_t(random() % (1u << (random() % 12)));
      cost.add(rows, linear(rows));
      const int64_t within = cost.rows_within(100);
      EXPECT_LE(linear(within), within > 0 ? 100 + 1e-9 : 12) << "seed " << seed;
      for (int64_t r = 1; r < 4096; r += 17) {
        ASSERT_GE(cost.estimate_ms(r), linear(r) - 1e-9) << "seed " << seed << " rows " << r;
      }
    }
  }
}

TEST(StepCost, ConvergesOnTheRowsThatFit) {
  StepCost cost;
  int64_t rows = 1;
  for (int i = 0; i < 60; ++i) {
    cost.add(rows, linear(rows));
    rows = cost.rows_within(250);
  }
  EXPECT_NEAR(double(rows), 476, 1);  // 12 + 0.5 * 476 = 250
}

TEST(StepCost, OneSlowStepChangesLittle) {
  StepCost cost;
  for (int i = 0; i < 5; ++i) cost.add(64, 40);
  cost.add(64, 4000);
  EXPECT_EQ(cost.estimate_ms(64), 40);
  cost.add(64, 4000);
  EXPECT_EQ(cost.estimate_ms(64), 40);
  cost.add(64, 4000);  // three of five: that is how it is now
  EXPECT_EQ(cost.estimate_ms(64), 4000);
}

TEST(StepCost, OneSlowStepOfASizeOfItsOwnIsIgnoredOnceOthersAreKnown) {
  StepCost cost;
  cost.add(500, 20000);  // weights came from disk
  EXPECT_EQ(cost.rows_within(100), 0);
  for (int i = 0; i < 3; ++i) cost.add(10, 50);
  EXPECT_EQ(cost.rows_within(100), 20);
}

TEST(StepCost, ASlowStartIsForgotten) {
  StepCost cost;
  for (int i = 0; i < 5; ++i) cost.add(500, 20000);
  for (int64_t step = 0; step <= StepCost::kMaxAge; ++step) cost.add(100, 50);
  EXPECT_EQ(cost.rows_within(100), 200);
}

TEST(StepCost, MoreRowsNeverSeemToTakeLessTime) {
  StepCost cost;
  cost.add(10, 80);
  cost.add(100, 60);
  EXPECT_EQ(cost.estimate_ms(100), 80);
  for (int64_t rows = 1; rows < 200; ++rows) {
    EXPECT_LE(cost.estimate_ms(rows), cost.estimate_ms(rows + 1));
  }
}

TEST(StepCost, WhatIsNoTimeIsNoMeasurement) {
  StepCost cost;
  cost.add(10, std::numeric_limits<double>::quiet_NaN());
  cost.add(10, std::numeric_limits<double>::infinity());
  cost.add(10, -1);
  EXPECT_FALSE(cost.is_measured());
}

}  // namespace
}  // namespace millrace
