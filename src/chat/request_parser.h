#pragma once

// The trust boundary between a client's JSON and the encoder: names as in the Chat Completions
// API, plus the encoder's own extras (role latest_reminder, task, tools and response_format on a
// message, prefix). What it returns is valid; what it refuses it names by path, with what was found
// and what was expected. Fields that do not shape the prompt (model, temperature, ...) are ignored.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json.h"
#include "chat/json_node.h"
#include "chat/messages.h"

namespace millrace {

struct EffortLevel {
  std::string name;
  int effort;  // 1..100
};

// The levels of the release (low, high, max) and the names other APIs use for them.
std::vector<EffortLevel> default_effort_levels();

struct ChatParseOptions {
  JsonLimits limits;
  std::vector<EffortLevel> efforts = default_effort_levels();
  std::string default_effort = "high";  // one of `efforts`
};

// A name or 1 to 100; absent: the default. None: no thinking at all.
Result<std::optional<int>> read_effort(const JsonNode& effort, const ChatParseOptions& options);

Result<ChatRequest> parse_chat_request(std::string_view json, const ChatParseOptions& options = {});
Result<ChatRequest> parse_chat_request(const JsonValue& request,
                                       const ChatParseOptions& options = {});

// The arguments of a call as the model wrote them, normally a JSON object. Text that is anything
// else becomes one argument named `arguments`, so a damaged call in a history does not end the
// conversation. Refused: numbers that are not finite, nesting beyond the limits.
Result<std::vector<Argument>> parse_tool_arguments(std::string_view text,
                                                   const JsonLimits& limits = {});

}  // namespace millrace
