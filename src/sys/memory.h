#pragma once

#include <cstdint>
#include <string>

namespace millrace {

// Memory this process may use: the machine's RAM, or less if a cgroup limits it.
int64_t memory_limit_bytes();

// Of that, what is free or can be freed: page cache counts.
int64_t memory_available_bytes();

// Private memory of this process that is in RAM now (mapped files do not count).
int64_t anonymous_bytes();

// How memory is cut into pages.
struct PageModes {
  int64_t page_bytes = 0;
  int64_t huge_page_bytes = 0;  // of transparent huge pages; 0: the kernel has none
  // "always", "madvise" (where a program asks for them) or "never"; empty: the kernel has none.
  std::string transparent_huge_pages;
  int64_t pool_pages = 0;  // set aside by whoever runs the machine, for programs that name them
};

// Reads below `root`, which is not the machine's own only in tests.
PageModes read_page_modes(const std::string& root = "");

// This process's memory in huge pages now. Reading it takes time where much is mapped.
struct HugePageUse {
  int64_t file_bytes = 0;  // mapped files
  int64_t anonymous_bytes = 0;
};
HugePageUse read_huge_page_use(const std::string& root = "");

}  // namespace millrace
