#include "sys/memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>

namespace millrace {
namespace {

namespace fs = std::filesystem;

TEST(Memory, WhatIsAvailableIsWithinTheLimit) {
  EXPECT_GT(memory_limit_bytes(), 0);
  EXPECT_GT(memory_available_bytes(), 0);
  EXPECT_LE(memory_available_bytes(), memory_limit_bytes());
}

TEST(Memory, PrivateMemoryCountsWhenItIsTouched) {
  constexpr size_t kBytes = size_t{64} << 20;
  const int64_t before = anonymous_bytes();
  const std::unique_ptr<char[]> memory(new char[kBytes]);
  volatile char* const touched = memory.get();  // or a compiler leaves it all out
  for (size_t i = 0; i < kBytes; i += 1024) touched[i] = 1;
  EXPECT_GE(anonymous_bytes() - before, int64_t(kBytes) / 2);
}

// A folder with files as the kernel shows them.
class KernelFiles : public testing::Test {
 protected:
  KernelFiles() {
    std::string name = (fs::temp_directory_path() / "memory_test.XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) root_ = name;
  }
  ~KernelFiles() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(KernelFiles, SayHowMemoryIsCutIntoPages) {
  EXPECT_EQ(read_page_modes(root_).transparent_huge_pages, "");
  EXPECT_EQ(read_page_modes(root_).huge_page_bytes, 0);
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
  write("/proc/sys/vm/nr_hugepages", "17\n");
  const PageModes modes = read_page_modes(root_);
  EXPECT_EQ(modes.transparent_huge_pages, "madvise");
  EXPECT_EQ(modes.huge_page_bytes, 2 << 20);
  EXPECT_EQ(modes.pool_pages, 17);
  EXPECT_GE(modes.page_bytes, 4096);
}

TEST_F(KernelFiles, SayWhatOfThisProcessIsInHugePages) {
  EXPECT_EQ(read_huge_page_use(root_).file_bytes, 0);
  write("/proc/self/smaps_rollup",
        "5600-7ffd ---p 00000000 00:00 0    [rollup]\nRss:    9000 kB\nAnonHugePages:   4096 kB\n"
        "ShmemPmdMapped:     8 kB\nFilePmdMapped:   2048 kB\n");
  EXPECT_EQ(read_huge_page_use(root_).anonymous_bytes, 4 << 20);
  EXPECT_EQ(read_huge_page_use(root_).file_bytes, 2 << 20);
}

}  // namespace
}  // namespace millrace
