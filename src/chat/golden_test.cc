// Every vector of tests/golden/encoding: prompts byte for byte, replies under every cut.

#include <gtest/gtest.h>

#include <fstream>

#include "chat/encoder.h"
#include "chat/json.h"
#include "chat/json_lines.h"
#include "chat/reply_parser.h"
#include "chat/request_parser.h"
#include "chat/strict_parser.h"
#include "chat/wire_text.h"

namespace millrace {
namespace {

struct Case {
  std::string line;
  JsonValue json;
  std::string id() const { return json.find("id")->text; }
};

std::vector<Case> load(const std::string& name) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR "/tests/golden/encoding/") + name);
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    Result<JsonValue> json = parse_json(line);
    EXPECT_TRUE(json.has_value()) << line;
    if (json.has_value()) cases.push_back({line, std::move(json.value())});
  }
  return cases;
}

JsonValue parsed(const std::string& line) {
  Result<JsonValue> json = parse_json(line);
  EXPECT_TRUE(json.has_value()) << line;
  return json.has_value() ? json.value() : JsonValue{};
}

std::string text_of(const JsonValue& object, std::string_view key) {
  const JsonValue* member = object.find(key);
  return member != nullptr ? member->text : "(no " + std::string(key) + ")";
}

std::string written(const JsonValue* value) {
  std::string out;
  if (value == nullptr) return out;
  EXPECT_TRUE(write_json(*value, out).ok());
  return out;
}

std::string whole(const Reply& reply, const std::string* finish_reason) {
  std::string out = "{\"reasoning\": ";
  append_json_string(reply.reasoning, out);
  out += ", \"content\": ";
  append_json_string(reply.content, out);
  out += ", \"tool_calls\": [";
  for (size_t i = 0; i < reply.tool_calls.size(); ++i) {
    out += i == 0 ? "{\"name\": " : ", {\"name\": ";
    append_json_string(reply.tool_calls[i].name, out);
    out += ", \"arguments\": ";
    append_json_string(reply.tool_calls[i].arguments, out);
    out += "}";
  }
  out += "]";
  if (finish_reason != nullptr) out += ", \"finish_reason\": \"" + *finish_reason + "\"";
  return out + "}";
}

TEST(EncodeVectors, GiveTheirPromptsByteForByte) {
  const std::vector<Case> cases = load("encode.jsonl");
  ASSERT_EQ(cases.size(), 164u);
  for (const Case& c : cases) {
    const JsonValue result = parsed(chat_encode_line(c.line));
    const JsonValue& expect = *c.json.find("expect");
    EXPECT_EQ(text_of(result, "id"), c.id());
    if (expect.find("error") != nullptr) {
      EXPECT_NE(result.find("error"), nullptr) << c.id() << ": must be refused";
      continue;
    }
    EXPECT_EQ(text_of(result, "prompt"), text_of(expect, "prompt")) << c.id();
    EXPECT_EQ(written(result.find("images")), written(expect.find("images"))) << c.id();
  }
}

// A client's text stands in plain segments only, so the number of control tokens must not change
// when every control string that a client could send is broken.
TEST(EncodeVectors, HaveTheSameControlTokensWithoutControlStringsInTheRequest) {
  const auto control_tokens = [](const std::string& line) {
    std::vector<std::string> tokens;
    const JsonValue json = parsed(line);
    const Result<ChatRequest> request = parse_chat_request(*json.find("input"));
    if (!request.has_value()) return tokens;
    const Result<EncodedPrompt> prompt = encode_prompt(request.value());
    if (!prompt.has_value()) return tokens;
    for (const PromptSegment& segment : prompt.value().segments)
      if (segment.is_control) tokens.push_back(segment.text);
    return tokens;
  };
  int num_changed = 0;
  for (const Case& c : load("encode.jsonl")) {
    if (c.json.find("expect")->find("error") != nullptr) continue;
    std::string harmless = c.line;
    for (const std::string bar : {"｜", "think>"}) {
      for (size_t at = 0; (at = harmless.find(bar, at)) != std::string::npos; ++at)
        harmless.replace(at, bar.size(), "#");
    }
    num_changed += harmless != c.line;
    EXPECT_EQ(control_tokens(c.line), control_tokens(harmless)) << c.id();
  }
  EXPECT_GT(num_changed, 0);
}

