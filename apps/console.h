#pragma once

// The terminal: what is printed where, the line that is read, and Ctrl-C.

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "chat/reply_parser.h"

namespace millrace {

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

// "millrace: MESSAGE" on stderr.
void warn(std::string_view message);

// The same; they return the exit status: of trouble or of Ctrl-C (kCancelled), and of a command
// line that makes no sense.
int fail(const Error& error);
int fail_usage(const Error& error);

// Writes and flushes, so that streamed text shows at once.
void print(std::string_view text);

// Puts /dev/null where stdin, stdout or stderr is closed: a file or pipe opened later would take
// its number.
void open_standard_streams();

// Flushes stdout; the status, or that of an error when something printed was not written.
int finish_output(int status);

// The whole of a file, a pipe or a device, or of stdin for "-".
Result<std::string> read_input(const std::string& file);

// While one lives, Ctrl-C is noted instead of ending the program. At most one at a time.
class Interrupts {
 public:
  //   signals  that count as Ctrl-C, which is SIGINT
  explicit Interrupts(std::initializer_list<int> signals = {SIGINT});
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Whether Ctrl-C came since the last call.
  static bool take();

  // Waits until stdin has something, or its end; false: Ctrl-C came first.
  static bool wait_for_input();

 private:
  std::vector<std::pair<int, struct sigaction>> previous_;
};

// Lines of stdin. Reads by itself, not through a stream: a Ctrl-C must end the wait. Requires: an
// Interrupts lives.
class LineReader {
 public:
  enum class Event { kLine, kEnd, kInterrupt };
  Event read(std::string& line);

 private:
  std::string buffered_;
  bool at_end_ = false;
};

// A reply as it comes: thinking dim on a terminal, or folded to one line; tool calls by name.
class ReplyPrinter {
 public:
  explicit ReplyPrinter(bool fold);
  ~ReplyPrinter();

  void print_events(const std::vector<ReplyEvent>& events);
  void finish();  // ends an open line and leaves dim

 private:
  enum class Part { kNone, kReasoning, kContent, kCall };
  void begin(Part part);

  const bool is_terminal_, fold_;
  Part part_ = Part::kNone;
  bool at_line_start_ = true;
  void write(std::string_view text);
};

// Reports work that takes long, "loading DIR: 3 of 48 files": all the time on a terminal, otherwise
// after one second and then ever more seldom.
class Progress {
 public:
  Progress(std::string what, std::string unit) : what_(std::move(what)), unit_(std::move(unit)) {}
  ~Progress();
  void operator()(int64_t num_done, int64_t num_all);

 private:
  std::string what_, unit_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::chrono::seconds pause_{1};  // of lines that stay
  bool is_line_open_ = false;
};

}  // namespace millrace
