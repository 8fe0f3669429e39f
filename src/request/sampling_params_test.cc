#include "request/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace millrace {
namespace {

constexpr int64_t kVocabSize = 100;

TEST(SamplingParams, DefaultsAreValid) { EXPECT_TRUE(validate({}, kVocabSize).ok()); }

struct Case {
  std::function<void(SamplingParams&)> change;
  std::string_view message;  // empty: accepted
};

TEST(SamplingParams, RefusalsNameTheFieldWhatWasFoundAndWhatWasExpected) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const Case cases[] = {
      {[](auto& p) { p.temperature = 0; }, ""},
      {[](auto& p) { p.temperature = 2; }, ""},
      {[](auto& p) { p.temperature = 2.5; }, "temperature: found 2.5, expected 0 to 2"},
      {[](auto& p) { p.temperature = -1; }, "temperature: found -1, expected 0 to 2"},
      {[=](auto& p) { p.temperature = nan; }, "temperature: found nan, expected 0 to 2"},
      {[](auto& p) { p.top_k = -1; }, ""},
      {[](auto& p) { p.top_k = 1000; }, ""},
      {[](auto& p) { p.top_k = -2; },
       "top_k: found -2, expected at least 1, or 0 or -1 for no limit"},
      {[](auto& p) { p.top_p = 0; }, "top_p: found 0, expected above 0, at most 1"},
      {[](auto& p) { p.top_p = 1.01; }, "top_p: found 1.01, expected above 0, at most 1"},
      {[=](auto& p) { p.top_p = nan; }, "top_p: found nan, expected above 0, at most 1"},
      {[](auto& p) { p.min_p = 1; }, ""},
      {[](auto& p) { p.min_p = -0.1; }, "min_p: found -0.1, expected 0 to 1"},
      {[](auto& p) { p.presence_penalty = 2.1; }, "presence_penalty: found 2.1, expected -2 to 2"},
      {[](auto& p) { p.frequency_penalty = -3; }, "frequency_penalty: found -3, expected -2 to 2"},
      {[](auto& p) { p.repetition_penalty = 0; },
       "repetition_penalty: found 0, expected 0.000001 to 1000000"},
      {[=](auto& p) { p.repetition_penalty = infinity; },
       "repetition_penalty: found inf, expected 0.000001 to 1000000"},
      {[](auto& p) { p.logit_bias = {{98, -100}, {99, 100}}; }, ""},
      {[](auto& p) { p.logit_bias = {{99, 100.5}}; },
       "logit_bias: found 100.5 for token 99, expected -100 to 100"},
      {[](auto& p) { p.logit_bias = {{3, 1}, {100, 1}}; },
       "logit_bias: found token id 100, expected 0 to 99"},
      {[=](auto& p) { p.logit_bias = {{3, nan}}; },
       "logit_bias: found nan for token 3, expected -100 to 100"},
      {[](auto& p) { p.allowed_token_ids = {-1}; },
       "allowed_token_ids: found token id -1, expected 0 to 99"},
      {[](auto& p) { p.bad_words_token_ids = {{1, 2}, {}}; },
       "bad_words_token_ids: found an empty word, expected at least one token"},
      {[](auto& p) { p.bad_words_token_ids = {{1, 200}}; },
       "bad_words_token_ids: found token id 200, expected 0 to 99"},
      {[](auto& p) { p.stop_token_ids = {100}; },
       "stop_token_ids: found token id 100, expected 0 to 99"},
      {[](auto& p) { p.stop = {"a", ""}; }, "stop: found an empty string, expected at least one byte"},
      {[](auto& p) { p.stop.assign(65, "x"); }, "stop: found 65 strings, expected at most 64"},
      {[](auto& p) { p.max_tokens = 0; }, ""},
      {[](auto& p) { p.max_tokens = -1; }, "max_tokens: found -1, expected at least 0"},
      {[](auto& p) { p.min_tokens = -1; }, "min_tokens: found -1, expected at least 0"},
      {[](auto& p) { p.min_tokens = 5, p.max_tokens = 4; },
       "min_tokens: found 5, expected at most max_tokens, 4"},
      {[](auto& p) { p.logprobs = -1; }, ""},
      {[](auto& p) { p.logprobs = -2; },
       "logprobs: found -2, expected 0 to 100, or -1 for the whole vocabulary"},
      {[](auto& p) { p.prompt_logprobs = 101; },
       "prompt_logprobs: found 101, expected 0 to 100, or -1 for the whole vocabulary"},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.change(params);
    const Status status = validate(params, kVocabSize);
    EXPECT_EQ(status.ok() ? "" : status.error().message, c.message);
    EXPECT_TRUE(status.ok() || status.error().code == Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
