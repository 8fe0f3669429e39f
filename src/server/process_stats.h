#pragma once

#include <cstdint>

namespace millrace {

// What the system knows of this process; 0 where it does not say.
struct ProcessStats {
  double cpu_s = 0;         // of all threads
  double start_time_s = 0;  // since 1970
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

ProcessStats process_stats();

}  // namespace millrace