ReplyParserOptions options_of(const JsonValue& json) {
  const bool thinking = json.find("thinking")->boolean;
  ReplyParserOptions options;
  options.start = thinking ? ReplyStart::kReasoning : ReplyStart::kContent;
  if (const JsonValue* start = json.find("start")) {
    if (start->text == "block") options.start = ReplyStart::kToolCalls;
    if (start->text == "content_continued") options.start = ReplyStart::kContentContinued;
    if (start->text == "reasoning_continued") options.start = ReplyStart::kReasoningContinued;
  }
  if (const JsonValue* stop = json.find("stop"))
    for (const JsonValue& text : stop->items) options.stop.push_back(text.text);
  if (const JsonValue* tools = json.find("parse_tools")) options.parse_tools = tools->boolean;
  if (const JsonValue* mode = json.find("json_output")) options.json_output = mode->boolean;
  return options;
}

TEST(ParseVectors, GiveTheirReplyWholeByteByByteAndForEveryCutInTwo) {
  const std::vector<Case> cases = load("parse.jsonl");
  ASSERT_EQ(cases.size(), 96u);
  for (const Case& c : cases) {
    const std::string raw = text_of(c.json, "raw");
    const JsonValue* reason = c.json.find("engine_reason");
    const auto reply_of = [&](const std::vector<std::string_view>& pieces) {
      ReplyParser parser(options_of(c.json));
      Reply reply;
      for (const std::string_view piece : pieces)
        for (const ReplyEvent& event : parser.feed(piece)) reply.add(event);
      for (const ReplyEvent& event : parser.finish()) reply.add(event);
      const std::string finish_reason =
          parser.finish_reason(reason == nullptr ? "stop" : reason->text);
      return whole(reply, &finish_reason);
    };
    const std::string want = written(c.json.find("expect"));
    const std::string_view all = raw;
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < all.size(); ++i) bytes.push_back(all.substr(i, 1));
    EXPECT_EQ(reply_of({all}), want) << c.id();
    EXPECT_EQ(reply_of(bytes), want) << c.id() << ", byte by byte";
    for (size_t cut = 1; cut < all.size(); ++cut)
      ASSERT_EQ(reply_of({all.substr(0, cut), all.substr(cut)}), want) << c.id() << ", cut " << cut;
  }
}

TEST(ParseVectors, GiveTheirReplyOrARefusalFromTheStrictParser) {
  int num_strict = 0;
  for (const Case& c : load("parse.jsonl")) {
    const JsonValue* strict = c.json.find("strict");
    if (strict == nullptr) continue;
    ++num_strict;
    const Result<Reply> reply = parse_reply_strictly(
        text_of(c.json, "raw") + std::string(wire::kEos), c.json.find("thinking")->boolean);
    if (strict->find("error") != nullptr) {
      EXPECT_FALSE(reply.has_value()) << c.id() << ": must be refused";
      continue;
    }
    ASSERT_TRUE(reply.has_value()) << c.id() << ": " << reply.error().message;
    EXPECT_EQ(whole(reply.value(), nullptr), written(strict)) << c.id();
  }
  EXPECT_GT(num_strict, 60);
}

TEST(ParseVectors, AreReadByTheLineFunction) {
  for (const Case& c : load("parse.jsonl")) {
    std::string want = "{\"id\": ";
    append_json_string(c.id(), want);
    want += ", " + written(c.json.find("expect")).substr(1);
    EXPECT_EQ(chat_parse_line(c.line), want);
  }
}

TEST(JsonLines, AnswerADamagedLineWithAnError) {
  EXPECT_EQ(chat_encode_line("{"),
            R"({"id": "", "error": "JSON byte 1: found the end, expected a key"})");
  EXPECT_EQ(chat_encode_line(R"({"id": "a"})"),
            R"({"id": "a", "error": "input: expected an object"})");
  EXPECT_EQ(chat_encode_line("[]"), R"({"id": "", "error": "line: expected an object"})");
  EXPECT_EQ(chat_parse_line(R"({"id": "b", "raw": "x", "raw": "y"})"),
            R"({"id": "b", "error": "raw: expected it once, found it twice"})");
  EXPECT_EQ(chat_parse_line(R"({"id": "b", "raw": 5})"),
            R"({"id": "b", "error": "raw: expected a string"})");
  EXPECT_EQ(chat_parse_line(R"({"id": "b", "raw": "", "start": "middle"})"),
            R"({"id": "b", "error": "start: expected reasoning, content, reasoning_continued, )"
            R"(content_continued or block"})");
}

}  // namespace
}  // namespace millrace
