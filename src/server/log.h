#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines on stderr, written by a thread of their own: whoever logs never waits. If nobody takes
// them, the oldest are lost. MILLRACE_LOG_LEVEL (debug, info, warning, error) says from which level
// on; info if it is not set.
//
// Threading: any thread.
class Log {
 public:
  explicit Log(bool json);
  ~Log();  // after everything is written
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // `message` and what belongs to it, by name.
  using Fields = std::vector<std::pair<std::string_view, std::string>>;
  void write(LogLevel level, std::string_view message, const Fields& fields = {});

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace millrace
