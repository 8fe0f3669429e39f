#include "server/log.h"

#include <cstdlib>
#include <memory>

#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "base/format.h"
#include "chat/json_writer.h"

namespace millrace {
namespace {

constexpr size_t kMaxLines = 8192;  // that wait to be written

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Empty or unknown: info. spdlog takes what it does not know for off, and a misspelt level must not
// silence errors.
spdlog::level::level_enum level_of_environment() {
  const char* name = std::getenv("MILLRACE_LOG_LEVEL");
  if (name == nullptr) return spdlog::level::info;
  const spdlog::level::level_enum level = spdlog::level::from_str(name);
  const bool is_unknown = level == spdlog::level::off && std::string_view(name) != "off";
  return is_unknown ? spdlog::level::info : level;
}

}  // namespace

std::string shortened(std::string_view text) {
  constexpr size_t kMostBytes = 1024;
  if (text.size() <= kMostBytes) return std::string(text);
  size_t end = kMostBytes;
  while (end > 0 && (uint8_t(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return format(text.substr(0, end), "... (", text.size(), " bytes)");
}

struct Log::Impl {
  std::shared_ptr<spdlog::details::thread_pool> writer;
  std::shared_ptr<spdlog::async_logger> logger;
  spdlog::level::level_enum level;
  bool json;
};

Log::Log(bool json) : impl_(new Impl) {
  impl_->json = json;
  impl_->writer = std::make_shared<spdlog::details::thread_pool>(kMaxLines, 1);
  impl_->logger = std::make_shared<spdlog::async_logger>(
      "millrace", std::make_shared<spdlog::sinks::stderr_sink_mt>(), impl_->writer,
      spdlog::async_overflow_policy::overrun_oldest);
  impl_->level = level_of_environment();
  impl_->logger->set_level(spdlog::level::trace);  // what write() passes on
  impl_->logger->set_pattern(json ? R"({"time": "%Y-%m-%dT%H:%M:%S.%e%z", "level": "%l", %v})"
                                  : "%Y-%m-%d %H:%M:%S.%e %L %v");
}

Log::~Log() {
  impl_->writer.reset();  // writes what is left, and ends its thread
  delete impl_;
}

void Log::write(LogLevel level, std::string_view message, const Fields& fields) {
  if (spdlog_level(level) >= impl_->level) write_always(level, message, fields);
}

void Log::write_always(LogLevel level, std::string_view message, const Fields& fields) {
  std::string line;
  if (impl_->json) {
    JsonWriter json;
    json.begin_object().member("message", message);
    for (const auto& [name, value] : fields) {
      json.key(name);
      std::visit([&](const auto& content) { json.value(content); }, value.content);
    }
    line = json.end_object().text();
    line = line.substr(1, line.size() - 2);  // the pattern has the braces
  } else {
    line = message;
    for (const auto& [name, value] : fields) {
      line += ' ';
      line += name;
      line += '=';
      std::visit([&](const auto& content) { line += format(content); }, value.content);
    }
    // One line is one event, whatever a client sent.
    for (char& c : line) {
      if (uint8_t(c) < 0x20 || c == 0x7f) c = '?';
    }
  }
  impl_->logger->log(spdlog_level(level), "{}", line);
}

}  // namespace millrace
