#include "server/process_stats.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace millrace {
namespace {

double clock_s(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

}  // namespace

ProcessStats process_stats() {
  ProcessStats stats;
  stats.cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = int64_t(limit.rlim_cur);
  std::error_code error;
  std::filesystem::directory_iterator fds("/proc/self/fd", error);
  for (; !error && fds != std::filesystem::directory_iterator(); fds.increment(error)) {
    ++stats.open_fds;
  }

  // proc(5): the name in parentheses may hold anything; behind it the third field comes.
  std::FILE* file = std::fopen("/proc/self/stat", "r");
  if (file == nullptr) return stats;
  char text[1024] = {};
  const size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[size] = 0;
  const char* rest = std::strrchr(text, ')');
  uint64_t start_ticks = 0;
  if (rest != nullptr &&
      std::sscanf(rest + 1,
                  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d "
                  "%" SCNu64 " %" SCNd64 " %" SCNd64,
                  &start_ticks, &stats.virtual_bytes, &stats.resident_bytes) == 3) {
    stats.resident_bytes *= sysconf(_SC_PAGESIZE);
    const double age_s =
        clock_s(CLOCK_BOOTTIME) - double(start_ticks) / double(sysconf(_SC_CLK_TCK));
    stats.start_time_s = clock_s(CLOCK_REALTIME) - age_s;
  }
  return stats;
}

}  // namespace millrace
