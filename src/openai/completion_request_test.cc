#include "openai/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kHi = R"("messages": [{"role": "user", "content": "Hi"}])";

Result<CompletionRequest> parse(Endpoint endpoint, const std::string& json,
                                const SamplingParams& defaults = {},
                                const RequestLimits& limits = {}) {
  return parse_completion_request(endpoint, parse_json(json).value(), defaults, limits);
}

Result<CompletionRequest> parse_chat(const std::string& fields,
                                     const SamplingParams& defaults = {}) {
  return parse(Endpoint::kChatCompletions,
               "{" + std::string(kHi) + (fields.empty() ? "" : ", ") + fields + "}", defaults);
}

Result<CompletionRequest> parse_text(const std::string& fields) {
  return parse(Endpoint::kCompletions,
               R"({"prompt": "a")" + (fields.empty() ? "" : ", " + fields) + "}");
}

std::string error_of(const Result<CompletionRequest>& request) {
  return request.has_value() ? "accepted" : request.error().message;
}

TEST(CompletionRequest, TakesWhatTheBodyGivesAndLeavesTheRestToTheDefaults) {
  SamplingParams defaults;
  defaults.temperature = 0.6;
  defaults.top_p = 0.95;
  const CompletionRequest plain = parse_chat("", defaults).value();
  EXPECT_EQ(plain.sampling.params.temperature, 0.6);
  EXPECT_EQ(plain.sampling.params.top_p, 0.95);
  EXPECT_FALSE(plain.sampling.params.max_tokens);
  EXPECT_FALSE(plain.sampling.params.logprobs);
  EXPECT_TRUE(plain.chat.thinking);

  const CompletionRequest full =
      parse_chat(R"("model": "m", "temperature": 0.1, "top_k": 5, "top_p": null, "min_p": 0.2,
                 "n": 3, "seed": -1, "stop": "x", "stop_token_ids": [7, 8], "max_tokens": 9,
                 "max_completion_tokens": 10, "logprobs": true, "top_logprobs": 2,
                 "logit_bias": {"5": 200, "6": -1.5}, "presence_penalty": 1, "bad_words": ["no"],
                 "frequency_penalty": -1, "repetition_penalty": 1.1, "ignore_eos": true,
                 "min_tokens": 2, "skip_special_tokens": false, "allowed_token_ids": [1],
                 "include_stop_str_in_output": true, "priority": -2, "stream": true,
                 "stream_options": {"include_usage": true}, "return_token_ids": true,
                 "include_reasoning": false, "unheard_of": {"a": 1})",
                 defaults)
          .value();
  const SamplingParams& params = full.sampling.params;
  EXPECT_EQ(full.model, "m");
  EXPECT_EQ(params.temperature, 0.1);
  EXPECT_EQ(params.top_p, 0.95) << "null is not given";
  EXPECT_EQ(params.seed, uint64_t(-1)) << "any 64 bits";
  EXPECT_THAT(params.stop, ElementsAre("x"));
  EXPECT_THAT(params.stop_token_ids, ElementsAre(7, 8));
  EXPECT_EQ(params.max_tokens, 10) << "the newer name wins";
  EXPECT_EQ(params.logprobs, 2);
  EXPECT_THAT(params.logit_bias, ElementsAre(std::pair(5, 100.0), std::pair(6, -1.5)));
  EXPECT_THAT(full.sampling.bad_words, ElementsAre("no"));
  EXPECT_EQ(full.sampling.num_choices, 3);
  EXPECT_EQ(full.priority, -2);
  EXPECT_TRUE(full.stream && full.include_usage && full.return_token_ids);
  EXPECT_FALSE(full.include_reasoning);
}

