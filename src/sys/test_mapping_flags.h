#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace millrace::test {

// The kernel's flags of the mapping at an address: " rd mr mw me hg ... ".
inline std::string mapping_flags(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream(line) >> std::hex >> begin >> dash >> end && dash == '-') {
      const auto at = reinterpret_cast<uintptr_t>(address);
      is_it = begin <= at && at < end;
    }
    if (is_it && line.starts_with("VmFlags:")) return line.substr(8) + " ";
  }
  return {};
}

// Bytes of the file's mappings that are in this process's memory.
inline int64_t resident_bytes(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    int64_t kib = 0;
    if (line.find(" r") != line.npos && line.find('-') < line.find(' ')) {
      is_here = line.ends_with(path);
    } else if (is_here && std::sscanf(line.c_str(), "Rss: %" SCNd64, &kib) == 1) {
      bytes += kib * 1024;
    }
  }
  return bytes;
}

}  // namespace millrace::test
