#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "request/request.h"
#include "request/stop_matcher.h"

namespace millrace {

// What ends an output, as data by token id; no tokenizer. The spans must outlive their users.
struct OutputTokens {
  std::span<const std::string> bytes;   // of each token; a control token's literal
  std::span<const uint8_t> is_control;  // left out of the output where a request skips them
  std::span<const int32_t> eos_token_ids;

  int64_t vocab_size() const { return int64_t(bytes.size()); }
};

// Decides after every token whether an output ends here, and how many of its bytes are settled. A
// function of the tokens alone: never of the step that brought them.
//
// Request and tokens must outlive it. Allocates when built; append() only for a matched string.
class StopRules {
 public:
  // `max_tokens` is the request's, or what the context leaves. Requires: at least 1.
  StopRules(const Request& request, const OutputTokens& tokens, int64_t max_tokens);

  // Fills the event's token, finish reason, stop reason and settled bytes.
  // Requires: no token before it had a finish reason.
  void append(int32_t token_id, StreamEvent& event);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_bytes() const { return num_bytes_; }  // of all tokens, settled or not

 private:
  enum class ScopePart { kBefore, kInside, kAfter };

  std::string_view output_bytes(int32_t token_id) const;
  std::optional<StopMatcher::Match> match_stop_strings(int32_t token_id, std::string_view bytes);

  const SamplingParams& params_;
  const StopScope& scope_;
  const OutputTokens& tokens_;
  int64_t max_tokens_;
  StopMatcher matcher_;
  ScopePart scope_part_;
  int64_t num_tokens_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace millrace
