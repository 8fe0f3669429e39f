#include "stats.h"

#include <algorithm>

#include "base/format.h"

namespace millrace {
namespace {

double per_second(int64_t count, double seconds) {
  return seconds > 0 ? double(count) / seconds : 0;
}

}  // namespace

double prefill_tokens_per_s(const Answer& answer) {
  return per_second(answer.num_prompt_tokens, answer.completion.timings.prefill_s);
}

double decode_tokens_per_s(const Answer& answer) {
  const int64_t count = int64_t(answer.completion.token_ids.size()) - 1;
  return per_second(std::max<int64_t>(count, 0), answer.completion.timings.decode_s);
}

double hit_rate(const ExpertReads& reads) {
  const int64_t all = reads.num_hits + reads.num_misses;
  return all > 0 ? double(reads.num_hits) / double(all) : 0;
}

std::string expert_stats_line(const EngineInfo& info, const ExpertReads& reads) {
  if (reads.cache_bytes == 0) return "";
  const auto tenths = [](double value) { return double(int64_t(value * 10 + 0.5)) / 10; };
  return format("[experts: ", tenths(100 * hit_rate(reads)), "% of ",
                reads.num_hits + reads.num_misses, " were in the cache of ",
                reads.cache_bytes / 1'000'000, " MB; ", reads.num_bytes / 1'000'000,
                " MB read with ", info.expert_reads, ", waited ", reads.wait_ns / 1'000'000,
                " ms]");
}

std::string stats_line(const Answer& answer) {
  return format("[", answer.num_prompt_tokens, " prompt tokens at ",
                int64_t(prefill_tokens_per_s(answer)), "/s, ", answer.completion.token_ids.size(),
                " new at ", int64_t(decode_tokens_per_s(answer)), "/s, first after ",
                int64_t(answer.completion.timings.time_to_first_token_s * 1e3), " ms, ",
                answer.finish_reason, ", seed ", answer.seed, "]");
}

}  // namespace millrace
