#include "sys/read_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
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
  }
  void SetUp() override {
    Result<std::unique_ptr<ReadQueue>> queue = make_blocking_queue(8);
    if (GetParam() == Kind::kUring) queue = open_uring_queue(8);
    if (!queue.has_value()) GTEST_SKIP() << queue.error().message;
    queue_ = std::move(queue.value());
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

// Whose reads are of a pipe, in place of a disk that answers when somebody says so.
class UringQueue : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<ReadQueue>> queue = open_uring_queue(8);
    if (!queue.has_value()) GTEST_SKIP() << queue.error().message;
    queue_ = std::move(queue.value());
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    from_.emplace(ends[0]);
    to_.emplace(ends[1]);
  }
  void add() { queue_->add({from_->get(), 0, memory_, 7}); }
  void answer() { MR_CHECK_OP(::write(to_->get(), "answer", 6), ==, 6); }
  bool has_answer() const { return std::memcmp(memory_.data(), "answer", 6) == 0; }

  std::optional<UniqueFd> from_, to_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8);
  std::unique_ptr<ReadQueue> queue_;
};

TEST_F(UringQueue, WaitsNoLongerThanItIsTold) {
  FinishedRead finished[2];
  add();
  EXPECT_EQ(queue_->take(finished, /*wait_ms=*/1), 0u);
  EXPECT_EQ(queue_->take(finished, /*wait_ms=*/1), 0u) << "it is in flight still";
  answer();
  ASSERT_EQ(queue_->take(finished, kWaitMs), 1u);
  EXPECT_EQ(finished[0].tag, 7u);
  EXPECT_EQ(finished[0].result, 6);
  EXPECT_TRUE(has_answer());
}

bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  return stat.find(") S ") != stat.npos;
}

// The memory may go as soon as the queue has.
TEST_F(UringQueue, ItsEndWaitsForReadsInFlight) {
  add();
  EXPECT_EQ(queue_->take({}, /*wait_ms=*/0), 0u);  // begins it
  const pid_t owner = ::gettid();
  std::atomic<bool> has_ended = false;
  bool has_ended_early = false;
  std::thread disk([&] {
    while (!is_asleep(owner) && !has_ended) std::this_thread::yield();
    has_ended_early = has_ended;
    answer();
  });
  queue_.reset();
  has_ended = true;
  const bool is_complete = has_answer();
  disk.join();
  EXPECT_FALSE(has_ended_early);
  EXPECT_TRUE(is_complete);
}

// The kernel had no memory, or no room among its requests, when the read was to begin.
TEST_F(UringQueue, WhatTheKernelHasNoRoomForIsTriedAgainWithPauses) {
  for (const int error : {ENOMEM, EAGAIN, EBUSY}) {
    SCOPED_TRACE(std::strerror(error));
    FinishedRead finished[2];
    add();
    test::run_refusing(SYS_io_uring_enter, error, [&] {
      rusage before{}, after{};
      ::getrusage(RUSAGE_THREAD, &before);
      EXPECT_EQ(queue_->take(finished, /*wait_ms=*/20), 0u);
      ::getrusage(RUSAGE_THREAD, &after);
      EXPECT_GT(after.ru_nvcsw, before.ru_nvcsw) << "it slept";
      EXPECT_EQ(queue_->take(finished, /*wait_ms=*/0), 0u);
    });
    answer();
    ASSERT_EQ(queue_->take(finished, kWaitMs), 1u);
    EXPECT_EQ(finished[0].result, 6);
  }
}

TEST(OpenUringQueue, IsRefusedByNameWhereTheProcessMayNotUseIt) {
  Result<std::unique_ptr<ReadQueue>> queue = make_blocking_queue(1);
  test::run_without_io_uring([&] { queue = open_uring_queue(8); });
  ASSERT_FALSE(queue.has_value());
  EXPECT_EQ(queue.error().message, "io_uring: Operation not permitted");
}

}  // namespace
}  // namespace millrace
