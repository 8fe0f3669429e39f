#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace millrace {

// Of texts that a client may make as long as it likes: the beginning, and that it is only that.
std::string shortened(std::string_view text);

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines on stderr, written by a thread of their own: whoever logs never waits. If nobody takes
// them, the oldest are lost. MILLRACE_LOG_LEVEL (debug, info, warning, error, off) says from which
// level on; info if it is not set.
//
// Threading: any thread.
class Log {
 public:
  explicit Log(bool json);
  ~Log();  // after everything is written
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // A text or a number.
  struct Value {
    Value(std::string text) : content(std::move(text)) {}
    Value(const char* text) : content(std::string(text)) {}
    template <std::integral T>
    Value(T number) : content(int64_t(number)) {}
    Value(double number) : content(number) {}

    std::variant<std::string, int64_t, double> content;
  };
  // `message` and what belongs to it, by name.
  using Fields = std::vector<std::pair<std::string_view, Value>>;
  void write(LogLevel level, std::string_view message, const Fields& fields = {});
  // Whatever MILLRACE_LOG_LEVEL says: where the server is to be found, and why there is none.
  void write_always(LogLevel level, std::string_view message, const Fields& fields = {});

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace millrace
