#pragma once

// From the records of a run to its figures. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/distribution.h"
#include "loadgen/record.h"
#include "loadgen/runner.h"

namespace millrace {

// Times in milliseconds; of the requests that succeeded, unless said.
struct RunMetrics {
  int64_t num_planned = 0, num_sent = 0, num_succeeded = 0, num_failed = 0, num_cancelled = 0;
  std::map<std::string, int64_t> errors;              // by what went wrong
  std::map<std::string, std::string> error_examples;  // the first message of each
  std::map<std::string, int64_t> finish_reasons;

  double duration_s = 0;  // from the first sending to the last text
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, reasoning_tokens = 0;
  int64_t new_tokens() const { return prompt_tokens - cached_tokens; }
  double per_second(double count) const { return duration_s > 0 ? count / duration_s : 0; }

  Distribution prompt_length, output_length;
  Distribution ttft, ttft_scheduled, ttfv, itl, e2el, e2e_per_token, max_gap;
  Distribution token_gap;  // of the time between events, divided by tokens; each token counts
  Distribution chunk_gap;  // each event counts
  Distribution lag;        // of all that were sent
  // Whether every event said how many tokens it has; otherwise an answer's tokens count as evenly
  // spread over its events.
  bool knows_chunk_tokens = true;
  double mean_chunk_tokens = 0;

  // Over the duration: requests under way, those between first and last text, and the others.
  double mean_concurrency = 0, mean_decoding = 0, mean_waiting = 0;
  int64_t max_concurrency = 0;

  // While at least 95 % of the usual number (the median over time) is under way, longest such time.
  double steady_s = 0;
  double steady_output_tokens_per_s = 0;

  // Requests whose lengths, as the server counts them, are more than 1 % off the plan.
  int64_t num_wrong_output_lengths = 0, num_wrong_prompt_lengths = 0;
  int64_t num_without_usage = 0;  // the server did not count: chunks stand for tokens
};

RunMetrics compute_metrics(const RunOutcome& run);

// Tokens per second of a user: 1 / percentile of the time per token, so that the 90th is the slow
// tail. 0: there are none.
double interactivity(double percentile_ms);

struct ValidityRules {
  bool is_open_loop = false;
  double mean_gap_ms = 0;  // of an open loop's plan
  bool forces_output_length = true;
  bool was_warmed_up = true;  // as asked for
  std::optional<bool> was_server_restarted = {};
  double min_duration_s = 0;
};

// Why the figures should not be trusted; empty: nothing speaks against them.
std::vector<std::string> find_invalid(const RunOutcome& run, const RunMetrics& metrics,
                                      const ValidityRules& rules);

}  // namespace millrace
