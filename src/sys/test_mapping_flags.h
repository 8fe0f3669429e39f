#pragma once

#include <cstdint>
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

}  // namespace millrace::test
