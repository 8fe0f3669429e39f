#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensor/dims.h"

namespace millrace {
namespace {

// The nearest value of `decode(0..count)` to x by exhaustive search, ties to the even code.
template <class Decode>
int nearest_code(float x, int count, Decode decode) {
  int best = 0;
  for (int c = 1; c < count; ++c) {
    const double d = std::fabs(double(decode(uint8_t(c))) - x);
    const double b = std::fabs(double(decode(uint8_t(best))) - x);
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  return best;
}

TEST(Dtype, E4m3EncodesEveryCodeAndEveryMidpointToNearestEven) {
  for (int c = 0; c < 127; ++c) {
    const float value = e4m3_to_float(uint8_t(c));
    EXPECT_EQ(float_to_e4m3(value), c);
    EXPECT_EQ(float_to_e4m3(-value), c | 0x80);
    if (c == 126) break;
    const float middle = (value + e4m3_to_float(uint8_t(c + 1))) / 2;
    for (float x : {std::nextafterf(middle, 0.f), middle, std::nextafterf(middle, 500.f)}) {
      EXPECT_EQ(float_to_e4m3(x), nearest_code(x, 127, e4m3_to_float)) << x;
    }
  }
}

TEST(Dtype, E2m1EncodesEveryCodeAndEveryMidpointToNearestEven) {
  for (int c = 0; c < 8; ++c) {
    const float value = e2m1_to_float(uint8_t(c));
    EXPECT_EQ(float_to_e2m1(value), c);
    EXPECT_EQ(float_to_e2m1(-value), c | 8);
    if (c == 7) break;
    const float middle = (value + e2m1_to_float(uint8_t(c + 1))) / 2;
    for (float x : {std::nextafterf(middle, 0.f), middle, std::nextafterf(middle, 7.f)}) {
      EXPECT_EQ(float_to_e2m1(x), nearest_code(x, 8, e2m1_to_float)) << x;
    }
  }
}

TEST(Dtype, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(round_to_bf16(1.0f + 0x1p-8f), 1.0f);            // tie to even
  EXPECT_EQ(round_to_bf16(1.0f + 0x3p-8f), 1.0f + 0x1p-6f);  // tie to even, upwards
  EXPECT_EQ(round_to_bf16(-3.1f), -3.09375f);
  EXPECT_TRUE(std::isnan(round_to_bf16(NAN)));
  EXPECT_EQ(round_to_bf16(INFINITY), INFINITY);
}

TEST(Dtype, Ue8m0IsAPowerOfTwoAndItsCeilingIsExact) {
  EXPECT_EQ(ue8m0_to_float(127), 1.0f);
  EXPECT_EQ(ue8m0_to_float(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(ue8m0_to_float(255)));
  EXPECT_EQ(ue8m0_ceil(0.5f), 126);
  EXPECT_EQ(ue8m0_ceil(std::nextafterf(0.5f, 1.f)), 127);
}

TEST(DimsDeathTest, AMismatchNamesTheOperationTheSymbolAndBothSizes) {
  EXPECT_DEATH(Dims("matmul").bind('K', 5120).bind('N', 7).bind('K', 2304),
               "matmul: dimension K is 2304 here and 5120 there");
}

}  // namespace
}  // namespace millrace
