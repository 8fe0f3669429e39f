#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "loadgen/record.h"
#include "loadgen/target.h"
#include "loadgen/workload.h"
#include "net/event_loop.h"

namespace millrace {

struct RunProgress {
  int64_t elapsed_ns = 0;
  int64_t num_done = 0, num_all = 0, num_failed = 0, num_running = 0;
};

struct RunOptions {
  std::optional<int64_t> duration_ns;  // nothing is sent any more behind it; none: all requests
  std::function<void(const RunProgress&)> on_progress;  // about twice a second
  std::function<bool()> is_interrupted;                 // asked as often; gives up what runs
};

struct RunOutcome {
  std::vector<RequestRecord> records;  // in the order in which they ended
  int64_t wall_ns = 0;
  int64_t client_cpu_ns = 0;   // of the thread that sent and read everything
  double peak_client_cpu = 0;  // its share of the busiest half second
  int64_t num_planned = 0;
  bool was_interrupted = false;
};

// Runs a workload against a target, on the caller's thread. Requires: the loop does not run.
RunOutcome run_workload(net::EventLoop& loop, Workload& workload, Target& target,
                        const RunOptions& options);

// Times of the calling thread and of the monotonic clock.
int64_t thread_cpu_ns();
int64_t monotonic_ns();

}  // namespace millrace
