#include "sys/reserved_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "sys/memory.h"
#include "sys/topology.h"

namespace millrace {
namespace {

constexpr size_t kBytes = size_t{64} << 20;

ReservedMemory reserve() { return std::move(ReservedMemory::reserve(kBytes).value()); }

// The kernel's line about the mapping that holds the address: "7f12 interleave:0 anon=1 ...".
std::string policy_of(const void* data) {
  std::ostringstream address;
  address << std::hex << reinterpret_cast<uintptr_t>(data) << ' ';
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(address.str())) return line.substr(address.str().size());
  }
  return {};
}

TEST(ReservedMemory, HugePagesBecomeMemoryOneByOne) {
  const PageModes modes = read_page_modes();
  ReservedMemory memory = reserve();
  memory.prefer_huge_pages();
  EXPECT_EQ(memory.resident_bytes(), 0u);
  memory.bytes()[kBytes / 2] = std::byte{1};
  const bool has_huge =
      modes.transparent_huge_pages == "madvise" || modes.transparent_huge_pages == "always";
  EXPECT_GE(memory.resident_bytes(), size_t(modes.page_bytes));
  EXPECT_LE(memory.resident_bytes(), size_t(has_huge ? modes.huge_page_bytes : modes.page_bytes));
}

TEST(ReservedMemory, TakesTurnsAmongMemoryNodes) {
  const Result<Topology> topology = read_topology();
  ASSERT_TRUE(topology.has_value());
  ReservedMemory memory = reserve();
  const std::vector<int> nodes{topology.value().nodes.front().os_id};
  const Status status = memory.interleave(nodes);
  std::memset(memory.bytes().data(), 1, memory.bytes().size());
  const std::string policy = policy_of(memory.bytes().data());
  if (status.ok()) {
    EXPECT_TRUE(policy.starts_with("interleave:") || policy.empty()) << policy;
  } else {  // a sandbox may forbid it; then the message says so
    EXPECT_TRUE(status.error().message.starts_with("cannot spread memory over nodes: "));
    EXPECT_FALSE(policy.starts_with("interleave:")) << policy;
  }
}

TEST(ReservedMemory, RefusesANodeThatIsNotThere) {
  ReservedMemory memory = reserve();
  const std::vector<int> nodes{1023};
  const Status status = memory.interleave(nodes);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(status.error().message.starts_with("cannot spread memory over nodes: "))
      << status.error().message;
  EXPECT_TRUE(memory.interleave({}).ok()) << "nothing to do";
}

}  // namespace
}  // namespace millrace
