#include "openai/completion_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "openai/test_answers.h"

namespace millrace::openai {
namespace {

using ::testing::StartsWith;

constexpr std::string_view kCall =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
    "string=\"true\">b</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

class Body {
 public:
  Body(Endpoint endpoint, const std::string& fields) : request(test_request(endpoint, fields)) {}

  // A chat with one choice, that says this.
  static Body of_reply(std::string_view reply, const std::string& fields = "",
                       FinishReason reason = FinishReason::kStop, StopReason stop_reason = {}) {
    Body body(Endpoint::kChatCompletions, fields);
    TestChoice choice(ReplyStart::kReasoning);
    choice.end(9, reply, reason, std::move(stop_reason));
    body.answers = {{choice.answer()}};
    return body;
  }

  JsonValue json() const {
    return parse_json(completion_body(request, prompts, answers, test_context())).value();
  }
  std::string shown(std::string_view path) const { return openai::shown(json(), path); }

  CompletionRequest request;
  std::vector<Prompt> prompts = {{{5, 6, 7}, std::nullopt}};
  std::vector<std::vector<Answer>> answers;
};

TEST(CompletionResponse, AChatSaysReasoningAnswerAndCallsInTheirPlaces) {
  const Body body = Body::of_reply("I think.</think>I say." + std::string(kCall));
  EXPECT_EQ(body.shown("id"), R"("chatcmpl-7")");
  EXPECT_EQ(body.shown("object"), R"("chat.completion")");
  EXPECT_EQ(body.shown("created"), "1790000000");
  EXPECT_EQ(body.shown("model"), R"("m")");
  EXPECT_EQ(body.shown("system_fingerprint"), R"("fp")");
  EXPECT_EQ(body.shown("choices.0.index"), "0");
  EXPECT_EQ(body.shown("choices.0.message.role"), R"("assistant")");
  EXPECT_EQ(body.shown("choices.0.message.reasoning"), R"("I think.")");
  EXPECT_EQ(body.shown("choices.0.message.reasoning_content"), R"("I think.")");
  EXPECT_EQ(body.shown("choices.0.message.content"), R"("I say.")");
  EXPECT_EQ(body.shown("choices.0.message.tool_calls.0.type"), R"("function")");
  EXPECT_EQ(body.shown("choices.0.message.tool_calls.0.function"),
            R"({"name": "f", "arguments": "{\"a\": \"b\"}"})");
  EXPECT_EQ(body.shown("choices.0.finish_reason"), R"("tool_calls")");
}

TEST(CompletionResponse, ContentIsNullBesideCallsAloneAndEmptyIfNothingWasSaid) {
  EXPECT_EQ(Body::of_reply("</think>" + std::string(kCall)).shown("choices.0.message.content"),
            "null");
  const Body silent = Body::of_reply("</think>");
  EXPECT_EQ(silent.shown("choices.0.message.content"), R"("")");
  EXPECT_EQ(silent.shown("choices.0.message.reasoning"), "null");
  EXPECT_EQ(silent.shown("choices.0.message.tool_calls"), "[]");
}

TEST(CompletionResponse, ReasoningThatIsNotWantedIsLeftOut) {
  const Body body = Body::of_reply("I think.</think>I say.", R"("include_reasoning": false)");
  EXPECT_EQ(body.shown("choices.0.message.reasoning"), "null");
  EXPECT_EQ(body.shown("choices.0.message.reasoning_content"), "null");
  EXPECT_EQ(body.shown("choices.0.message.content"), R"("I say.")");
}

TEST(CompletionResponse, FinishReasonsSayWhyAndStopReasonsByWhat) {
  const auto reasons = [](FinishReason reason, StopReason stop_reason) {
    const Body body = Body::of_reply("</think>a", "", reason, std::move(stop_reason));
    return body.shown("choices.0.finish_reason") + " " + body.shown("choices.0.stop_reason");
  };
  EXPECT_EQ(reasons(FinishReason::kStop, {}), R"("stop" null)");
  EXPECT_EQ(reasons(FinishReason::kStop, StopReason(int32_t(17))), R"("stop" 17)");
  EXPECT_EQ(reasons(FinishReason::kStop, StopReason("é")), R"("stop" "é")");
  EXPECT_EQ(reasons(FinishReason::kLength, {}), R"("length" null)");
  EXPECT_EQ(reasons(FinishReason::kAbort, {}), R"("abort" null)");
  EXPECT_EQ(reasons(FinishReason::kTimeout, {}), R"("abort" null)");
}

TEST(CompletionResponse, CallsHaveIdsOfTheirOwnThatAreTheSameEachTime) {
  Body body(Endpoint::kChatCompletions, R"("n": 2)");
  TestChoice first(ReplyStart::kContent, 0), second(ReplyStart::kContent, 1);
  const std::string two =
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke>"
      "<｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke></｜DSML｜ calls>";
  first.end(9, two, FinishReason::kStop);
  second.end(9, two, FinishReason::kStop);
  body.answers = {{first.answer(), second.answer()}};
  std::vector<std::string> ids;
  for (const char* path :
       {"choices.0.message.tool_calls.0.id", "choices.0.message.tool_calls.1.id",
        "choices.1.message.tool_calls.0.id", "choices.1.message.tool_calls.1.id"}) {
    ids.push_back(body.shown(path));
    EXPECT_THAT(ids.back(), StartsWith(R"("call_)"));
    EXPECT_GE(ids.back().size(), std::string_view(R"("call_")").size() + 24);
    EXPECT_EQ(body.shown(path), ids.back());
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST(CompletionResponse, UsageCountsAPromptOnceAndEveryChoice) {
  Body body(Endpoint::kCompletions, R"("n": 2)");
  body.prompts = {{{5, 6, 7}, std::nullopt}, {{5}, std::nullopt}};
  for (int i = 0; i < 2; ++i) {
    TestChoice first(std::nullopt, 0), second(std::nullopt, 1);
    first.end(9, "a", FinishReason::kLength);
    second.step(9, "a");
    second.end(9, "b", FinishReason::kLength);
    body.answers.push_back({first.answer(), second.answer()});
  }
  EXPECT_EQ(body.shown("usage.prompt_tokens"), "4");
  EXPECT_EQ(body.shown("usage.completion_tokens"), "6");
  EXPECT_EQ(body.shown("usage.total_tokens"), "10");
  EXPECT_EQ(body.shown("choices.3.index"), "3");
  EXPECT_EQ(body.shown("choices.3.text"), R"("ab")");
  EXPECT_EQ(body.shown("choices.4"), "absent");
  EXPECT_EQ(body.shown("id"), R"("cmpl-7")");
  EXPECT_EQ(body.shown("object"), R"("text_completion")");
}

TEST(CompletionResponse, LogprobsHaveTheExactBytesOfATokenAndNoInfinity) {
  Body body = Body::of_reply("</think>a", R"("logprobs": true, "top_logprobs": 1)");
  const std::vector<int32_t> ids = test_tokenizer().encode("🙂", SpecialTokens::kPlainText);
  ASSERT_GT(ids.size(), 1u) << "no token alone is this character";
  std::string bytes;
  for (int32_t id : ids) {
    const TokenLogprob token{id, 1, -std::numeric_limits<float>::infinity()};
    body.answers[0][0].completion.logprobs.push_back({token, {token}});
  }
  const JsonValue json = body.json();
  for (const JsonValue& token : at(json, "choices.0.logprobs.content")->items) {
    EXPECT_EQ(shown(token, "logprob"), "-9999.0");
    EXPECT_EQ(shown(token, "top_logprobs.0.bytes"), shown(token, "bytes"));
    for (const JsonValue& byte : at(token, "bytes")->items) bytes += char(std::stoi(byte.text));
  }
  EXPECT_EQ(bytes, "🙂");
}

TEST(CompletionResponse, TokensMayBeShownAsTheirIds) {
  Body body =
      Body::of_reply("</think>a", R"("logprobs": true, "return_tokens_as_token_ids": true)");
  body.answers[0][0].completion.logprobs.push_back({{300, 1, -0.5f}, {}});
  EXPECT_EQ(body.shown("choices.0.logprobs.content.0.token"), R"("token_id:300")");
}

TEST(CompletionResponse, AnEchoHasThePromptAndItsLogprobsInFront) {
  Body body(Endpoint::kCompletions, R"("echo": true, "logprobs": 1)");
  const std::vector<int32_t> prompt = test_tokenizer().encode("one two", SpecialTokens::kPlainText);
  body.prompts = {{prompt, std::nullopt}};
  TestChoice choice(std::nullopt);
  choice.has_logprobs = true;
  const int32_t last = test_tokenizer().encode("!", SpecialTokens::kPlainText)[0];
  choice.end(last, "!", FinishReason::kLength);
  Answer answer = choice.answer();
  answer.completion.prompt_logprobs.emplace_back();
  for (size_t i = 1; i < prompt.size(); ++i) {
    answer.completion.prompt_logprobs.push_back(
        TokenLogprobs{{prompt[i], 1, -2.0f}, {{prompt[i], 1, -2.0f}}});
  }
  body.answers = {{answer}};
  EXPECT_EQ(body.shown("choices.0.text"), R"("one two!")");
  EXPECT_EQ(body.shown("choices.0.logprobs.token_logprobs.0"), "null");
  EXPECT_EQ(body.shown("choices.0.logprobs.top_logprobs.0"), "null");
  EXPECT_EQ(body.shown("choices.0.logprobs.token_logprobs.1"), "-2");
  const JsonValue json = body.json();
  const size_t num_tokens = prompt.size() + 1;
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(at(json, std::string("choices.0.logprobs.") + list)->items.size(), num_tokens)
        << list;
  }
  EXPECT_EQ(at(json, "choices.0.logprobs.text_offset")->items.back().text, "7");
}

class TopLogprobs : public ::testing::Test {
 protected:
  // What a completion says of a token at -3 whose likeliest alternatives are these, from -1 down.
  static JsonValue top_of(int32_t id, const std::vector<int32_t>& likeliest) {
    Body body(Endpoint::kCompletions, R"("logprobs": 2)");
    TestChoice choice(std::nullopt);
    choice.end(id, "x", FinishReason::kLength);
    Answer answer = choice.answer();
    TokenLogprobs logprobs{{id, 9, -3}, {}};
    for (size_t i = 0; i < likeliest.size(); ++i) {
      logprobs.top.push_back({likeliest[i], int32_t(i) + 1, -1 - float(i)});
    }
    answer.completion.logprobs = {logprobs};
    body.answers = {{answer}};
    const JsonValue json = body.json();
    for (const JsonValue& item : at(json, "choices.0.logprobs.top_logprobs.0")->items) {
      EXPECT_FALSE(item.is_repeated);
    }
    return *at(json, "choices.0.logprobs.top_logprobs.0");
  }
  static std::string text_of(const JsonValue& json) {
    std::string text;
    EXPECT_TRUE(write_json(json, text).ok());
    return text;
  }
  static int32_t id_of(std::string_view text) {
    return test_tokenizer().encode(text, SpecialTokens::kPlainText).at(0);
  }
};

TEST_F(TopLogprobs, TheTokenItselfIsAmongItsAlternatives) {
  const int32_t a = id_of("a"), b = id_of("b"), c = id_of("c");
  EXPECT_EQ(text_of(top_of(a, {b, c})), R"({"b": -1, "c": -2, "a": -3})");
  EXPECT_EQ(text_of(top_of(a, {})), R"({"a": -3})");
  EXPECT_EQ(text_of(top_of(c, {b, c})), R"({"b": -1, "c": -2})");
}

TEST_F(TopLogprobs, TokensOfTheSameTextHaveNamesOfTheirOwn) {
  // Parts of characters: each alone is U+FFFD.
  const std::vector<int32_t> parts = test_tokenizer().encode("🙂", SpecialTokens::kPlainText);
  ASSERT_GE(parts.size(), 3u);
  const std::string second = "token_id:" + std::to_string(parts[1]);
  const std::string third = "token_id:" + std::to_string(parts[2]);
  EXPECT_EQ(text_of(top_of(parts[0], {parts[1], parts[2]})),
            "{\"" + second + "\": -1, \"" + third + "\": -2, \"\ufffd\": -3}")
      << "the token's own name is the one in `tokens`";
  EXPECT_EQ(text_of(top_of(id_of("a"), {parts[1], parts[2]})),
            "{\"\ufffd\": -1, \"" + third + "\": -2, \"a\": -3}")
      << "of others the likeliest has the text";
}

TEST(CompletionResponse, TokenIdsAreThereIfAskedFor) {
  Body body = Body::of_reply("</think>a", R"("return_token_ids": true)");
  EXPECT_EQ(body.shown("prompt_token_ids"), "[5, 6, 7]");
  EXPECT_EQ(body.shown("choices.0.token_ids"), "[9]");
  EXPECT_EQ(Body::of_reply("</think>a").shown("choices.0.token_ids"), "absent");
}

TEST(CompletionResponse, ErrorsNameTheFieldTheKindAndTheStatus) {
  struct Case {
    Error error;
    int status;
    const char* type;
    std::optional<std::string> param, code;
  };
  const Case cases[] = {
      {{Code::kInvalidArgument, "stop[0]: found 1, expected a string"},
       400, "invalid_request_error", "stop[0]", "invalid_value"},
      {{Code::kInvalidArgument, "messages: found nothing, expected a list"},
       400, "invalid_request_error", "messages", "missing_required_parameter"},
      {{Code::kInvalidArgument, "the maximum context length is 5 tokens, found 6"},
       400, "invalid_request_error", {}, "context_length_exceeded"},
      {{Code::kUnimplemented, "tool_choice: only auto"},
       400, "invalid_request_error", "tool_choice", "unsupported_parameter"},
      {{Code::kNotFound, "no such thing"}, 404, "not_found_error", {}, {}},
      {{Code::kExhausted, "full"}, 503, "service_unavailable_error", {}, "overloaded"},
      {{Code::kCorrupt, "broken"}, 500, "server_error", {}, {}},
  };
  for (const Case& c : cases) {
    const ApiError error = api_error(c.error);
    EXPECT_EQ(error.message, c.error.message);
    EXPECT_EQ(error.status, c.status) << error.message;
    EXPECT_EQ(error.type, c.type) << error.message;
    EXPECT_EQ(error.param, c.param) << error.message;
    EXPECT_EQ(error.code, c.code) << error.message;
  }
  EXPECT_EQ(api_error({Code::kInvalidArgument, "a sentence: of words"}).param, std::nullopt);
  EXPECT_EQ(invalid_json({Code::kInvalidArgument, "byte 3"}).code, "json_parse_error");
  EXPECT_EQ(error_body(api_error(cases[0].error)),
            R"({"error": {"message": "stop[0]: found 1, expected a string", )"
            R"("type": "invalid_request_error", "param": "stop[0]", "code": "invalid_value"}})");
  const ApiError missing = model_not_found("a", "b");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.code, "model_not_found");
  EXPECT_EQ(missing.param, "model");
}

}  // namespace
}  // namespace millrace::openai
