#include "sys/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sys/affinity.h"

namespace millrace {
namespace {

using testing::ElementsAre;

Topology make(const std::string& description, const std::vector<int>& allowed = {}) {
  Result<Topology> topology = synthetic_topology(description, allowed);
  EXPECT_TRUE(topology.has_value()) << description;
  return topology.has_value() ? topology.value() : Topology();
}

// 96 cores at two nodes, two hardware threads each; 0 and 1 are the first core's.
constexpr char kLarge[] =
    "pack:2 numa:1(memory=400GiB) l3:6(size=32MiB) l2:8(size=1MiB) l1:1(size=32KiB) core:1 pu:2";

TEST(Topology, DescribesALargeMachine) {
  const Topology t = make(kLarge);
  EXPECT_EQ(t.num_packages, 2);
  EXPECT_EQ(t.num_cores, 96);
  EXPECT_EQ(t.num_cpus, 192);
  ASSERT_EQ(t.nodes.size(), 2u);
  EXPECT_EQ(t.nodes[1].os_id, 1);
  EXPECT_EQ(t.nodes[1].bytes, int64_t{400} << 30);
  ASSERT_EQ(t.caches.size(), 3u);
  const auto cache = [&](size_t i) {
    const CacheKind& kind = t.caches[i];
    return std::vector<int64_t>{kind.level, kind.bytes, kind.count, kind.num_cpus_each};
  };
  EXPECT_THAT(cache(0), ElementsAre(1, 32 << 10, 96, 2));
  EXPECT_THAT(cache(1), ElementsAre(2, 1 << 20, 96, 2));
  EXPECT_THAT(cache(2), ElementsAre(3, 32 << 20, 12, 16));
  ASSERT_EQ(t.allowed_cores.size(), 96u);
  EXPECT_THAT(t.allowed_cores[50].cpus, ElementsAre(100, 101));
  EXPECT_EQ(t.allowed_cores[47].node, 0);
  EXPECT_EQ(t.allowed_cores[48].node, 1);
  EXPECT_EQ(t.allowed_cores[48].package, 1);
  EXPECT_EQ(t.num_allowed_cpus(), 192);
  EXPECT_EQ(t.num_allowed_nodes(), 2);
}

TEST(Topology, OnlyCoresThatMayBeUsedCount) {
  const Topology t = make(kLarge, {3, 4, 5, 191});
  EXPECT_EQ(t.num_cores, 96);
  ASSERT_EQ(t.allowed_cores.size(), 3u);
  EXPECT_THAT(t.allowed_cores[0].cpus, ElementsAre(3));
  EXPECT_THAT(t.allowed_cores[1].cpus, ElementsAre(4, 5));
  EXPECT_EQ(t.allowed_cores[2].node, 1);
  EXPECT_EQ(t.num_allowed_cpus(), 4);
}

TEST(Topology, RefusesADescriptionThatIsNone) {
  EXPECT_FALSE(synthetic_topology("core:none").has_value());
}

TEST(Topology, ReadsThisMachine) {
  const Result<Topology> read = read_topology();
  ASSERT_TRUE(read.has_value()) << read.error().message;
  const Topology& t = read.value();
  EXPECT_EQ(t.num_allowed_cpus(), int(allowed_cpus().size()));
  EXPECT_GE(t.num_cores, int(t.allowed_cores.size()));
  EXPECT_GE(t.num_cpus, t.num_allowed_cpus());
  EXPECT_GE(t.nodes.size(), size_t(t.num_allowed_nodes()));
  EXPECT_GE(t.num_allowed_nodes(), 1);
}

}  // namespace
}  // namespace millrace
