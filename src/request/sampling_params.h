#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace {

// How a client wants tokens to be chosen, and when to stop. Names and meanings are those of the
// OpenAI API and of vLLM; sampler/sampler.h says what each one does to the logits.
struct SamplingParams {
  double temperature = 1;  // 0 to 2; below kGreedyTemperature: the likeliest token, always
  int64_t top_k = 0;       // 0 or -1: off
  double top_p = 1;        // above 0, at most 1
  double min_p = 0;        // 0 to 1

  double presence_penalty = 0;    // -2 to 2, on generated tokens
  double frequency_penalty = 0;   // -2 to 2, on generated tokens
  double repetition_penalty = 1;  // above 0, on prompt and generated tokens

  std::vector<std::pair<int32_t, double>> logit_bias;     // by token id, -100 to 100
  std::vector<int32_t> allowed_token_ids;                 // empty: every token
  std::vector<std::vector<int32_t>> bad_words_token_ids;  // sequences that must never come out

  std::optional<uint64_t> seed;  // none: the caller draws one and reports it

  std::vector<int32_t> stop_token_ids;  // besides the model's end tokens
  std::vector<std::string> stop;        // matched on bytes; see StopScope in request/request.h
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;  // control tokens leave no text
  bool ignore_eos = false;  // end tokens are tokens like others
  int64_t min_tokens = 0;   // nothing but max_tokens ends the output before it has so many
  std::optional<int64_t> max_tokens;  // none: as many as the context holds. 0: the prompt only

  // Log-probabilities of the raw distribution, before bans, penalties and temperature, with so
  // many alternatives beside the token itself; -1 is the whole vocabulary.
  std::optional<int64_t> logprobs;
  std::optional<int64_t> prompt_logprobs;
};

inline constexpr double kGreedyTemperature = 1e-5;
inline constexpr double kMaxLogitBias = 100;  // and -100; texts that ask for more get this
inline constexpr size_t kMaxStopStrings = 64;
// Of seeds in texts: any 64 bits, with a sign or without.
inline constexpr std::string_view kSeedRange =
    "an integer from -9223372036854775808 to 18446744073709551615";

// Refuses what makes no sense; the message names the field, what was found and what was expected.
Status validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace millrace
