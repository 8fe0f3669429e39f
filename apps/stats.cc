#include "stats.h"

#include <algorithm>

#include "base/format.h"

namespace millrace {
namespace {

double per_second(int64_t count, double seconds) { return seconds > 0 ? double(count) / seconds : 0; }

}  // namespace

double prefill_tokens_per_s(const Answer& answer) {
  return per_second(answer.num_prompt_tokens, answer.completion.timings.prefill_s);
}

double decode_tokens_per_s(const Answer& answer) {
  const int64_t count = int64_t(answer.completion.token_ids.size()) - 1;
  return per_second(std::max<int64_t>(count, 0), answer.completion.timings.decode_s);
}

std::string stats_line(const Answer& answer) {
  return format("[", answer.num_prompt_tokens, " prompt tokens at ",
                int64_t(prefill_tokens_per_s(answer)), "/s, ", answer.completion.token_ids.size(),
                " new at ", int64_t(decode_tokens_per_s(answer)), "/s, first after ",
                int64_t(answer.completion.timings.time_to_first_token_s * 1e3), " ms, ",
                answer.finish_reason, ", seed ", answer.seed, "]");
}

}  // namespace millrace
