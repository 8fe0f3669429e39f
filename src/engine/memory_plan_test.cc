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

// Of the release: 296 GB of experts, 11 GB of other weights, 203 GB of tables.
constexpr ExpertSizes kExperts{296'000'000'000, 11'000'000'000, 15'744, 18'804'736, 7};

int64_t expert_cache(const MachineMemory& machine, std::optional<int64_t> wish = {},
                     std::optional<int64_t> kv_bytes = {}) {
  const Result<int64_t> bytes = plan_expert_cache(kExperts, machine, wish, kv_bytes);
  EXPECT_TRUE(bytes.has_value());
  return bytes.value();
}

std::string expert_cache_refusal(const MachineMemory& machine, int64_t wish) {
  const Result<int64_t> bytes = plan_expert_cache(kExperts, machine, wish, {});
  EXPECT_FALSE(bytes.has_value());
  return bytes.has_value() ? "" : bytes.error().message;
}

TEST(ExpertCachePlan, ExpertsThatFitIntoMemoryStayMapped) {
  EXPECT_EQ(expert_cache({400'000'000'000, 510'000'000'000, 0}), 0);
  EXPECT_EQ(expert_cache({400'000'000'000, 510'000'000'000, 100'000'000'000}),
            400'000'000'000 * 8 / 10 - 111'000'000'000);
}

TEST(ExpertCachePlan, TheyGetWhatOtherWeightsAndSequencesLeave) {
  EXPECT_EQ(expert_cache({100'000'000'000, 510'000'000'000, 1'000'000'000}), 68'000'000'000);
  EXPECT_EQ(expert_cache({100'000'000'000, 510'000'000'000, 1'000'000'000}, {}, 20'000'000'000),
            58'000'000'000);
}

TEST(ExpertCachePlan, WhereNothingIsLeftTheyStayMapped) {
  EXPECT_EQ(expert_cache({13'000'000'000, 510'000'000'000, 0}), 0);
}

TEST(ExpertCachePlan, AWishIsGrantedIfItCanWorkAndFits) {
  const MachineMemory machine{100'000'000'000, 510'000'000'000, 0};
  EXPECT_EQ(expert_cache(machine, 0), 0);
  EXPECT_EQ(expert_cache(machine, 200'000'000), 200'000'000);
  EXPECT_EQ(expert_cache_refusal(machine, 100'000'000),
            "expert cache: found 100000000 bytes, expected 0 or at least 131633152, 7 experts of "
            "18804736: those of a token in one layer, and one that is read");
  EXPECT_EQ(expert_cache_refusal(machine, 95'000'000'000),
            "expert cache: found 95000000000 bytes, expected at most 90000000000 (memory "
            "100000000000, of which a tenth stays for the system; in use 0)");
  EXPECT_EQ(expert_cache({1'000'000'000'000, 0, 0}, 950'000'000'000),
            kExperts.num_experts * kExperts.slot_bytes)
      << "not more is taken than all experts need";
}

TEST(MemoryPlan, TheCacheGetsWhatTheWeightsLeave) {
  const MemoryPlan some = plan({64 * kGiB, 20 * kGiB, kGiB}, {{}, {}, {}, 64, {}});
  EXPECT_EQ(some.num_slots, 64);
  EXPECT_EQ(some.num_snapshots, int64_t(36.6 * 0.1 * double(kGiB)) / layout().slot_bytes);
  const double bytes = double((some.num_slots + some.num_snapshots) * layout().slot_bytes +
                              some.num_blocks * layout().block_bytes);
  EXPECT_NEAR(bytes / double(kGiB), 64 * 0.9 - 21, 0.01);
  EXPECT_EQ(some.max_model_len, 1 << 20);
}

TEST(MemoryPlan, ACheckpointLargerThanMemoryLeavesATenth) {
  const MemoryPlan some = plan({24 * kGiB, 475 * kGiB, kGiB}, {{}, {}, {}, 64, {}});
  EXPECT_EQ(some.num_snapshots, int64_t(2.4 * 0.25 * double(kGiB)) / layout().slot_bytes);
  const double bytes = double((some.num_slots + some.num_snapshots) * layout().slot_bytes +
                              some.num_blocks * layout().block_bytes);
  EXPECT_NEAR(bytes / double(kGiB), 2.4, 0.01);
}

TEST(MemoryPlan, NoMoreBlocksThanAllSequencesCanFill) {
  const MemoryPlan some = plan({64 * kGiB, 0, 0}, {{}, {}, 1000, 4, {}});
  EXPECT_EQ(some.num_blocks, 4 * 8);
  EXPECT_EQ(some.max_model_len, 1000);
}

TEST(MemoryPlan, LittleMemoryMeansFewerAndShorterSequences) {
  const MemoryPlan some = plan({kGiB, 0, 0}, {10'000'000, {}, {}, 256, {}});
  EXPECT_EQ(some.num_slots, 1);
  EXPECT_EQ(some.num_snapshots, 0);
  EXPECT_EQ(some.num_blocks, 7'000'000 / layout().block_bytes);
  EXPECT_EQ(some.max_model_len, some.num_blocks * 128);
}

TEST(MemoryPlan, AnExplicitLengthThatDoesNotFitIsRefusedWithTheNumbers) {
  const Result<MemoryPlan> refused =
      plan_memory(layout(), {kGiB, 500, 0}, {10'000'000, {}, 100'000, 16, {}}, 1 << 20);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message,
              HasSubstr("a sequence of 100000 tokens needs 92085440 bytes"));
  EXPECT_THAT(refused.error().message, HasSubstr("found 10000000 for the cache"));
  EXPECT_FALSE(plan_memory(layout(), {kGiB, 0, 0}, {1000, {}, {}, 16, {}}, 1 << 20).has_value());
}

}  // namespace
}  // namespace millrace
