#pragma once

// What crosses from the text front door to the engine and back: plain data, no behaviour.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "request/sampling_params.h"

namespace millrace {

// Which part of the output stop strings apply to. A chat's stop strings are meant for its answer,
// not for its reasoning nor for the markup of tool calls.
struct StopScope {
  std::optional<int32_t> begin_after_token_id;  // none: from the first token
  std::optional<int32_t> end_at_token_id;       // none: to the last
};

struct Request {
  std::string request_id;  // for messages; need not be unique
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling;
  StopScope stop_scope;
  int32_t choice_idx = 0;   // of several answers to one prompt: each draws its own randomness
  int32_t num_choices = 1;  // answers to the prompt, from choice_idx on; at most kMaxChoices
  // Lower is served first, as in vLLM. Clamped to kMinPriority and kMaxPriority; each step is worth
  // a share kPriorityWeight times as large, so that nobody starves.
  int32_t priority = 0;
  std::string fairness_key;          // requests of one priority are served evenly by key
  std::string cache_salt;            // prefixes are shared among requests of one salt
  std::optional<double> timeout_ms;  // from arrival; then it ends with kTimeout
};

inline constexpr int32_t kMaxChoices = 128;
inline constexpr int32_t kMinPriority = -4;
inline constexpr int32_t kMaxPriority = 4;
inline constexpr double kPriorityWeight = 4;

// One token's log-probability. Its rank counts from 1 in the order of the sampler: descending, the
// lower id first on ties.
struct TokenLogprob {
  int32_t token_id = 0;
  int64_t rank = 0;
  float logprob = 0;
};

struct TokenLogprobs {
  TokenLogprob token;             // the one that stands at this position
  std::vector<TokenLogprob> top;  // the likeliest ones, best first
};

enum class FinishReason {
  kStop,     // an end token, a stop token or a stop string
  kLength,   // max_tokens, or the end of the context
  kAbort,    // the caller gave up
  kTimeout,  // the request's time was over
  kError,    // it cannot go on; the event says why
};

std::string_view finish_reason_name(FinishReason reason);

// Why kStop: nothing for the model's own end token, otherwise the token or the string.
using StopReason = std::variant<std::monostate, int32_t, std::string>;

// The bytes of an output are those of its tokens in a row, without those of control tokens where
// the request skips them.
//
// One step of a request. Without a token it only reports how far the prompt has come.
struct StreamEvent {
  int64_t num_computed_tokens = 0;  // of the prompt and the output
  int64_t num_cached_tokens = 0;    // of the prompt: they need not be computed
  std::optional<int32_t> token_id;
  // So many bytes of the output are settled: no stop string will take them back. The last event
  // cuts off an end or stop token, and a matched stop string unless the request includes it.
  int64_t num_settled_bytes = 0;
  std::optional<TokenLogprobs> logprobs;  // of the token
  // Of the prompt tokens that follow those of the events before, if asked for; nothing comes before
  // the first token, so these begin with the second. On events of the first choice only.
  std::vector<TokenLogprobs> prompt_logprobs;
  std::optional<FinishReason> finish_reason;  // on the last event
  StopReason stop_reason;
  std::optional<Error> error;  // of kError
};

}  // namespace millrace
