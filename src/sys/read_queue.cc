#include "sys/read_queue.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"

namespace millrace {
namespace {

// Between two tries to begin reads for which the kernel had no room.
constexpr std::chrono::milliseconds kPause{1};

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class UringQueue : public ReadQueue {
 public:
  UringQueue(const io_uring& ring, size_t capacity) : ring_(ring), capacity_(capacity) {}

  ~UringQueue() override {
    FinishedRead finished[16];
    while (num_in_flight_ > 0) take(finished, /*wait_ms=*/60'000);
    io_uring_queue_exit(&ring_);
  }

  const char* name() const override { return "io_uring"; }
  size_t capacity() const override { return capacity_; }

  void add(const FileRead& read) override {
    MR_CHECK_OP(num_in_flight_, <, capacity_);
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    MR_CHECK(entry != nullptr);  // the ring has room for all that may be in flight
    io_uring_prep_read(entry, read.fd, read.to.data(), unsigned(read.to.size()), read.offset);
    io_uring_sqe_set_data64(entry, read.tag);
    ++num_in_flight_;
  }

  size_t take(std::span<FinishedRead> finished, int64_t wait_ms) override {
    MR_CHECK(wait_ms == 0 || num_in_flight_ > 0);
    size_t count = reap(finished);
    const int64_t deadline_ns = now_ns() + wait_ms * 1'000'000;
    // One call both begins what was added and waits. It may be interrupted, or the kernel may have
    // no room for more reads at the moment.
    for (;;) {
      const int64_t left_ns = wait_ms > 0 && count == 0 ? deadline_ns - now_ns() : 0;
      if (left_ns <= 0 && io_uring_sq_ready(&ring_) == 0) return count;
      const int result = left_ns > 0 ? submit_and_wait(left_ns) : io_uring_submit(&ring_);
      const bool lacks_room = result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
      if (result < 0 && !lacks_room && result != -EINTR && result != -ETIME) {
        check_failed(__FILE__, __LINE__, std::strerror(-result));
      }
      const size_t num_new = reap(finished.subspan(count));
      count += num_new;
      if (result < 0 && left_ns <= 0) return count;  // what was not begun begins with the next call
      // Reads that end, here or elsewhere, make room.
      if (lacks_room && num_new == 0) std::this_thread::sleep_for(kPause);
    }
  }

 private:
  int submit_and_wait(int64_t ns) {
    __kernel_timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
    io_uring_cqe* first = nullptr;
    return io_uring_submit_and_wait_timeout(&ring_, &first, 1, &time, nullptr);
  }

  size_t reap(std::span<FinishedRead> finished) {
    size_t count = 0;
    for (io_uring_cqe* entry = nullptr;
         count < finished.size() && io_uring_peek_cqe(&ring_, &entry) == 0 && entry != nullptr;) {
      finished[count++] = {io_uring_cqe_get_data64(entry), entry->res};
      io_uring_cqe_seen(&ring_, entry);
    }
    num_in_flight_ -= count;
    return count;
  }

  io_uring ring_;
  const size_t capacity_;
  size_t num_in_flight_ = 0;
};

class BlockingQueue : public ReadQueue {
 public:
  explicit BlockingQueue(size_t capacity) : reads_(capacity) {}

  const char* name() const override { return "pread"; }
  size_t capacity() const override { return reads_.size(); }

  void add(const FileRead& read) override {
    MR_CHECK_OP(count_, <, reads_.size());
    reads_[(first_ + count_++) % reads_.size()] = read;
  }

  size_t take(std::span<FinishedRead> finished, int64_t wait_ms) override {
    MR_CHECK(wait_ms == 0 || count_ > 0);
    if (wait_ms == 0 || finished.empty()) return 0;
    const FileRead& read = reads_[first_];
    const ssize_t result = ::pread(read.fd, read.to.data(), read.to.size(), off_t(read.offset));
    finished[0] = {read.tag, result < 0 ? -int64_t(errno) : int64_t(result)};
    first_ = (first_ + 1) % reads_.size();
    --count_;
    return 1;
  }

 private:
  std::vector<FileRead> reads_;  // a ring
  size_t first_ = 0, count_ = 0;
};

Error unavailable(int error) {
  return {Code::kUnavailable, format("io_uring: ", std::strerror(error))};
}

}  // namespace

Result<std::unique_ptr<ReadQueue>> open_uring_queue(size_t capacity) {
  io_uring ring{};
  const int result = io_uring_queue_init(unsigned(capacity), &ring, 0);
  if (result < 0) return unavailable(-result);
  auto queue = std::make_unique<UringQueue>(ring, capacity);
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ);
  if (probe != nullptr) io_uring_free_probe(probe);
  if (!can_read) return unavailable(ENOSYS);
  return std::unique_ptr<ReadQueue>(std::move(queue));
}

std::unique_ptr<ReadQueue> make_blocking_queue(size_t capacity) {
  return std::make_unique<BlockingQueue>(capacity);
}

}  // namespace millrace
