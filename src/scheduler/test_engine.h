#pragma once

// What the scheduler's tests share: small requests, and an engine's loop with a test executor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/test_executor.h"

namespace millrace {

inline constexpr int32_t kVocabSize = 1000;

inline SchedulerOptions small_options() {
  SchedulerOptions o;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 64;
  o.max_prefill_chunk = 64;
  o.max_waiting = 16;
  o.max_model_len = 1000;
  o.num_blocks = 64;
  o.block_size = 8;
  return o;
}

// A prompt that nobody else has, greedy, without an early end unless asked for.
inline Request make_request(int64_t num_prompt_tokens, std::optional<int64_t> max_tokens,
                            int32_t seed = 0) {
  Request r;
  r.sampling.temperature = 0;
  r.sampling.max_tokens = max_tokens;
  r.sampling.ignore_eos = true;
  for (int64_t i = 0; i < num_prompt_tokens; ++i) {
    r.prompt_token_ids.push_back(int32_t((i * 31 + seed * 7 + 1) % kVocabSize));
  }
  return r;
}

// Scheduler and executor in the loop of an engine, with simulated time.
struct Engine {
  explicit Engine(const SchedulerOptions& options)
      : vocabulary(kVocabSize),
        scheduler(options, vocabulary.tokens()),
        executor(options.num_blocks, options.block_size,
                 options.max_num_seqs + options.max_num_snapshots, kVocabSize),
        options(options) {
    executor.layer_reach = options.layer_reach;
  }

  Status arrive(RequestHandle handle, const Request& request) {
    Status status = scheduler.on_arrival(handle, request, now_ms);
    if (status.ok()) requests[handle] = request;
    scheduler.check_invariants();
    return status;
  }
  const StepPlan& plan() {
    const StepPlan& plan = scheduler.plan(now_ms);
    scheduler.check_invariants();
    return plan;
  }
  void commit(const StepPlan& plan, bool abandon = false) {
    StepResult& result = executor.run(plan, abandon);
    now_ms += plan.rows.empty() ? 0 : result.elapsed_ms;
    scheduler.commit(result, std::ref(recorder));
    scheduler.check_invariants();
  }
  // One whole step: {sequence, rows, samples} of each.
  using Rows = std::vector<std::tuple<SequenceId, int, int>>;
  Rows step(bool abandon = false) {
    const StepPlan& p = plan();
    Rows rows;
    for (const PlannedRows& r : p.rows) {
      rows.emplace_back(r.sequence_id, r.num_rows, r.num_samples);
    }
    commit(p, abandon);
    return rows;
  }
  void run_all(int max_steps = 100000) {
    while (scheduler.has_work() && max_steps-- > 0) step();
    EXPECT_GT(max_steps, 0) << "does not come to an end";
  }
  const Recorder::Choice& choice(RequestHandle handle, int32_t choice_idx = 0) {
    return recorder.choices[{handle, choice_idx}];
  }
  void expect_right_output(RequestHandle handle) {
    const Request& request = requests.at(handle);
    const int64_t max_tokens = request.sampling.max_tokens.value_or(
        scheduler.max_model_len() - int64_t(request.prompt_token_ids.size()));
    for (int32_t k = 0; k < request.num_choices; ++k) {
      const Output want = expected_output(request, k, max_tokens, vocabulary.tokens());
      const Output& found = choice(handle, k).output;
      EXPECT_EQ(found.tokens, want.tokens) << "request " << handle << " choice " << k;
      EXPECT_EQ(found.finish_reason, want.finish_reason) << "request " << handle;
      EXPECT_EQ(found.num_settled_bytes, want.num_settled_bytes) << "request " << handle;
    }
  }
  void expect_idle() {
    EXPECT_FALSE(scheduler.has_work());
    const SchedulerStats stats = scheduler.stats();
    EXPECT_EQ(stats.num_free_blocks, options.num_blocks);
    EXPECT_EQ(stats.num_running_requests, 0);
    EXPECT_EQ(stats.num_waiting_requests, 0);
    EXPECT_EQ(executor.num_samplers(), 0u);
  }

  TestVocabulary vocabulary;
  Scheduler scheduler;
  TestExecutor executor;
  SchedulerOptions options;
  Recorder recorder;
  std::map<RequestHandle, Request> requests;
  double now_ms = 0;
};

}  // namespace millrace
