#include "base/arena.h"

#include <gtest/gtest.h>

#include <cstring>

namespace millrace {
namespace {

TEST(Arena, AllocationsAreAlignedAndDoNotOverlap) {
  Arena arena;
  std::vector<unsigned char*> parts;
  for (int i = 0; i < 200; ++i) {
    auto* p = arena.allocate<unsigned char>(i * 997 + 1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    std::memset(p, i, size_t(i) * 997 + 1);
    parts.push_back(p);
  }
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(parts[size_t(i)][0], i);
    EXPECT_EQ(parts[size_t(i)][i * 997], i);
  }
}

TEST(Arena, AScopeGivesBackWhatItTookSoARepeatedStepDoesNotGrow) {
  Arena arena;
  const auto step = [&] {
    const Arena::Scope scope(arena);
    for (int i = 0; i < 50; ++i) arena.allocate<float>(100000);
  };
  step();
  const size_t after_one = arena.reserved_bytes();
  for (int i = 0; i < 100; ++i) step();
  EXPECT_EQ(arena.reserved_bytes(), after_one);
}

}  // namespace
}  // namespace millrace
