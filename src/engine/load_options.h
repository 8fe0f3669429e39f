#pragma once

#include <string>

#include "model/numerics.h"

namespace millrace {

inline constexpr int kMaxThreads = 1024;

struct LoadOptions {
  std::string model_dir;
  Numerics numerics = Numerics::kReference;
  int num_threads = 0;  // 0: as many as the process may use
  std::string isa;      // name of a kernel table; empty: the best one
};

}  // namespace millrace
