#include "base/print.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(AppendPrintf, AddsToWhatIsThere) {
  std::string out = "a";
  append_printf(out, "%3d|%-4s|", 7, "b");
  append_printf(out, "%s", "");
  EXPECT_EQ(out, "a  7|b   |");
}

TEST(AppendPrintf, HasNoLongestLine) {
  const std::string text(10'000, 'x');
  std::string out;
  append_printf(out, "<%s>", text.c_str());
  EXPECT_EQ(out, "<" + text + ">");
}

}  // namespace
}  // namespace millrace
