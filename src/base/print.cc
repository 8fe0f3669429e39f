#include "base/print.h"

#include <cstdarg>
#include <cstdio>

#include "base/check.h"

namespace millrace {

void append_printf(std::string& out, const char* form, ...) {
  std::va_list values, again;
  va_start(values, form);
  va_copy(again, values);
  const int size = std::vsnprintf(nullptr, 0, form, values);
  va_end(values);
  MR_CHECK_OP(size, >=, 0);
  const size_t begin = out.size();
  out.resize(begin + size_t(size) + 1);  // printf ends with a zero
  std::vsnprintf(out.data() + begin, size_t(size) + 1, form, again);
  va_end(again);
  out.pop_back();
}

}  // namespace millrace
