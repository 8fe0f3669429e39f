#include "sys/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "sys/file.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

constexpr size_t kPage = 4096;

bool is_cached(const MappedFile& file, size_t page) {
  unsigned char state = 0;
  ::mincore(const_cast<uint8_t*>(file.bytes().data()) + page * kPage, kPage, &state);
  return (state & 1) != 0;
}

// The pages asked for come, wherever they lie, more of them than one call takes; others do not.
TEST(ReadAhead, BringsThePagesThatWereAskedFor) {
  const std::string path = testing::TempDir() + "/read_ahead";
  constexpr size_t kPages = 6000, kEvery = 4;
  std::ofstream(path, std::ios::binary) << std::string(kPages * kPage, 'x');
  const MappedFile file = std::move(MappedFile::open(path).value());
  file.expect_single_reads(file.bytes());
  const UniqueFd fd(::open(path.c_str(), O_RDONLY));
  ASSERT_EQ(::fdatasync(fd.get()), 0);
  ASSERT_EQ(::madvise(const_cast<uint8_t*>(file.bytes().data()), kPages * kPage, MADV_DONTNEED),
            0);
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  size_t kept = 0;  // some file systems keep what they are told to drop
  for (size_t p = 1; p < kPages; p += kEvery) kept += is_cached(file, p);

  ReadAhead ahead;
  for (size_t p = 0; p < kPages; p += kEvery) ahead.add(file.bytes().data() + p * kPage + 100, 8);
  ahead.start();
  ahead.start();  // nothing left
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  size_t missing = 1;
  while (missing > 0 && std::chrono::steady_clock::now() < end) {
    missing = 0;
    for (size_t p = 0; p < kPages; p += kEvery) missing += !is_cached(file, p);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(missing, 0u);
  size_t others = 0;
  for (size_t p = 1; p < kPages; p += kEvery) others += is_cached(file, p);
  EXPECT_EQ(others, kept);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace millrace
