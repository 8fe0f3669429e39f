#include "chat/json_lines.h"

#include <utility>
#include <vector>

#include "base/format.h"
#include "chat/encoder.h"
#include "chat/json.h"
#include "chat/reply_parser.h"
#include "chat/request_parser.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

// An object that is written member by member.
class Line {
 public:
  explicit Line(const std::string& id) { add("id", id); }

  void add(std::string_view key, std::string_view text) {
    begin(key);
    append_json_string(text, out_);
  }

  void begin(std::string_view key) {
    out_ += out_.empty() ? "{" : ", ";
    append_json_string(key, out_);
    out_ += ": ";
  }

  std::string& out() { return out_; }
  std::string finish() { return out_ + "}"; }

 private:
  std::string out_;
};

Error bad(std::string_view key, std::string_view expected) {
  return Error{Code::kInvalidArgument, format(key, ": expected ", expected)};
}

// The id if the line has one: an answer without it could not be matched to its line.
std::string id_of(const Result<JsonValue>& line) {
  const JsonValue* id = line.has_value() ? line.value().find("id") : nullptr;
  return id != nullptr ? id->text : "";
}

// The line's value, if it is an object with each key once.
Status check_line(const Result<JsonValue>& line) {
  RETURN_IF_ERROR(line);
  const JsonValue& object = line.value();
  if (!object.is(Kind::kObject)) return bad("line", "an object");
  for (size_t i = 0; i < object.keys.size(); ++i) {
    if (object.items[i].is_repeated) return bad(object.keys[i], "it once, found it twice");
  }
  return {};
}

std::string error_line(const std::string& id, const Error& error) {
  Line line(id);
  line.add("error", error.message);
  return line.finish();
}

Status read(const JsonValue& line, std::string_view key, bool& value) {
  const JsonValue* member = line.find(key);
  if (member == nullptr) return {};
  if (!member->is(Kind::kBool)) return bad(key, "true or false");
  value = member->boolean;
  return {};
}

Status read(const JsonValue& line, std::string_view key, std::string& value) {
  const JsonValue* member = line.find(key);
  if (member == nullptr) return {};
  if (!member->is(Kind::kString)) return bad(key, "a string");
  value = member->text;
  return {};
}

Result<std::vector<std::string>> read_stop(const JsonValue& line) {
  std::vector<std::string> stop;
  const JsonValue* list = line.find("stop");
  if (list == nullptr) return stop;
  if (!list->is(Kind::kArray)) return bad("stop", "an array of strings");
  for (const JsonValue& element : list->items) {
    if (!element.is(Kind::kString)) return bad("stop", "an array of strings");
    stop.push_back(element.text);
  }
  return stop;
}

Result<ReplyStart> read_start(const JsonValue& line) {
  constexpr std::pair<std::string_view, ReplyStart> kStarts[] = {
      {"reasoning", ReplyStart::kReasoning},
      {"content", ReplyStart::kContent},
      {"reasoning_continued", ReplyStart::kReasoningContinued},
      {"content_continued", ReplyStart::kContentContinued},
      {"block", ReplyStart::kToolCalls},
  };
  bool thinking = true;
  RETURN_IF_ERROR(read(line, "thinking", thinking));
  std::string name = thinking ? "reasoning" : "content";
  RETURN_IF_ERROR(read(line, "start", name));
  for (const auto& [known, start] : kStarts)
    if (name == known) return start;
  return bad("start", "reasoning, content, reasoning_continued, content_continued or block");
}

Result<std::string> encode(const Result<JsonValue>& line) {
  RETURN_IF_ERROR(check_line(line));
  const JsonValue* input = line.value().find("input");
  if (input == nullptr) return bad("input", "an object");
  ASSIGN_OR_RETURN(const ChatRequest request, parse_chat_request(*input));
  ASSIGN_OR_RETURN(const EncodedPrompt prompt, encode_prompt(request));
  Line result(id_of(line));
  result.add("prompt", prompt.text());
  if (!prompt.images.empty()) {
    result.begin("images");
    for (size_t i = 0; i < prompt.images.size(); ++i) {
      result.out() += i == 0 ? "[" : ", ";
      append_json_string(prompt.images[i], result.out());
    }
    result.out() += ']';
  }
  return result.finish();
}

Result<std::string> parse(const Result<JsonValue>& line) {
  RETURN_IF_ERROR(check_line(line));
  const JsonValue& input = line.value();
  std::string raw;
  std::string engine_reason = "stop";
  ReplyParserOptions options;
  if (input.find("raw") == nullptr) return bad("raw", "a string");
  RETURN_IF_ERROR(read(input, "raw", raw));
  RETURN_IF_ERROR(read(input, "engine_reason", engine_reason));
  RETURN_IF_ERROR(read(input, "parse_tools", options.parse_tools));
  RETURN_IF_ERROR(read(input, "json_output", options.json_output));
  ASSIGN_OR_RETURN(options.stop, read_stop(input));
  ASSIGN_OR_RETURN(options.start, read_start(input));

  ReplyParser parser(std::move(options));
  Reply reply;
  for (const ReplyEvent& event : parser.feed(raw)) reply.add(event);
  for (const ReplyEvent& event : parser.finish()) reply.add(event);

  Line result(id_of(line));
  result.add("reasoning", reply.reasoning);
  result.add("content", reply.content);
  result.begin("tool_calls");
  result.out() += '[';
  for (size_t i = 0; i < reply.tool_calls.size(); ++i) {
    result.out() += i == 0 ? "{\"name\": " : ", {\"name\": ";
    append_json_string(reply.tool_calls[i].name, result.out());
    result.out() += ", \"arguments\": ";
    append_json_string(reply.tool_calls[i].arguments, result.out());
    result.out() += '}';
  }
  result.out() += ']';
  result.add("finish_reason", parser.finish_reason(engine_reason));
  return result.finish();
}

}  // namespace

std::string chat_encode_line(std::string_view text) {
  const Result<JsonValue> line = parse_json(text);
  const Result<std::string> result = encode(line);
  return result.has_value() ? result.value() : error_line(id_of(line), result.error());
}

std::string chat_parse_line(std::string_view text) {
  const Result<JsonValue> line = parse_json(text);
  const Result<std::string> result = parse(line);
  return result.has_value() ? result.value() : error_line(id_of(line), result.error());
}

}  // namespace millrace
