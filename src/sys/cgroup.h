#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

// What control groups leave this process: its own and those around it, of version 1 and 2. The
// tightest limit counts; none: no group limits it.
struct CgroupLimits {
  std::optional<double> cpus;  // processors' worth of time
  std::optional<int64_t> memory_bytes;
  // What is unused, or page cache that can be dropped: of the group with the least of it.
  std::optional<int64_t> memory_available_bytes;
};

// Reads below `root`, which is not the machine's own only in tests: /proc/self/cgroup,
// /proc/self/mountinfo and the folders that they name. What is not there limits nothing.
CgroupLimits read_cgroup_limits(const std::string& root = "");

}  // namespace millrace
