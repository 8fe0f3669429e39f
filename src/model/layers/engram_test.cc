#include "model/layers/engram.h"

#include <gtest/gtest.h>

#include <vector>

#include "sys/reserved_memory.h"

namespace millrace {
namespace {

// What a disk is asked for takes its time and memory, also where nobody reads it.
TEST(ReadEngramAhead, AsksForRowsOfTokensThatGoIntoTheLayerAndHaveMemory) {
  constexpr int64_t kRows = int64_t{1} << 20, kWidth = 256, kColumns = 3;
  const ReservedMemory memory = std::move(ReservedMemory::reserve(2 * kRows * kWidth).value());
  const auto* bytes = reinterpret_cast<const uint8_t*>(memory.bytes().data());
  const Fp8Table large{bytes, bytes + kRows * kWidth, kRows, kWidth};
  const Fp8Table small{bytes, bytes + kRows * kWidth, kRows - 1, kWidth};
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 4 * kColumns; ++i) ids.push_back(i * 1000);
  const auto num_asked = [&](const Fp8Table& table, std::vector<int32_t> tokens) {
    const uint8_t dead[] = {0, 0, 1, 0};
    ReadAhead ahead;
    read_engram_ahead(table, {ids.data(), {4, kColumns}}, tokens, dead, ahead);
    return int64_t(ahead.num_waiting());
  };
  constexpr int64_t kOfToken = 2 * kColumns;  // codes and scales
  EXPECT_EQ(num_asked(large, {0, 1, 2, 3}), 3 * kOfToken);
  EXPECT_EQ(num_asked(large, {2, 3}), kOfToken);
  EXPECT_EQ(num_asked(large, {}), 0);
  EXPECT_EQ(num_asked(small, {0, 1, 2, 3}), 0) << "it stays in memory";
}

}  // namespace
}  // namespace millrace
