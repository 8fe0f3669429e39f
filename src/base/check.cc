#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace millrace {

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

void check_failed(const char* file, int line, const char* condition, long long left,
                  long long right) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%lld against %lld)\n", file, line, condition,
               left, right);
  std::abort();
}

}  // namespace millrace
