#include "base/status.h"

#include <gtest/gtest.h>

#include "base/format.h"

namespace millrace {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return Error{Code::kInvalidArgument, format("half: ", n, " is odd")};
  return n / 2;
}

Result<int> quarter(int n) {
  ASSIGN_OR_RETURN(const int h, half(n));
  return half(h);
}

Status is_multiple_of_four(int n) {
  RETURN_IF_ERROR(quarter(n));
  return {};
}

TEST(Status, ErrorsTravelThroughBothMacrosUnchanged) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).error().message, "half: 3 is odd");
  EXPECT_TRUE(is_multiple_of_four(8).ok());
  EXPECT_EQ(is_multiple_of_four(2).error().message, "half: 1 is odd");
  EXPECT_EQ(is_multiple_of_four(2).error().code, Code::kInvalidArgument);
}

TEST(StatusDeathTest, ReadingTheValueOfAnErrorStopsTheProgram) {
  EXPECT_DEATH((void)half(1).value(), "check failed: has_value");
}

TEST(StatusDeathTest, ComparisonsPrintBothValues) {
  EXPECT_DEATH(MR_CHECK_OP(2 + 2, ==, 5), "4 against 5");
}

}  // namespace
}  // namespace millrace
