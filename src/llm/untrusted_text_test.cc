// What clients send never becomes a control token: from messages through segments to ids.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "chat/encoder.h"
#include "sys/file.h"
#include "tokenizer/tokenizer.h"

namespace millrace {
namespace {

Tokenizer nano() {
  const std::string path = MILLRACE_SOURCE_DIR "/models/nano/tokenizer.json";
  return std::move(Tokenizer::parse(read_file(path).value()).value());
}

std::vector<std::string> added_literals(const Tokenizer& tokenizer) {
  std::vector<std::string> literals;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_added(id)) literals.emplace_back(tokenizer.token_bytes(id));
  }
  return literals;
}

// A conversation in which every place that a client can write to holds `first` or `second`, which
// stand as near to each other and to markup as a client can bring them.
ChatRequest conversation(const std::string& first, const std::string& second) {
  const auto parts = [](const std::vector<std::string>& texts) {
    std::vector<Part> out;
    for (const std::string& text : texts) out.push_back({Part::Kind::kText, text});
    return out;
  };
  ChatRequest request;
  request.tools.push_back({"f", R"({"name": ")" + first + second + R"("})"});
  request.response_format = first + second;
  request.messages.push_back({.role = Role::kSystem, .content = parts({first, second})});
  request.messages.push_back({.role = Role::kUser, .content = parts({first})});
  request.messages.push_back({.role = Role::kUser, .content = parts({second})});
  Message assistant{.role = Role::kAssistant, .content = parts({second, first})};
  assistant.reasoning = first + second;
  assistant.tool_calls.push_back({"1", first, {{first, second, true}, {second, first, false}}});
  request.messages.push_back(assistant);
  request.messages.push_back({.role = Role::kTool, .content = parts({first}), .tool_call_id = "1"});
  request.messages.push_back(
      {.role = Role::kTool, .content = parts({second}), .tool_call_id = "2"});
  request.messages.push_back({.role = Role::kLatestReminder, .content = parts({first + second})});
  request.messages.push_back({.role = Role::kUser, .content = parts({second, first})});
  return request;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const ChatRequest& request) {
  const EncodedPrompt prompt = encode_prompt(request).value();
  std::vector<TextSegment> segments;
  for (const PromptSegment& s : prompt.segments) segments.push_back({s.text, s.is_control});
  const std::vector<int32_t> ids = tokenizer.encode(segments);
  std::string bytes;
  for (int32_t id : ids) bytes += tokenizer.token_bytes(id);
  EXPECT_EQ(bytes, prompt.text()) << "nothing is dropped";
  return ids;
}

std::vector<int32_t> added_ids(const Tokenizer& tokenizer, const ChatRequest& request) {
  std::vector<int32_t> added;
  for (int32_t id : encode(tokenizer, request)) {
    if (tokenizer.is_added(id)) added.push_back(id);
  }
  return added;
}

TEST(UntrustedText, NoAddedTokenComesFromWhatAClientWrites) {
  const Tokenizer tokenizer = nano();
  const std::vector<int32_t> expected = added_ids(tokenizer, conversation("x", "y"));
  ASSERT_GT(expected.size(), 15u) << "the encoder's own";
  const std::vector<std::string> literals = added_literals(tokenizer);
  ASSERT_GT(literals.size(), 10u);
  for (const std::string& literal : literals) {
    // Whole, and cut in two at every byte: half in one message, half in the next.
    for (size_t cut = 0; cut <= literal.size(); ++cut) {
      const std::string first = literal.substr(0, cut), second = literal.substr(cut);
      if (first.empty() || second.empty()) {
        EXPECT_EQ(added_ids(tokenizer, conversation(literal, literal)), expected) << literal;
      } else {
        EXPECT_EQ(added_ids(tokenizer, conversation(first, second)), expected)
            << first << '+' << second;
      }
    }
  }
}

TEST(UntrustedText, MarkupIsNotCompletedByItsNeighbours) {
  const Tokenizer tokenizer = nano();
  // The encoder's text around a client's: "<tool_result>", "<" before the DSML token, quotes.
  for (const std::string text : {"｜DSML｜", "<", "<｜", "User｜>", "think>", "/think>", ">", "｜>"}) {
    EXPECT_EQ(added_ids(tokenizer, conversation(text, text)),
              added_ids(tokenizer, conversation("x", "y")))
        << text;
  }
}

}  // namespace
}  // namespace millrace
