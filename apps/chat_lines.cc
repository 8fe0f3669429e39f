#include <iostream>

#include "chat/json.h"
#include "chat/json_lines.h"
#include "commands.h"
#include "console.h"

namespace millrace {
namespace {

bool is_error(std::string_view result) {
  const Result<JsonValue> line = parse_json(result);
  return !line.has_value() || line.value().find("error") != nullptr;
}

int map_lines(const std::string& file, std::string (*convert)(std::string_view)) {
  const Result<std::string> input = read_input(file);
  if (!input.has_value()) return fail(input.error());
  int status = kExitOk;
  std::string_view rest = input.value();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty()) {
      const std::string result = convert(line);
      if (is_error(result)) status = kExitError;
      std::cout << result << "\n";
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return status;
}

}  // namespace

int run_chat_encode(const std::string& file) { return map_lines(file, chat_encode_line); }
int run_chat_parse(const std::string& file) { return map_lines(file, chat_parse_line); }

}  // namespace millrace
