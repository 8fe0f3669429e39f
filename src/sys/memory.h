#pragma once

#include <cstdint>

namespace millrace {

// Memory this process may use: the machine's RAM, or less if a cgroup limits it.
int64_t memory_limit_bytes();

// Private memory of this process that is in RAM now (mapped files do not count).
int64_t anonymous_bytes();

}  // namespace millrace
