#pragma once

// Writes to loopback sockets, with a thread that reads them: what a server pays at least.

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace millrace {

struct LoopbackWrites {
  double cpu_us = 0;            // of the writing thread, for one
  std::vector<double> late_ms;  // of each that was due: until it was read
};

// One thread writes to each of the sockets in turn, again and again: as fast as it can, or all of
// them every `step`, as an engine gives every stream its tokens.
LoopbackWrites write_to_loopback(int num_sockets, size_t num_bytes, double seconds,
                                 std::optional<std::chrono::microseconds> step);

}  // namespace millrace
