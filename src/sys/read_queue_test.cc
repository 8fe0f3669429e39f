#include "sys/read_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "sys/file.h"
#include "sys/test_refused_calls.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

enum class Kind { kUring, kBlocking };

constexpr int64_t kWaitMs = 600'000;  // longer than any machine takes

class EachReadQueue : public testing::TestWithParam<Kind> {
 protected:
  EachReadQueue() {
    for (size_t i = 0; i < content_.size(); ++i) content_[i] = char(i * 7 + i / 256);
    MR_CHECK(write_file(path_, content_).ok());
    fd_.emplace(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (GetParam() == Kind::kBlocking) {
      queue_ = make_blocking_queue(8);
    } else {
      queue_ = std::move(open_uring_queue(8).value());
    }
  }
  ~EachReadQueue() override { ::unlink(path_.c_str()); }

  // Takes until `count` have come.
  std::map<uint64_t, int64_t> take(size_t count) {
    std::map<uint64_t, int64_t> results;
    FinishedRead finished[3];
    while (results.size() < count) {
      const size_t n = queue_->take(finished, kWaitMs);
      EXPECT_GT(n, 0u);
      for (size_t i = 0; i < n; ++i) results[finished[i].tag] = finished[i].result;
    }
    return results;
  }

  const std::string path_ = testing::TempDir() + "read_queue_test-" + std::to_string(::getpid());
  std::string content_ = std::string(100'000, '\0');
  std::optional<UniqueFd> fd_;
  std::unique_ptr<ReadQueue> queue_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, EachReadQueue, testing::Values(Kind::kUring, Kind::kBlocking),
                         [](const auto& info) {
                           return info.param == Kind::kUring ? "IoUring" : "Pread";
                         });

TEST_P(EachReadQueue, BringsTheBytesOfManyReadsInFlight) {
  std::vector<std::byte> memory(content_.size());
  for (uint64_t i = 0; i < 8; ++i) {
    queue_->add({fd_->get(), i * 12'500, std::span(memory).subspan(i * 12'500, 12'500), i});
  }
  const std::map<uint64_t, int64_t> results = take(8);
  for (const auto& [tag, result] : results) EXPECT_EQ(result, 12'500) << tag;
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), content_.begin(),
                         [](std::byte a, char b) { return a == std::byte(b); }));
}

TEST_P(EachReadQueue, SaysHowManyBytesTheFileHadAndWhatWentWrong) {
  std::vector<std::byte> memory(3 * 4096);
  const std::span<std::byte> all(memory);
  queue_->add({fd_->get(), 99'000, all.first(4096), 1});
  queue_->add({fd_->get(), 200'000, all.subspan(4096, 4096), 2});
  queue_->add({-1, 0, all.last(4096), 3});
  EXPECT_EQ(take(3), (std::map<uint64_t, int64_t>{{1, 1000}, {2, 0}, {3, -EBADF}}));
}

TEST_P(EachReadQueue, AnEmptyQueueHasNothingToTake) {
  FinishedRead finished[1];
  EXPECT_EQ(queue_->take(finished, /*wait_ms=*/0), 0u);
}

TEST_P(EachReadQueue, MoreThanItsCapacityStopsTheProgram) {
  std::vector<std::byte> memory(9);
  for (uint64_t i = 0; i < 8; ++i) queue_->add({fd_->get(), i, std::span(memory).subspan(i, 1), i});
  EXPECT_DEATH(queue_->add({fd_->get(), 0, std::span(memory).last(1), 9}), "check failed: ");
  queue_.reset();  // before the memory goes
}

// The memory may go as soon as the queue has.
TEST_P(EachReadQueue, ItsEndWaitsForReadsInFlight) {
  std::vector<std::byte> memory(content_.size());
  queue_->add({fd_->get(), 0, memory, 0});
  FinishedRead none[1];
  const bool is_there = queue_->take({none, 0}, /*wait_ms=*/0) > 0;  // begins it
  EXPECT_FALSE(is_there);
  queue_.reset();
  if (GetParam() == Kind::kUring) {
    EXPECT_EQ(memory[1], std::byte(content_[1]));
  }
}

// A pipe into which nobody writes, in place of a disk that does not answer.
TEST(UringQueue, WaitsNoLongerThanItIsTold) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  const auto queue = std::move(open_uring_queue(8).value());
  std::vector<std::byte> memory(8);
  FinishedRead finished[2];
  queue->add({from.get(), 0, memory, 7});
  EXPECT_EQ(queue->take(finished, /*wait_ms=*/1), 0u);
  EXPECT_EQ(queue->take(finished, /*wait_ms=*/1), 0u) << "it is in flight still";
  ASSERT_EQ(::write(to.get(), "answer", 6), 6);
  ASSERT_EQ(queue->take(finished, kWaitMs), 1u);
  EXPECT_EQ(finished[0].tag, 7u);
  EXPECT_EQ(finished[0].result, 6);
  EXPECT_EQ(std::memcmp(memory.data(), "answer", 6), 0);
}

TEST(UringQueue, IsRefusedByNameWhereTheProcessMayNotUseIt) {
  Result<std::unique_ptr<ReadQueue>> queue = make_blocking_queue(1);
  test::run_without_io_uring([&] { queue = open_uring_queue(8); });
  ASSERT_FALSE(queue.has_value());
  EXPECT_EQ(queue.error().message, "io_uring: Operation not permitted");
}

}  // namespace
}  // namespace millrace