TEST(CompletionRequest, PromptsAreTextsOrTokensOneOrMany) {
  const auto prompts = [](const char* json) {
    return parse(Endpoint::kCompletions, std::string(R"({"prompt": )") + json + "}")
        .value()
        .prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_THAT(prompts(R"("a")"), ElementsAre(PromptText("a")));
  EXPECT_THAT(prompts("[1, 2]"), ElementsAre(PromptText(Ids{1, 2})));
  EXPECT_THAT(prompts(R"(["a", "b"])"), ElementsAre(PromptText("a"), PromptText("b")));
  EXPECT_THAT(prompts("[[1], [2, 3]]"), ElementsAre(PromptText(Ids{1}), PromptText(Ids{2, 3})));
}

TEST(CompletionRequest, CompletionsHaveTheirOwnDefaults) {
  const CompletionRequest request = parse_text(R"("logprobs": 0)").value();
  EXPECT_EQ(request.sampling.params.max_tokens, 16);
  EXPECT_EQ(request.sampling.params.logprobs, 0);
  EXPECT_FALSE(request.sampling.params.prompt_logprobs);
  EXPECT_EQ(parse_text(R"("echo": true, "logprobs": 3, "max_tokens": 0)")
                .value()
                .sampling.params.prompt_logprobs,
            3);
}

TEST(CompletionRequest, ThinkingIsTurnedOffInAnyOfItsWays) {
  EXPECT_FALSE(parse_chat(R"("reasoning_effort": "none")").value().chat.thinking);
  EXPECT_FALSE(parse_chat(R"("thinking": {"type": "disabled"})").value().chat.thinking);
  EXPECT_FALSE(parse_chat(R"("chat_template_kwargs": {"thinking": false})").value().chat.thinking);
  EXPECT_FALSE(
      parse_chat(R"("chat_template_kwargs": {"enable_thinking": false})").value().chat.thinking);
  EXPECT_TRUE(parse_chat(R"("thinking": {"type": "enabled"},
                         "chat_template_kwargs": {"thinking": false})")
                  .value()
                  .chat.thinking)
      << "the request's own field wins";
  EXPECT_EQ(parse_chat(R"("chat_template_kwargs": {"reasoning_effort": "max"})")
                .value()
                .chat.reasoning_effort,
            100);
}

TEST(CompletionRequest, RefusesByFieldWhatWasFoundAndWhatWasExpected) {
  const struct {
    const char* fields;
    const char* message;
  } cases[] = {
      {R"("temperature": "hot")", "temperature: found string \"hot\", expected a number"},
      {R"("top_k": 1.5)",
       "top_k: found number 1.5, expected an integer from -1 to 9223372036854775807"},
      {R"("n": 0)", "n: found number 0, expected an integer from 1 to 128"},
      {R"("n": 1.5)", "n: found number 1.5, expected an integer from 1 to 128"},
      {R"("seed": 1.5)",
       "seed: found number 1.5, expected an integer from -9223372036854775808 to "
       "18446744073709551615"},
      {R"("max_tokens": 1.5)",
       "max_tokens: found number 1.5, expected an integer from 1 to 9223372036854775807"},
      {R"("max_tokens": -1)", "max_tokens: found number -1, expected an integer from 1 to"},
      {R"("min_tokens": -1)", "min_tokens: found number -1, expected an integer from 0 to"},
      {R"("stop_token_ids": [1.5])", "stop_token_ids[0]: found number 1.5, expected a token id"},
      {R"("thinking_token_budget": -2)",
       "thinking_token_budget: found number -2, expected an integer from -1"},
      {R"("truncate_prompt_tokens": 1.5)",
       "truncate_prompt_tokens: found number 1.5, expected -1 or an integer of at least 1"},
      {R"("seed": -99999999999999999999)", "seed: found number -99999999999999999999, expected"},
      {R"("stop": [1])", "stop[0]: found number 1, expected a string"},
      {R"("stop": {})", "stop: found an object, expected a string or an array of strings"},
      {R"("stop_token_ids": "7")",
       "stop_token_ids: found string \"7\", expected an array of token"},
      {R"("logit_bias": [1])", "logit_bias: found an array of 1, expected an object"},
      {R"("logit_bias": {"x": 1})", "logit_bias: found key x, expected token ids as keys"},
      {R"("logit_bias": {"5": null})", "logit_bias.5: found null, expected a number"},
      {R"("allowed_token_ids": [])",
       "allowed_token_ids: found an array of 0, expected at least one"},
      {R"("top_logprobs": 3)", "top_logprobs: needs \"logprobs\": true"},
      {R"("logprobs": true, "top_logprobs": 21)",
       "top_logprobs: found number 21, expected an integer from 0 to 20"},
      {R"("logprobs": 5)", "logprobs: found number 5, expected true or false"},
      {R"("prompt_logprobs": -1)",
       "prompt_logprobs: found number -1, expected an integer from 0 to 20"},
      {R"("prompt_logprobs": 1, "stream": true)", "prompt_logprobs: not together with"},
      {R"("stream_options": {"include_usage": true})", "stream_options: needs \"stream\": true"},
      {R"("stream": "yes")", "stream: found string \"yes\", expected true or false"},
      {R"("best_of": 2)", "best_of: only 1 to n, 1"},
      {R"("best_of": 0)", "best_of: found number 0, expected an integer from 1 to"},
      {R"("max_completion_tokens": 0)",
       "max_completion_tokens: found number 0, expected an integer from 1 to"},
      {R"("bad_words": [""])", "bad_words: found an array of 1, expected words of"},
      {R"("use_beam_search": true)", "use_beam_search: not supported"},
      {R"("length_penalty": 0.5)", "length_penalty: belongs to beam search"},
      {R"("structured_outputs": {"regex": "a"})", "structured_outputs: nothing constrains"},
      {R"("guided_json": {})", "guided_json: nothing constrains"},
      {R"("response_format": {"type": "json_object"})", "response_format: only"},
      {R"("kv_transfer_params": {})", "kv_transfer_params: this engine takes no state"},
      {R"("functions": [])", "functions: not supported; use tools"},
      {R"("chat_template": "x")", "chat_template: the model's encoding is built in"},
      {R"("truncate_prompt_tokens": 0)", "truncate_prompt_tokens: found number 0, expected -1 or"},
      {R"("truncation_side": "up")",
       "truncation_side: found string \"up\", expected left or right"},
      {R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required")",
       "tool_choice: only auto and none"},
      {R"("chat_template_kwargs": {"thinking": 1})",
       "chat_template_kwargs.thinking: found number 1, expected true or false"},
      {R"("chat_template_kwargs": 3)", "chat_template_kwargs: found number 3, expected an object"},
      {R"("priority": 1, "priority": 2)", "priority: found twice, expected once"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(error_of(parse_chat(c.fields)), HasSubstr(c.message)) << c.fields;
  EXPECT_EQ(error_of(parse(Endpoint::kChatCompletions, "[]")),
            "request: found an array of 0, expected an object");
  EXPECT_EQ(error_of(parse(Endpoint::kChatCompletions, "{}")),
            "messages: found nothing, expected a non-empty array");
  EXPECT_THAT(error_of(parse(Endpoint::kCompletions, "{}")), HasSubstr("prompt: found nothing"));
  EXPECT_THAT(error_of(parse(Endpoint::kCompletions, R"({"prompt": [[]]})")),
              HasSubstr("prompt[0]: found an array of 0"));
  EXPECT_THAT(error_of(parse(Endpoint::kCompletions, R"({"prompt": [1, "a"]})")),
              HasSubstr("prompt[1]: found string \"a\", expected a token id"));
  EXPECT_THAT(error_of(parse_text(R"("suffix": "x")")), HasSubstr("suffix: "));
  for (const char* fields : {R"("max_tokens": 0)", R"("max_tokens": -1)", R"("max_tokens": 0.5)"}) {
    EXPECT_THAT(error_of(parse_text(fields)), HasSubstr("expected an integer from 1 to")) << fields;
    EXPECT_THAT(error_of(parse_text(fields + std::string(R"(, "echo": true)"))),
                fields == std::string(R"("max_tokens": 0)")
                    ? HasSubstr("accepted")
                    : HasSubstr("expected an integer from 0 to"))
        << fields;
  }
  EXPECT_THAT(error_of(parse_text(R"("logprobs": 1.5)")),
              HasSubstr("logprobs: found number 1.5, expected an integer from 0 to 20"));
  EXPECT_THAT(error_of(parse_text(R"("logprobs": true)")),
              HasSubstr("logprobs: found true, expected"));
}

// Fields that are there but off ask for nothing.
TEST(CompletionRequest, AcceptsWhatIsSwitchedOff) {
  EXPECT_EQ(error_of(parse_chat(R"("use_beam_search": false, "functions": null, "best_of": 1,
                                "structured_outputs": null, "length_penalty": 1.0,
                                "response_format": {"type": "text"}, "top_logprobs": 0,
                                "parallel_tool_calls": false, "early_stopping": false)")),
            "accepted");
}

}  // namespace
}  // namespace millrace::openai
