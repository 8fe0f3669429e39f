#include "sys/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/check.h"
#include "sys/file.h"
#include "sys/test_refused_calls.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

constexpr size_t kPage = 4096;

bool is_cached(const MappedFile& file, size_t page) {
  unsigned char state = 0;
  ::mincore(const_cast<uint8_t*>(file.bytes().data()) + page * kPage, kPage, &state);
  return (state & 1) != 0;
}

constexpr size_t kPages = 6000, kEvery = 4;

// A file of which nothing is in memory, unless its file system keeps what it is told to drop.
class ReadAheadOfAFile : public testing::Test {
 protected:
  ReadAheadOfAFile() {
    std::ofstream(path_, std::ios::binary) << std::string(kPages * kPage, 'x');
    file_.emplace(std::move(MappedFile::open(path_).value()));
    file_->expect_single_reads(file_->bytes());
    const UniqueFd fd(::open(path_.c_str(), O_RDONLY));
    MR_CHECK(::fdatasync(fd.get()) == 0);
    MR_CHECK(::madvise(const_cast<uint8_t*>(file_->bytes().data()), kPages * kPage,
                       MADV_DONTNEED) == 0);
    MR_CHECK(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0);
    num_kept_ = num_others_cached();
  }
  ~ReadAheadOfAFile() override { ::unlink(path_.c_str()); }

  const uint8_t* page(size_t p) const { return file_->bytes().data() + p * kPage; }

  // Asks for 8 bytes of every kEvery-th page, and in front of the page `at` for `before` too.
  void ask(ReadAhead& ahead, size_t at = 0, std::span<const uint8_t> before = {}) const {
    for (size_t p = 0; p < kPages; p += kEvery) {
      if (p == at) ahead.add(before.data(), before.size());
      ahead.add(page(p) + 100, 8);
    }
    ahead.start();
    ahead.start();  // nothing left
  }

  // Of the pages that were asked for, when they have had time to come.
  size_t num_missing() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    size_t missing = 1;
    while (missing > 0 && std::chrono::steady_clock::now() < end) {
      missing = 0;
      for (size_t p = 0; p < kPages; p += kEvery) missing += !is_cached(*file_, p);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return missing;
  }

  size_t num_others_cached() const {
    size_t others = 0;
    for (size_t p = 1; p < kPages; p += kEvery) others += is_cached(*file_, p);
    return others;
  }

  const std::string path_ = testing::TempDir() + "read_ahead-" + std::to_string(::getpid());
  std::optional<MappedFile> file_;
  size_t num_kept_ = 0;
};

// Wherever they lie, and more of them than one call takes.
TEST_F(ReadAheadOfAFile, BringsThePagesThatWereAskedForAndNoOthers) {
  ReadAhead ahead;
  ask(ahead);
  EXPECT_EQ(num_missing(), 0u);
  EXPECT_EQ(num_others_cached(), num_kept_);
}

TEST_F(ReadAheadOfAFile, APartThatIsNotThereHoldsUpNoOther) {
  void* gone = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ASSERT_EQ(::munmap(gone, kPage), 0);
  ReadAhead ahead;
  ask(ahead, 40 * kEvery, {static_cast<const uint8_t*>(gone), 8});
  EXPECT_EQ(num_missing(), 0u);
}

// Later kernels, filters of system calls, and what passes.
TEST_F(ReadAheadOfAFile, WhereTheKernelTakesNoListItIsAskedForEachPart) {
  for (const int error : {ENOSYS, EPERM, EAGAIN}) {
    SCOPED_TRACE(error);
    test::run_refusing(SYS_process_madvise, error, [&] {
      ReadAhead ahead;
      ask(ahead);
    });
    EXPECT_EQ(num_missing(), 0u);
  }
}

}  // namespace
}  // namespace millrace
