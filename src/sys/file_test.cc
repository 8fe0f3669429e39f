#include "sys/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "sys/mapping_faults.h"
#include "sys/memory.h"
#include "sys/test_mapping_flags.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class File : public testing::Test {
 protected:
  File() {
    std::string pattern = testing::TempDir() + "file_test_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~File() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  void expect_names(std::vector<std::string> expected) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    EXPECT_THAT(names, testing::UnorderedElementsAreArray(expected));
  }

  fs::path folder_;
};

// Reads a page behind the new end of a mapped file that was cut to nothing.
void read_what_was_cut(const std::string& path, bool is_mapped_still) {
  report_mapping_faults();
  Result<MappedFile> file = MappedFile::open(path);
  const volatile uint8_t* last = file.value().bytes().data() + file.value().bytes().size() - 1;
  if (!is_mapped_still) forget_mapping(file.value().bytes().data());
  fs::resize_file(path, 0);
  static_cast<void>(*last);
}

TEST_F(File, NamesTheMappedFileThatBecameShorterWhenItEndsTheProgram) {
  const std::string name = path("shard\nof a model");
  ASSERT_TRUE(write_file(path("other"), std::string(10'000, 'x')).ok());
  const Result<MappedFile> other = MappedFile::open(path("other"));
  ASSERT_TRUE(write_file(name, std::string(10'000, 'x')).ok());
  EXPECT_EXIT(read_what_was_cut(name, true), testing::KilledBySignal(SIGBUS),
              "^millrace: .*/shard\\?of a model: cannot be read any more");
  ASSERT_TRUE(write_file(name, std::string(10'000, 'x')).ok());
  EXPECT_EXIT(read_what_was_cut(name, false), testing::KilledBySignal(SIGBUS),
              "^millrace: memory that is no mapped file: cannot be read any more");
}

TEST_F(File, KnowsItsFileFromOneThatTookItsName) {
  ASSERT_TRUE(write_file(path("a"), "some").ok());
  MappedFile file = std::move(MappedFile::open(path("a")).value());
  const MappedFile moved = std::move(file);
  const auto is_it = [&] {
    const UniqueFd fd(::open(path("a").c_str(), O_RDONLY | O_CLOEXEC));
    return moved.is_mapping_of(fd.get());
  };
  EXPECT_TRUE(is_it());
  ASSERT_TRUE(write_file(path("a"), "more").ok());
  EXPECT_FALSE(is_it());
  EXPECT_FALSE(moved.is_mapping_of(-1));
}

TEST_F(File, OnlyPartsForSingleReadsAreNotReadAhead) {
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  std::ofstream(path("a")) << std::string(8 * page, 'x');
  const MappedFile file = std::move(MappedFile::open(path("a")).value());
  const auto flags_of_page = [&](size_t i) { return test::mapping_flags(&file.bytes()[i * page]); };
  EXPECT_THAT(flags_of_page(3), testing::Not(HasSubstr(" rr ")));
  file.expect_single_reads(file.bytes().subspan(2 * page + 7, 3 * page));
  file.expect_single_reads(file.bytes().subspan(6 * page + 7, 20));  // no whole page
  for (size_t i = 0; i < 8; ++i) {
    const bool is_whole = i == 3 || i == 4;
    EXPECT_EQ(flags_of_page(i).find(" rr ") != std::string::npos, is_whole) << i;
    if (!read_page_modes().transparent_huge_pages.empty()) {
      EXPECT_EQ(flags_of_page(i).find(" hg ") != std::string::npos, !is_whole) << i;
    }
  }
}

TEST_F(File, IsReplacedAsAWhole) {
  ASSERT_TRUE(write_file(path("a"), "first").ok());
  const Result<MappedFile> old = MappedFile::open(path("a"));
  ASSERT_TRUE(old.has_value());
  ASSERT_TRUE(write_file(path("a"), "2nd").ok());
  EXPECT_EQ(read_file(path("a")).value(), "2nd");
  EXPECT_EQ(old.value().bytes().size(), 5u);
  EXPECT_EQ(old.value().bytes()[0], 'f');
  expect_names({"a"});
}

TEST_F(File, IsWrittenThroughLinks) {
  ASSERT_TRUE(write_file(path("target"), "old").ok());
  fs::create_symlink("target", path("link"));
  fs::create_symlink("link", path("link2"));
  fs::create_symlink("later", path("dangling"));
  ASSERT_TRUE(write_file(path("link2"), "new").ok());
  ASSERT_TRUE(write_file(path("dangling"), "made").ok());
  EXPECT_TRUE(fs::is_symlink(path("link")) && fs::is_symlink(path("link2")));
  EXPECT_TRUE(fs::is_symlink(path("dangling")));
  EXPECT_EQ(read_file(path("target")).value(), "new");
  EXPECT_EQ(read_file(path("later")).value(), "made");
  expect_names({"target", "link", "link2", "dangling", "later"});
}

TEST_F(File, PipesAreWrittenInPlace) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(write_file(path("pipe"), "through").ok());
  char content[16];
  EXPECT_EQ(::read(reader, content, sizeof content), 7);
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  expect_names({"pipe"});
}

TEST_F(File, FailuresOfWritingLeaveNothing) {
  fs::create_directory(path("folder"));
  const Status folder = write_file(path("folder"), "x");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().message, HasSubstr("folder: is a directory, expected a file"));
  const Status missing = write_file(path("missing/file"), "x");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  expect_names({"folder"});
}

TEST_F(File, WhatCannotBeWrittenIsKnownBefore) {
  ASSERT_TRUE(write_file(path("file"), "old").ok());
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_directory(path("folder"));
  fs::create_symlink("later", path("dangling"));
  fs::create_symlink("no/where", path("lost"));
  fs::create_symlink("loop", path("loop"));
  for (const char* name : {"file", "new", "folder/new", "pipe", "dangling"}) {
    EXPECT_TRUE(check_writable(path(name)).ok()) << name;
  }
  const auto wrong = [&](const char* name) {
    const Status status = check_writable(path(name));
    EXPECT_FALSE(status.ok()) << name;
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_THAT(wrong("folder"), HasSubstr("folder: is a directory, expected a file"));
  EXPECT_THAT(wrong("no/where"), HasSubstr("no/where: cannot be written: No such file"));
  EXPECT_THAT(wrong("lost"), HasSubstr("no/where: cannot be written: No such file"));
  EXPECT_THAT(wrong("loop"), HasSubstr("loop: cannot be written: Too many levels"));
  EXPECT_THAT(wrong("file/below"), HasSubstr("file/below: cannot be written: Not a directory"));
  EXPECT_THAT(wrong("new/"), HasSubstr("new/: cannot be written: No such file"));
  EXPECT_EQ(read_file(path("file")).value(), "old");
  expect_names({"file", "pipe", "folder", "dangling", "lost", "loop"});
}

TEST_F(File, PipesAndFoldersAreNotRead) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_directory(path("folder"));
  for (const char* name : {"pipe", "folder"}) {
    EXPECT_THAT(read_file(path(name)).error().message, HasSubstr(": not a regular file"));
    EXPECT_THAT(MappedFile::open(path(name)).error().message, HasSubstr(": not a regular file"));
  }
}

TEST_F(File, TooLargeOnesAreRefusedUnread) {
  std::ofstream(path("huge")).put('x');
  fs::resize_file(path("huge"), uintmax_t{1} << 40);  // a hole; reading it would not end well
  EXPECT_THAT(read_file(path("huge")).error().message,
              HasSubstr("huge: 1099511627776 bytes, expected at most 1073741824"));
  EXPECT_EQ(read_file(path("huge"), 10).error().code, Code::kExhausted);
}

}  // namespace
}  // namespace millrace
