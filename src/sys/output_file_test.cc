#include "sys/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/format.h"
#include "sys/file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::span<const uint8_t> bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class OutputFileTest : public ::testing::Test {
 protected:
  OutputFileTest() {
    std::string name = testing::TempDir() + "millrace-output-XXXXXX";
    MR_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~OutputFileTest() override { fs::remove_all(folder_); }

  int64_t num_files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  std::string path() const { return folder_ + "/file"; }

  std::string folder_;
};

TEST_F(OutputFileTest, TakesItsNameOnlyWhenItIsComplete) {
  OutputFile file = std::move(OutputFile::create(path()).value());
  ASSERT_TRUE(file.write(bytes("ab")).ok());
  OutputFile moved = std::move(file);
  ASSERT_TRUE(moved.write(bytes("c")).ok());
  EXPECT_FALSE(fs::exists(path()));
  ASSERT_TRUE(moved.finish().ok());
  EXPECT_EQ(read_file(path()).value(), "abc");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(OutputFileTest, WhatIsNotFinishedIsRemovedAndWhatWasThereStays) {
  ASSERT_TRUE(write_file(path(), "old").ok());
  {
    OutputFile file = std::move(OutputFile::create(path()).value());
    ASSERT_TRUE(file.write(bytes("new")).ok());
  }
  EXPECT_EQ(read_file(path()).value(), "old");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(OutputFileTest, SkippedBytesAreZerosThatTakeNoSpace) {
  constexpr uint64_t kHole = uint64_t{5} << 30;
  OutputFile file = std::move(OutputFile::create(path()).value());
  file.skip(kHole);
  ASSERT_TRUE(file.write(bytes("x")).ok());
  file.skip(kHole);
  ASSERT_TRUE(file.finish().ok());
  struct stat info;
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(uint64_t(info.st_size), 2 * kHole + 1);
  EXPECT_LT(info.st_blocks * 512, 1 << 20);
  const MappedFile mapped = std::move(MappedFile::open(path()).value());
  EXPECT_EQ(mapped.bytes()[kHole - 1], 0);
  EXPECT_EQ(mapped.bytes()[kHole], 'x');
  EXPECT_EQ(mapped.bytes()[2 * kHole], 0);
}

TEST_F(OutputFileTest, TemporaryFilesOfTheDeadAreKnown) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(abandoned_name(format("a.tmp.b.tmp.", child)), "a.tmp.b");
  EXPECT_EQ(abandoned_name(format("a.tmp.", ::getpid())), "a");
  EXPECT_EQ(abandoned_name(format("a.tmp.", ::getppid())), std::nullopt);
  for (const char* other : {"a", "a.tmp.", "a.tmp.x", "a.tmp.7x", "a.tmp.-1", "a.tmp.0", ""}) {
    EXPECT_EQ(abandoned_name(other), std::nullopt) << other;
  }
}

TEST_F(OutputFileTest, ErrorsNameTheFile) {
  const Result<OutputFile> file = OutputFile::create(folder_ + "/none/file");
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, Code::kNotFound);
  EXPECT_EQ(file.error().message, folder_ + "/none/file: cannot create: No such file or directory");
}

}  // namespace
}  // namespace millrace
