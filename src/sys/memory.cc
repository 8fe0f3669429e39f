#include "sys/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "sys/cgroup.h"

namespace millrace {
namespace {

int64_t ram_bytes() {
  return int64_t(::sysconf(_SC_PHYS_PAGES)) * int64_t(::sysconf(_SC_PAGESIZE));
}

// The value of a line "KEY:  123 kB", in bytes; `otherwise` if there is no such line.
int64_t kilobytes_of(const std::string& path, std::string_view key, int64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ':') {
      return std::atoll(line.c_str() + key.size() + 1) * 1024;
    }
  }
  return otherwise;
}

int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : 0;
}

}  // namespace

int64_t memory_limit_bytes() {
  return std::min(ram_bytes(), read_cgroup_limits().memory_bytes.value_or(ram_bytes()));
}

int64_t memory_available_bytes() {
  const int64_t available = kilobytes_of("/proc/meminfo", "MemAvailable", ram_bytes());
  return std::min(available, read_cgroup_limits().memory_available_bytes.value_or(available));
}

int64_t anonymous_bytes() { return kilobytes_of("/proc/self/status", "RssAnon", 0); }

PageModes read_page_modes(const std::string& root) {
  PageModes modes;
  modes.page_bytes = ::sysconf(_SC_PAGESIZE);
  const std::string folder = root + "/sys/kernel/mm/transparent_hugepage";
  modes.huge_page_bytes = number_in(folder + "/hpage_pmd_size");
  std::ifstream choice(folder + "/enabled");  // "always [madvise] never"
  for (std::string word; choice >> word;) {
    if (word.starts_with('[') && word.ends_with(']')) {
      modes.transparent_huge_pages = word.substr(1, word.size() - 2);
    }
  }
  modes.pool_pages = number_in(root + "/proc/sys/vm/nr_hugepages");
  return modes;
}

HugePageUse read_huge_page_use(const std::string& root) {
  const std::string path = root + "/proc/self/smaps_rollup";
  return {kilobytes_of(path, "FilePmdMapped", 0), kilobytes_of(path, "AnonHugePages", 0)};
}

}  // namespace millrace
