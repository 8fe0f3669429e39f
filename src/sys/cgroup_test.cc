#include "sys/cgroup.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A folder with files as the kernel shows them.
class Cgroup : public testing::Test {
 protected:
  Cgroup() {
    std::string name = (fs::temp_directory_path() / "cgroup_test.XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) root_ = name;
  }
  ~Cgroup() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  CgroupLimits read() const { return read_cgroup_limits(root_); }

  std::string root_;
};

constexpr char kUnified[] =
    "29 24 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kSplit[] =
    "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

TEST_F(Cgroup, WithoutGroupsNothingIsLimited) {
  const CgroupLimits limits = read();
  EXPECT_FALSE(limits.cpus.has_value());
  EXPECT_FALSE(limits.memory_bytes.has_value());
  EXPECT_FALSE(limits.memory_available_bytes.has_value());
}

TEST_F(Cgroup, TheTightestGroupOnTheWayUpCounts) {
  write("/proc/self/mountinfo", kUnified);
  write("/proc/self/cgroup", "0::/services/millrace.service\n");
  write("/sys/fs/cgroup/services/millrace.service/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/services/millrace.service/memory.max", "8000\n");
  write("/sys/fs/cgroup/services/millrace.service/memory.current", "7000\n");
  write("/sys/fs/cgroup/services/millrace.service/memory.stat",
        "anon 4000\nactive_file 1000\ninactive_file 1500\n");
  write("/sys/fs/cgroup/services/cpu.max", "350000 100000\n");
  write("/sys/fs/cgroup/services/memory.max", "max\n");
  write("/sys/fs/cgroup/cpu.max", "800000 100000\n");
  const CgroupLimits limits = read();
  EXPECT_EQ(limits.cpus, 3.5);
  EXPECT_EQ(limits.memory_bytes, 8000);
  EXPECT_EQ(limits.memory_available_bytes, 3500);
}

TEST_F(Cgroup, AGroupWithALargerLimitMayHaveLessLeft) {
  write("/proc/self/mountinfo", kUnified);
  write("/proc/self/cgroup", "0::/services/millrace.service\n");
  write("/sys/fs/cgroup/services/millrace.service/memory.max", "8000\n");
  write("/sys/fs/cgroup/services/millrace.service/memory.current", "1000\n");
  write("/sys/fs/cgroup/services/memory.max", "9000\n");
  write("/sys/fs/cgroup/services/memory.current", "8500\n");
  write("/sys/fs/cgroup/services/memory.stat", "active_file 1000\n");
  EXPECT_EQ(read().memory_bytes, 8000);
  EXPECT_EQ(read().memory_available_bytes, 1500);
}

TEST_F(Cgroup, VersionOneHasAHierarchyForEachController) {
  write("/proc/self/mountinfo", kSplit);
  write("/proc/self/cgroup", "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/\n");
  write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "150000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n");
  write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n");
  write("/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n");
  const CgroupLimits limits = read();
  EXPECT_EQ(limits.cpus, 1.5);
  EXPECT_EQ(limits.memory_bytes, 5000);
  EXPECT_EQ(limits.memory_available_bytes, 4200);
}

TEST_F(Cgroup, AContainerSeesItsOwnGroupAsTheTop) {
  write("/proc/self/mountinfo",
        "40 30 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "41 30 0:27 /docker/other /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  write("/proc/self/cgroup", "4:memory:/docker/abc/d\n3:cpu:/docker/abc\n");
  write("/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "700\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "900\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read().memory_bytes, 700);
  EXPECT_EQ(read().cpus, 2);
}

TEST_F(Cgroup, AGroupThatIsOnlyCalledLikeTheMountedOneIsNotBelowIt) {
  write("/proc/self/mountinfo",
        "40 30 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("/proc/self/cgroup", "4:memory:/docker/abcdef\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "900\n");
  EXPECT_EQ(read().memory_bytes, 900);
}

TEST_F(Cgroup, DamagedFilesLimitNothing) {
  write("/proc/self/mountinfo", std::string("nonsense\n1 2 - \n") + kUnified);
  write("/proc/self/cgroup", "\n::\n0:\n0::/a\n");
  write("/sys/fs/cgroup/a/cpu.max", "100000 0\n");
  write("/sys/fs/cgroup/a/memory.max", "-8\n");
  write("/sys/fs/cgroup/memory.max", "\n");
  write("/sys/fs/cgroup/cpu.max", "-5 100000\n");
  EXPECT_FALSE(read().cpus.has_value());
  EXPECT_FALSE(read().memory_bytes.has_value());
}

}  // namespace
}  // namespace millrace
