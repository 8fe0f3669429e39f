#include "tensor/dims.h"

#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace millrace {

Dims& Dims::bind(char symbol, int64_t size) {
  MR_CHECK(size >= 0);
  int64_t& known = sizes_[size_t(symbol) & 127];
  if (known == 0) known = size + 1;
  if (known != size + 1) {
    std::fprintf(stderr, "%.*s: dimension %c is %lld here and %lld there\n",
                 int(operation_.size()), operation_.data(), symbol, (long long)size,
                 (long long)(known - 1));
    std::abort();
  }
  return *this;
}

}  // namespace millrace
