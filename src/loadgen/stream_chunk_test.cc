#include "loadgen/stream_chunk.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

StreamChunk parse(const std::string& json) {
  Result<StreamChunk> chunk = parse_stream_chunk(json);
  EXPECT_TRUE(chunk.has_value()) << json << ": " << chunk.error().message;
  return chunk.has_value() ? chunk.value() : StreamChunk();
}

TEST(StreamChunk, SeesWhatAnEventShows) {
  const struct {
    const char* json;
    bool has_text, has_reasoning;
    const char* finish_reason;
  } cases[] = {
      {R"({"choices":[{"index":0,"text":" a","finish_reason":null}]})", true, false, ""},
      {R"({"choices":[{"index":0,"text":"","finish_reason":"length"}]})", false, false, "length"},
      {R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", false, false, ""},
      {R"({"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]})", true, false, "stop"},
      {R"({"choices":[{"delta":{"content":null,"reasoning":"a"}}]})", false, true, ""},
      {R"({"choices":[{"delta":{"reasoning_content":"a","reasoning":"a"}}]})", false, true, ""},
      {R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})", true, false, ""},
      {R"({"choices":[{"delta":{"tool_calls":[]}}]})", false, false, ""},
      {R"({"choices":[{"delta":{}}],"usage":null})", false, false, ""},
      {R"({"choices":[{"text":"\"}]","logprobs":{"text":"x"}}]})", true, false, ""},
      {R"({"choices":[]})", false, false, ""},
      {R"({"text":"not in a choice","choices":[]})", false, false, ""},
  };
  for (const auto& each : cases) {
    const StreamChunk chunk = parse(each.json);
    EXPECT_EQ(chunk.has_text, each.has_text) << each.json;
    EXPECT_EQ(chunk.has_reasoning, each.has_reasoning) << each.json;
    EXPECT_EQ(chunk.finish_reason, each.finish_reason) << each.json;
    EXPECT_FALSE(chunk.error.has_value()) << each.json;
  }
}

TEST(StreamChunk, ReadsUsageAndItsDetails) {
  const StreamChunk chunk = parse(R"({"choices": [], "usage": {"prompt_tokens": 12,
      "completion_tokens": 34, "total_tokens": 46, "prompt_tokens_details": {"cached_tokens": 5},
      "completion_tokens_details": {"other": [1], "reasoning_tokens": 6}}})");
  EXPECT_FALSE(chunk.has_choices);
  ASSERT_TRUE(chunk.usage.has_value());
  EXPECT_EQ(chunk.usage->prompt_tokens, 12);
  EXPECT_EQ(chunk.usage->output_tokens, 34);
  EXPECT_EQ(chunk.usage->cached_tokens, 5);
  EXPECT_EQ(chunk.usage->reasoning_tokens, 6);

  const StreamChunk sparse = parse(R"({"usage": {"prompt_tokens": null, "completion_tokens": 1.5,
      "prompt_tokens_details": null}})");
  ASSERT_TRUE(sparse.usage.has_value());
  EXPECT_FALSE(sparse.usage->prompt_tokens.has_value());
  EXPECT_FALSE(sparse.usage->output_tokens.has_value());
  EXPECT_FALSE(sparse.usage->cached_tokens.has_value());
}

TEST(StreamChunk, CountsTokenIds) {
  EXPECT_EQ(parse(R"({"choices":[{"text":"ab","token_ids":[1,2,3]}]})").num_token_ids, 3);
}

TEST(StreamChunk, ReadsErrorEvents) {
  EXPECT_EQ(parse(R"({"error": {"message": "it broke", "type": "server_error"}})").error,
            "it broke");
  EXPECT_EQ(parse(R"({"error": "it broke"})").error, "it broke");
  EXPECT_EQ(parse(R"({"error": {"code": 7}})").error, "");
  EXPECT_FALSE(parse(R"({"error": null})").error.has_value());
}

TEST(StreamChunk, RefusesWhatIsNoObjectAndSaysWhere) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "{\"a\":";
  for (const std::string& json :
       {std::string(), std::string("[]"), std::string("{"), std::string("{\"a\"}"),
        std::string("{\"a\": }"), std::string("{\"a\": 1,}"), std::string("{\"a\": \"x}"),
        std::string("{\"a\": \"x\\"), std::string("{} {}"), std::string("{\"choices\": [1]}"),
        std::string("{\"a\": [1 2]}"), std::string("null"), deep}) {
    const Result<StreamChunk> chunk = parse_stream_chunk(json);
    ASSERT_FALSE(chunk.has_value()) << json;
    EXPECT_EQ(chunk.error().code, Code::kCorrupt) << json;
    EXPECT_NE(chunk.error().message.find("byte "), std::string::npos) << json;
  }
}

}  // namespace
}  // namespace millrace
