#pragma once

// Checks for mistakes of the program itself. They stay on in release builds, print what was
// compared and abort. Mistakes of the outside world are `Status` values (base/status.h).

namespace millrace {

[[noreturn]] void check_failed(const char* file, int line, const char* condition);
[[noreturn]] void check_failed(const char* file, int line, const char* condition, long long left,
                               long long right);

}  // namespace millrace

#define MR_CHECK(condition) \
  ((condition) ? void(0) : ::millrace::check_failed(__FILE__, __LINE__, #condition))

// Integer comparison that prints both values: MR_CHECK_OP(rows, ==, expected_rows).
#define MR_CHECK_OP(left, op, right)                                                          \
  (((left)op(right)) ? void(0)                                                                \
                     : ::millrace::check_failed(__FILE__, __LINE__, #left " " #op " " #right, \
                                                (long long)(left), (long long)(right)))

// For checks measured too hot for release builds.
#ifdef NDEBUG
#define MR_DCHECK(condition) void(0)
#else
#define MR_DCHECK(condition) MR_CHECK(condition)
#endif
