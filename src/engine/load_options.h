#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/numerics.h"

namespace millrace {

inline constexpr int kMaxThreads = 1024;

struct LoadOptions {
  std::string model_dir;
  Numerics numerics = Numerics::kReference;
  int num_threads = 0;  // 0: as many as are best (sys/thread_plan.h)
  bool serves = false;  // a thread for the network works beside them
  std::string isa;      // name of a kernel table; empty: the best one
  // Memory for routed experts that are read from the disk when they are needed. 0: they are mapped
  // as everything else. None: mapped if they fit into memory, or else what memory leaves.
  std::optional<int64_t> expert_cache_bytes;
};

}  // namespace millrace
