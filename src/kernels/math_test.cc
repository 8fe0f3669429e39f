#include "kernels/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace {
namespace {

// Distance in units of the last place of the nearest float to `want`.
double ulps(float got, double want) {
  const float nearest = float(want);
  const double ulp = double(std::nextafterf(std::fabs(nearest), INFINITY)) - std::fabs(nearest);
  return std::fabs(double(got) - want) / ulp;
}

TEST(Math, ExpF32StaysWithinOneAndAHalfUlpOverItsWholeRange) {
  double worst = 0;
  for (float x = kExpMin; x <= kExpMax; x += 0.0037f) worst = std::max(worst, ulps(exp_f32(x), std::exp(double(x))));
  EXPECT_LT(worst, 1.5);
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-1e30f), 0.0f);
  EXPECT_EQ(exp_f32(-INFINITY), 0.0f);
  EXPECT_EQ(exp_f32(89.0f), INFINITY);
  EXPECT_TRUE(std::isnan(exp_f32(NAN)));
  EXPECT_GE(exp_f32(kExpMin), 0x1p-126f);
  EXPECT_LT(exp_f32(kExpMax), INFINITY);
}

TEST(Math, DoubleFunctionsAgreeWithLibmToTwoUlp) {
  for (double x = -700; x < 700; x += 0.371) {
    EXPECT_NEAR(exp_f64(x) / std::exp(x), 1.0, 4.5e-16) << x;
  }
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    const double want = std::log(x);
    EXPECT_NEAR(log_f64(x), want, 4.5e-16 * std::max(1.0, std::fabs(want))) << x;
  }
  for (double x : {0.5, 0.99, 1.0, 1.0000001, 1.5, 1.4142135623730951}) {
    EXPECT_NEAR(log_f64(x), std::log(x), 2.3e-16 * std::fabs(std::log(x)) + 1e-30) << x;
  }
  EXPECT_EQ(log_f64(0), -INFINITY);
  EXPECT_TRUE(std::isnan(log_f64(-1)));
}

TEST(Math, SineAndCosineHoldForAnglesOfAMillionPositions) {
  for (double x = 0; x < 1.1e6; x = x * 1.01 + 0.013) {
    double s, c;
    sincos_f64(double(float(x)), s, c);
    EXPECT_NEAR(s, std::sin(double(float(x))), 4e-16) << x;
    EXPECT_NEAR(c, std::cos(double(float(x))), 4e-16) << x;
  }
}

TEST(Math, SoftplusMatchesItsDefinitionInBothTails) {
  for (float x = -80; x < 20; x += 0.13f) EXPECT_LT(ulps(softplus_f32(x), std::log1p(std::exp(double(x)))), 0.51) << x;
  EXPECT_EQ(softplus_f32(25.0f), 25.0f);
  // Published checks of the activation.
  const float logits[] = {-3, -1, 0, .5f, 2, 25};
  const float scores[] = {.2204254f, .5596979f, .8325546f, .9869534f, 1.4583991f, 5.0f};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(std::sqrt(softplus_f32(logits[i])), scores[i], 2e-7);
}

TEST(Math, RopeFrequenciesReproduceThePublishedValues) {
  std::vector<float> f(32);
  const YarnParameters yarn{16, 32, 1, 65536};
  rope_frequencies(160000, &yarn, f);
  EXPECT_EQ(f[0], 1.0f);
  EXPECT_NEAR(f[1] / .687656022, 1.0, 1e-7);
  EXPECT_NEAR(f[15] / .00363553858, 1.0, 1e-7);
  EXPECT_NEAR(f[16] / .00226562500, 1.0, 1e-7);
  EXPECT_NEAR(f[20] / 2.96977778e-4, 1.0, 1e-7);
  EXPECT_NEAR(f[24] / 1.953125e-5, 1.0, 1e-7);
  EXPECT_NEAR(f[25] / 5.37231267e-6, 1.0, 1e-7);
  EXPECT_NEAR(f[31] / 5.68052904e-7, 1.0, 1e-7);
  std::vector<float> mini(8);  // d(32) < 0 and d(1) = 1.752: ramp 0, 0.5, 1, 1, ...
  const YarnParameters mini_yarn{16, 32, 1, 64};
  rope_frequencies(40000, &mini_yarn, mini);
  const double plain = std::pow(40000.0, -2.0 / 16);
  EXPECT_NEAR(mini[1] / (plain / 16 * 0.5 + plain * 0.5), 1.0, 1e-7);
  EXPECT_NEAR(mini[2] / (std::pow(40000.0, -4.0 / 16) / 16), 1.0, 1e-7);
}

}  // namespace
}  // namespace millrace
