#include "sys/thread_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

Topology make(const std::string& description, const std::vector<int>& allowed = {}) {
  Result<Topology> topology = synthetic_topology(description, allowed);
  EXPECT_TRUE(topology.has_value()) << description;
  return topology.has_value() ? topology.value() : Topology();
}

std::vector<int> count_to(int n, int first = 0) {
  std::vector<int> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

int default_threads(const Topology& topology, std::optional<double> quota = {},
                    bool serves = false) {
  return plan_threads(topology, quota, {.num_threads = 0, .serves = serves}).num_threads;
}

// 96 cores at two nodes, two hardware threads each; 0 and 1 are the first core's.
constexpr char kLarge[] = "numa:2 core:48 pu:2";

TEST(ThreadPlan, CountsCoresAndNotHardwareThreads) {
  EXPECT_EQ(default_threads(make(kLarge)), 96);
  EXPECT_EQ(default_threads(make(kLarge, {0, 1})), 1);
  EXPECT_EQ(default_threads(make(kLarge, {0, 2, 4})), 3);
}

TEST(ThreadPlan, LeavesACoreToTheNetworkWhereThereAreMany) {
  const std::optional<double> no_quota;
  EXPECT_EQ(default_threads(make(kLarge), no_quota, true), 95);
  EXPECT_EQ(default_threads(make("core:5 pu:1"), no_quota, true), 4);
  EXPECT_EQ(default_threads(make("core:4 pu:1"), no_quota, true), 4);
  EXPECT_EQ(default_threads(make("core:2 pu:1"), no_quota, true), 2);
  EXPECT_EQ(default_threads(make("core:1 pu:1"), no_quota, true), 1);
}

TEST(ThreadPlan, NeverUsesMoreTimeThanTheControlGroupHas) {
  EXPECT_EQ(default_threads(make(kLarge), 12.5), 12);
  EXPECT_EQ(default_threads(make(kLarge), 12.5, true), 11);
  EXPECT_EQ(default_threads(make(kLarge), 0.2), 1);
  EXPECT_EQ(default_threads(make(kLarge), 500.0), 96);
  EXPECT_EQ(plan_threads(make(kLarge), 12.5, {.num_threads = 0, .serves = true}).reason,
            "the control group's processor time is that of 12.5, less one for the network");
}

TEST(ThreadPlan, TakesANumberAsItIsAskedFor) {
  const ThreadPlan plan =
      plan_threads(make("core:2 pu:1"), 1.0, {.num_threads = 7, .serves = true});
  EXPECT_EQ(plan.num_threads, 7);
  EXPECT_EQ(plan.reason, "as asked for");
}

TEST(ThreadPlan, ThreadsOfOneNodeRunAnywhere) {
  EXPECT_THAT(plan_threads(make("core:8 pu:2"), {}, {}).cpus, IsEmpty());
  // All the allowed cores are at the second of two nodes.
  EXPECT_THAT(plan_threads(make("numa:2 core:4 pu:1", {5, 6}), {}, {}).cpus, IsEmpty());
}

TEST(ThreadPlan, EveryNodeGetsItsShareOfTheThreads) {
  const ThreadPlan plan = plan_threads(make(kLarge), {}, {.num_threads = 0, .serves = true});
  ASSERT_EQ(plan.nodes.size(), 95u);
  EXPECT_TRUE(std::is_sorted(plan.nodes.begin(), plan.nodes.end()));
  EXPECT_EQ(std::count(plan.nodes.begin(), plan.nodes.end(), 0), 48);
  EXPECT_THAT(plan.memory_nodes, ElementsAre(0, 1));
  EXPECT_EQ(plan.cpus.front(), count_to(96));
  EXPECT_EQ(plan.cpus.back(), count_to(96, 96));

  const Topology uneven = make("numa:2 core:4 pu:1", {0, 1, 2, 7});
  EXPECT_THAT(plan_threads(uneven, {}, {}).nodes, ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(plan_threads(uneven, {}, {}).cpus.back(), ElementsAre(7));
  EXPECT_THAT(plan_threads(uneven, {}, {.num_threads = 2}).nodes, ElementsAre(0, 0));
  EXPECT_THAT(plan_threads(uneven, {}, {.num_threads = 2}).memory_nodes, ElementsAre(0));
  EXPECT_THAT(plan_threads(uneven, {}, {.num_threads = 1}).nodes, Each(0));
  EXPECT_EQ(plan_threads(uneven, {}, {.num_threads = 8}).nodes.back(), 1);
}

TEST(ThreadPlan, WhereNoProcessorIsToldThereIsOneThread) {
  EXPECT_EQ(default_threads(Topology()), 1);
  EXPECT_EQ(default_threads(Topology(), 0.5, true), 1);
}

TEST(ThreadPlan, ThisMachineHasAtLeastOneThread) {
  EXPECT_GE(plan_threads({}).num_threads, 1);
  EXPECT_LE(plan_threads({}).num_threads, read_topology().value().num_allowed_cpus());
  EXPECT_EQ(plan_threads({.num_threads = 3}).num_threads, 3);
}

}  // namespace
}  // namespace millrace
