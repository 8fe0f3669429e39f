#include "engine/completion.h"

namespace millrace {

void CompletionBuilder::add(const StreamEvent& event) {
  const double now_s = std::chrono::duration<double>(Clock::now() - start_).count();
  Timings& timings = completion_.timings;
  for (const TokenLogprobs& logprobs : event.prompt_logprobs) {
    completion_.prompt_logprobs.emplace_back(logprobs);
  }
  if (event.token_id) {
    completion_.token_ids.push_back(*event.token_id);
    if (event.logprobs) completion_.logprobs.push_back(*event.logprobs);
    if (completion_.token_ids.size() == 1) timings.time_to_first_token_s = now_s;
  }
  if (completion_.token_ids.size() <= 1) timings.prefill_s = now_s;
  if (!completion_.token_ids.empty()) timings.decode_s = now_s - timings.time_to_first_token_s;
  completion_.num_output_bytes = event.num_settled_bytes;
  if (!event.finish_reason) return;
  is_finished_ = true;
  completion_.finish_reason = *event.finish_reason;
  completion_.stop_reason = event.stop_reason;
  completion_.error = event.error;
}

}  // namespace millrace
