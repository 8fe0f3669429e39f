#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

// Named shape check: every symbol keeps the first size bound to it. A mismatch is a caller's bug:
// it prints the operation, the symbol and both sizes, and stops the program.
//
//   Dims("matmul_fp8").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('K', w.k);
class Dims {
 public:
  explicit Dims(std::string_view operation) : operation_(operation) {}
  Dims& bind(char symbol, int64_t size);

 private:
  std::string_view operation_;
  int64_t sizes_[128] = {};  // 0 = not bound yet, otherwise size + 1
};

}  // namespace millrace
