#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "request/request.h"

namespace millrace {

struct Timings {
  double prefill_s = 0;              // all prompt tokens
  double time_to_first_token_s = 0;  // prefill and the first sampling
  double decode_s = 0;               // everything after the first token
};

// What became of one choice of a request.
struct Completion {
  std::vector<int32_t> token_ids;  // an end or stop token included
  FinishReason finish_reason = FinishReason::kAbort;
  StopReason stop_reason;
  std::optional<Error> error;           // of kError
  int64_t num_output_bytes = 0;         // of the output, as the last event settled them
  std::vector<TokenLogprobs> logprobs;  // per output token, if asked for
  // Per prompt token, if asked for, with the first choice; nothing comes before the first token.
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  Timings timings;
};

// Adds up the events of one choice. What has not ended counts as kAbort.
class CompletionBuilder {
 public:
  // `prompt_logprobs`: whether the events bring those of the prompt.
  explicit CompletionBuilder(bool prompt_logprobs) {
    if (prompt_logprobs) completion_.prompt_logprobs.emplace_back();
  }

  void add(const StreamEvent& event);

  bool is_finished() const { return is_finished_; }
  const Completion& completion() const { return completion_; }
  Completion take() { return std::move(completion_); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
  Completion completion_;
  bool is_finished_ = false;
};

}  // namespace millrace
