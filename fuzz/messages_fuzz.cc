// Chat requests: JSON, the request parser and the encoder. Control tokens of an accepted request
// are only those that the encoder writes, and rewritten JSON means what it meant.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "chat/encoder.h"
#include "chat/json.h"
#include "chat/json_lines.h"
#include "chat/request_parser.h"
#include "chat/wire_text.h"

using namespace millrace;

namespace {

bool is_control_token(std::string_view text) {
  for (const std::string_view token :
       {wire::kBos, wire::kEos, wire::kSystem, wire::kUser, wire::kAssistant,
        wire::kLatestReminder, wire::kThink, wire::kEndThink, wire::kDsml, wire::kImage}) {
    if (text == token) return true;
  }
  return std::any_of(std::begin(wire::kTasks), std::end(wire::kTasks),
                     [&](const wire::Task& task) { return task.token == text; });
}

void check_rewriting(const JsonValue& value) {
  std::string once, twice;
  if (!write_json(value, once).ok()) return;  // a number that is not finite
  const Result<JsonValue> again = parse_json(once);
  MR_CHECK(again.has_value());
  MR_CHECK(write_json(again.value(), twice).ok());
  MR_CHECK(once == twice);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<std::vector<Argument>> arguments = parse_tool_arguments(text);
  MR_CHECK(!arguments.has_value() || arguments.value().size() <= text.size() + 1);
  MR_CHECK(parse_json(chat_encode_line(text)).has_value());
  MR_CHECK(parse_json(chat_parse_line(text)).has_value());

  const Result<JsonValue> json = parse_json(text);
  if (!json.has_value()) return 0;
  check_rewriting(json.value());
  const Result<ChatRequest> request = parse_chat_request(json.value());
  if (!request.has_value()) return 0;
  const Result<EncodedPrompt> prompt = encode_prompt(request.value());
  if (!prompt.has_value()) return 0;
  size_t num_images = 0;
  bool was_text = false;
  for (const PromptSegment& segment : prompt.value().segments) {
    MR_CHECK(!segment.text.empty());
    MR_CHECK(segment.is_control || !was_text);
    MR_CHECK(!segment.is_control || is_control_token(segment.text));
    num_images += segment.is_control && segment.text == wire::kImage;
    was_text = !segment.is_control;
  }
  MR_CHECK_OP(num_images, ==, prompt.value().images.size());
  MR_CHECK(prompt.value().segments.front().text == wire::kBos);
  return 0;
}
