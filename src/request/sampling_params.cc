#include "request/sampling_params.h"

#include "base/format.h"

namespace millrace {
namespace {

template <class T>
Error refuse(std::string_view field, const T& found, std::string_view expected) {
  return {Code::kInvalidArgument, format(field, ": found ", found, ", expected ", expected)};
}

Status check_token_ids(std::string_view field, const std::vector<int32_t>& ids,
                       int64_t vocab_size) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return refuse(field, format("token id ", id), format("0 to ", vocab_size - 1));
    }
  }
  return {};
}

// Comparisons with NaN are false, so every condition states what is right.
Status check_numbers(const SamplingParams& p) {
  const auto within = [](double x, double low, double high) { return x >= low && x <= high; };
  if (!within(p.temperature, 0, 2)) return refuse("temperature", p.temperature, "0 to 2");
  if (p.top_k < -1) return refuse("top_k", p.top_k, "at least 1, or 0 or -1 for no limit");
  if (!(p.top_p > 0 && p.top_p <= 1)) return refuse("top_p", p.top_p, "above 0, at most 1");
  if (!within(p.min_p, 0, 1)) return refuse("min_p", p.min_p, "0 to 1");
  if (!within(p.presence_penalty, -2, 2)) {
    return refuse("presence_penalty", p.presence_penalty, "-2 to 2");
  }
  if (!within(p.frequency_penalty, -2, 2)) {
    return refuse("frequency_penalty", p.frequency_penalty, "-2 to 2");
  }
  // Dividing and multiplying logits by anything outside these bounds could leave fp32.
  if (!within(p.repetition_penalty, 1e-6, 1e6)) {
    return refuse("repetition_penalty", p.repetition_penalty, "0.000001 to 1000000");
  }
  return {};
}

Status check_lengths(const SamplingParams& p, int64_t vocab_size) {
  if (p.min_tokens < 0) return refuse("min_tokens", p.min_tokens, "at least 0");
  if (p.max_tokens && *p.max_tokens < 0) return refuse("max_tokens", *p.max_tokens, "at least 0");
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return refuse("min_tokens", p.min_tokens, format("at most max_tokens, ", *p.max_tokens));
  }
  for (const auto& [field, count] :
       {std::pair("logprobs", p.logprobs), std::pair("prompt_logprobs", p.prompt_logprobs)}) {
    if (count && (*count < -1 || *count > vocab_size)) {
      return refuse(field, *count, format("0 to ", vocab_size, ", or -1 for the whole vocabulary"));
    }
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& p, int64_t vocab_size) {
  RETURN_IF_ERROR(check_numbers(p));
  RETURN_IF_ERROR(check_lengths(p, vocab_size));
  for (const auto& [id, bias] : p.logit_bias) {
    RETURN_IF_ERROR(check_token_ids("logit_bias", {id}, vocab_size));
    if (!(bias >= -kMaxLogitBias && bias <= kMaxLogitBias)) {
      return refuse("logit_bias", format(bias, " for token ", id), "-100 to 100");
    }
  }
  RETURN_IF_ERROR(check_token_ids("allowed_token_ids", p.allowed_token_ids, vocab_size));
  for (const std::vector<int32_t>& word : p.bad_words_token_ids) {
    if (word.empty()) return refuse("bad_words_token_ids", "an empty word", "at least one token");
    RETURN_IF_ERROR(check_token_ids("bad_words_token_ids", word, vocab_size));
  }
  RETURN_IF_ERROR(check_token_ids("stop_token_ids", p.stop_token_ids, vocab_size));
  if (p.stop.size() > kMaxStopStrings) {
    return refuse("stop", format(p.stop.size(), " strings"), format("at most ", kMaxStopStrings));
  }
  for (const std::string& stop : p.stop) {
    if (stop.empty()) return refuse("stop", "an empty string", "at least one byte");
  }
  return {};
}

}  // namespace millrace
