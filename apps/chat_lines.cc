#include <iostream>

#include "chat/json.h"
#include "chat/json_lines.h"
#include "commands.h"
#include "console.h"

namespace millrace {
namespace {

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
      std::cout << convert(line) << "\n";
      // A refused request is an answer; a line that is not JSON means that the file is not what it
      // was taken for.
      if (!parse_json(line).has_value()) status = kExitError;
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return status;
}

}  // namespace

int run_chat_encode(const std::string& file) { return map_lines(file, chat_encode_line); }
int run_chat_parse(const std::string& file) { return map_lines(file, chat_parse_line); }

}  // namespace millrace
