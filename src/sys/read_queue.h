#pragma once

// Reads of files into memory, many in flight at a time: a disk reaches its rate only when it has
// several large ones to do.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace millrace {

struct FileRead {
  int fd = -1;
  uint64_t offset = 0;
  std::span<std::byte> to;
  uint64_t tag = 0;  // the caller's
};

struct FinishedRead {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes read, perhaps fewer than asked for; or an error as -errno
};

// Threading: one owner at a time. What is read may be looked at by any thread that is started, or
// told, afterwards.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;  // waits for all reads in flight
  virtual const char* name() const = 0;
  virtual size_t capacity() const = 0;

  // Begins a read, at the latest with the next take(). Requires: fewer in flight than capacity().
  virtual void add(const FileRead& read) = 0;

  // Reads that have ended, at most finished.size(); their number. Waits for the first of them for
  // wait_ms at most; 0: not at all. Requires: something is in flight, if it is to wait.
  virtual size_t take(std::span<FinishedRead> finished, int64_t wait_ms) = 0;
};

// The kernel reads while the caller goes on (io_uring). Refused where the kernel is older than 5.6,
// or the process may not use it.
Result<std::unique_ptr<ReadQueue>> open_uring_queue(size_t capacity);

// Reads one after the other, when somebody waits for them: for as long as each takes.
std::unique_ptr<ReadQueue> make_blocking_queue(size_t capacity);

}  // namespace millrace
