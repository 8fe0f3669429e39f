#include "console.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "base/format.h"
#include "commands.h"
#include "sys/file.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

constexpr std::string_view kDim = "\033[2m", kNormal = "\033[0m", kClearLine = "\r\033[K";

// A signal handler can reach nothing but globals. The pipe wakes whoever waits for input: a signal
// that comes just before the wait, or on another thread, would not.
int interrupt_pipe[2] = {-1, -1};

void on_interrupt(int) {
  const int saved_errno = errno;
  [[maybe_unused]] const ssize_t written = write(interrupt_pipe[1], "", 1);
  errno = saved_errno;
}

// Messages quote names from files, which may hold line ends or what a terminal obeys.
std::string printable(std::string_view text) {
  std::string printable;
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t{0}; };
  const auto is_c1 = [&](size_t i) {  // U+0080 to U+009F, in UTF-8
    return byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (byte(i) >= 0x20 && byte(i) != 0x7f && !is_c1(i) && !(i > 0 && is_c1(i - 1))) {
      printable += text[i];
      continue;
    }
    char escaped[5];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", unsigned(byte(i)));
    printable += escaped;
  }
  return printable;
}

Result<std::string> read_stream(const std::string& name, int fd) {
  constexpr size_t kMaxBytes = size_t{1} << 30;  // as of a file
  std::string content;
  char piece[1 << 16];
  while (true) {
    const ssize_t count = ::read(fd, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return Error{Code::kUnavailable, format(name, ": cannot read: ", std::strerror(errno))};
    }
    if (count == 0) return content;
    content.append(piece, size_t(count));
    if (content.size() > kMaxBytes) {
      return Error{Code::kExhausted, format(name, ": more than ", kMaxBytes, " bytes")};
    }
  }
}

}  // namespace

bool stdin_is_terminal() { return isatty(STDIN_FILENO); }
bool stdout_is_terminal() { return isatty(STDOUT_FILENO); }
bool stderr_is_terminal() { return isatty(STDERR_FILENO); }

void warn(std::string_view message) {
  std::cout.flush();
  std::cerr << "millrace: " << printable(message) << "\n";
}

int fail(const Error& error) {
  warn(error.message);
  return error.code == Code::kCancelled ? kExitInterrupted : kExitError;
}

int fail_usage(const Error& error) {
  fail(error);
  return kExitUsage;
}

void print(std::string_view text) { std::cout << text << std::flush; }

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // Takes the lowest number that is free. Only to read, so that output is still reported as lost.
    if (fcntl(fd, F_GETFD) == -1) [[maybe_unused]] const int opened = open("/dev/null", O_RDONLY);
  }
}

int finish_output(int status) {
  if (std::cout.flush() || status != kExitOk) return status;
  return fail({Code::kUnavailable, "stdout: cannot write all of the output"});
}

Result<std::string> read_input(const std::string& file) {
  if (file == "-") return read_stream("stdin", STDIN_FILENO);
  struct stat info;
  const bool is_stream = ::stat(file.c_str(), &info) == 0 && !S_ISREG(info.st_mode) &&
                         !S_ISDIR(info.st_mode);
  if (!is_stream) return read_file(file);
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    return Error{Code::kUnavailable, format(file, ": cannot open: ", std::strerror(errno))};
  }
  return read_stream(file, fd.get());
}

Interrupts::Interrupts(std::initializer_list<int> signals) {
  if (pipe2(interrupt_pipe, O_NONBLOCK | O_CLOEXEC) != 0) return;  // then Ctrl-C ends the program
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  for (const int signal : signals) {
    sigaction(signal, &action, &previous_.emplace_back(signal, action).second);
  }
}

Interrupts::~Interrupts() {
  if (interrupt_pipe[0] < 0) return;
  for (const auto& [signal, action] : previous_) sigaction(signal, &action, nullptr);
  for (int& fd : interrupt_pipe) close(std::exchange(fd, -1));
}

bool Interrupts::take() {
  char bytes[64];
  return interrupt_pipe[0] >= 0 && read(interrupt_pipe[0], bytes, sizeof bytes) > 0;
}

bool Interrupts::wait_for_input() {
  pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_pipe[0], POLLIN, 0}};
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  return !take();
}

LineReader::Event LineReader::read(std::string& line) {
  while (true) {
    const size_t end = buffered_.find('\n');
    if (end != std::string::npos || (at_end_ && !buffered_.empty())) {
      line = buffered_.substr(0, end);
      buffered_.erase(0, end == std::string::npos ? end : end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return Event::kLine;
    }
    if (at_end_) return Event::kEnd;
    if (!Interrupts::wait_for_input()) return Event::kInterrupt;
    char chunk[4096];
    const ssize_t count = ::read(STDIN_FILENO, chunk, sizeof chunk);
    if (count > 0) {
      buffered_.append(chunk, size_t(count));
    } else {
      at_end_ = true;
    }
  }
}

ReplyPrinter::ReplyPrinter(bool fold)
    : is_terminal_(stdout_is_terminal() && std::getenv("NO_COLOR") == nullptr), fold_(fold) {}

ReplyPrinter::~ReplyPrinter() { finish(); }

void ReplyPrinter::write(std::string_view text) {
  if (text.empty()) return;
  std::cout << text;
  at_line_start_ = text.back() == '\n';
}

void ReplyPrinter::begin(Part part) {
  if (part_ == part) return;
  if (part_ == Part::kReasoning) {
    if (fold_) {
      write("\n");
    } else if (is_terminal_) {
      if (!at_line_start_) write("\n");
      std::cout << kNormal;
    } else {
      write(at_line_start_ ? "</think>\n" : "\n</think>\n");
    }
  }
  if (part_ != Part::kNone && !at_line_start_) write("\n");
  part_ = part;
  if (part != Part::kReasoning) return;
  if (is_terminal_) std::cout << kDim;
  if (fold_) {
    write("(thinking)");
    if (is_terminal_) std::cout << kNormal;
  } else if (!is_terminal_) {
    write("<think>\n");
  }
}

void ReplyPrinter::print_events(const std::vector<ReplyEvent>& events) {
  for (const ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        begin(Part::kReasoning);
        if (!fold_) write(event.text);
        break;
      case ReplyEvent::Kind::kContent:
        begin(Part::kContent);
        write(event.text);
        break;
      case ReplyEvent::Kind::kToolCall:
        begin(Part::kNone);
        begin(Part::kCall);
        write(format("[call] ", event.text, " "));
        break;
      case ReplyEvent::Kind::kArguments:
        write(event.text);
        break;
    }
  }
  std::cout.flush();
}

void ReplyPrinter::finish() {
  begin(Part::kNone);
  std::cout.flush();
}

Progress::~Progress() {
  if (is_line_open_) std::cerr << kClearLine;
}

void Progress::operator()(int64_t num_done, int64_t num_all) {
  const bool is_terminal = stderr_is_terminal();
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < (is_terminal ? std::chrono::milliseconds(100) : pause_)) return;
  last_ = now;
  const std::string line = format(what_, ": ", num_done, " of ", num_all, " ", unit_);
  if (is_terminal) {
    std::cerr << kClearLine << line << std::flush;
    is_line_open_ = true;
  } else {
    std::cerr << line << "\n";
    pause_ *= 2;
  }
}

}  // namespace millrace
