#pragma once

#include <memory>
#include <utility>

#include "sys/read_queue.h"

namespace millrace::test {

// io_uring where the process may use it. What a test says of reads holds without it, too.
inline std::unique_ptr<ReadQueue> open_queue(size_t capacity) {
  Result<std::unique_ptr<ReadQueue>> queue = open_uring_queue(capacity);
  return queue.has_value() ? std::move(queue.value()) : make_blocking_queue(capacity);
}

}  // namespace millrace::test
