#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

// Of a file; both are multiples of 4096 bytes. An end beyond the file is the file's.
struct DiskRange {
  std::string path;
  uint64_t begin = 0, end = UINT64_MAX;
};

// How fast the disk is read past the page cache: the bytes of these ranges in their order, at most
// max_bytes, `piece_bytes` at a time of which `in_flight` are on their way. In units of 1e9 per
// second.
Result<double> measure_disk(const std::vector<DiskRange>& ranges, size_t piece_bytes,
                            size_t in_flight, size_t max_bytes);

}  // namespace millrace
