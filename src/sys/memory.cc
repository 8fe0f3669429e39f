#include "sys/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace millrace {
namespace {

// The number in a file that holds just one; `otherwise` if there is none ("max" means no limit).
int64_t number_in(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : otherwise;
}

// The limits of this process's cgroup and of those around it.
int64_t cgroup_limit(int64_t otherwise) {
  int64_t limit = std::min(number_in("/sys/fs/cgroup/memory.max", otherwise),
                           number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", otherwise));
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
      limit = std::min(limit, number_in("/sys/fs/cgroup" + path + "/memory.max", otherwise));
    }
  }
  return limit;
}

}  // namespace

int64_t memory_limit_bytes() {
  const int64_t ram = int64_t(::sysconf(_SC_PHYS_PAGES)) * int64_t(::sysconf(_SC_PAGESIZE));
  return std::min(ram, cgroup_limit(ram));
}

int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::atoll(line.c_str() + 8) * 1024;
  }
  return 0;
}

}  // namespace millrace
