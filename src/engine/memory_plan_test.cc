#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

KvLayout layout() {
  KvLayout layout;
  layout.block_size = 128;
  layout.block_bytes = 128 * 890;
  layout.slot_bytes = 3'000'000;
  return layout;
}

MemoryPlan plan(const MachineMemory& machine, const MemoryWish& wish) {
  const Result<MemoryPlan> plan = plan_memory(layout(), machine, wish, 1 << 20);
  EXPECT_TRUE(plan.has_value());
  return plan.value();
}

TEST(MemoryPlan, TheCacheGetsWhatTheWeightsLeave) {
  const MemoryPlan some = plan({64 * kGiB, 20 * kGiB, kGiB}, {{}, {}, {}, 64});
  EXPECT_EQ(some.num_slots, 64);
  const double bytes = double(some.num_slots * layout().slot_bytes +
                              some.num_blocks * layout().block_bytes);
  EXPECT_NEAR(bytes / double(kGiB), 64 * 0.9 - 21, 0.01);
  EXPECT_EQ(some.max_model_len, 1 << 20);
}

TEST(MemoryPlan, ACheckpointLargerThanMemoryLeavesATenth) {
  const MemoryPlan some = plan({24 * kGiB, 475 * kGiB, kGiB}, {{}, {}, {}, 64});
  const double bytes = double(some.num_slots * layout().slot_bytes +
                              some.num_blocks * layout().block_bytes);
  EXPECT_NEAR(bytes / double(kGiB), 2.4, 0.01);
}

TEST(MemoryPlan, NoMoreBlocksThanAllSequencesCanFill) {
  const MemoryPlan some = plan({64 * kGiB, 0, 0}, {{}, {}, 1000, 4});
  EXPECT_EQ(some.num_blocks, 4 * 8);
  EXPECT_EQ(some.max_model_len, 1000);
}

TEST(MemoryPlan, LittleMemoryMeansFewerAndShorterSequences) {
  const MemoryPlan some = plan({kGiB, 0, 0}, {10'000'000, {}, {}, 256});
  EXPECT_EQ(some.num_slots, 1);
  EXPECT_EQ(some.num_blocks, 7'000'000 / layout().block_bytes);
  EXPECT_EQ(some.max_model_len, some.num_blocks * 128);
}

TEST(MemoryPlan, AnExplicitLengthThatDoesNotFitIsRefusedWithTheNumbers) {
  const Result<MemoryPlan> refused =
      plan_memory(layout(), {kGiB, 500, 0}, {10'000'000, {}, 100'000, 16}, 1 << 20);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("a sequence of 100000 tokens needs 92085440 bytes"));
  EXPECT_THAT(refused.error().message, HasSubstr("found 10000000 for the cache"));
  EXPECT_FALSE(plan_memory(layout(), {kGiB, 0, 0}, {1000, {}, {}, 16}, 1 << 20).has_value());
}

}  // namespace
}  // namespace millrace
