#pragma once

// Who runs in the next step, and what becomes of what came out. docs/scheduler.md explains the
// rules and their reasons.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kvcache/block_pool.h"
#include "kvcache/slot_pool.h"
#include "request/request.h"
#include "request/step.h"
#include "scheduler/fair_share.h"
#include "scheduler/sequence.h"
#include "scheduler/step_cost.h"
#include "scheduler/stop_rules.h"

namespace millrace {

struct SchedulerOptions {
  int64_t max_num_seqs = 256;             // sequences that hold state at a time; at most kMaxNumSeqs
  int64_t max_num_batched_tokens = 2048;  // rows of a step, but see min_prefill_rows
  int64_t max_prefill_chunk = 2048;       // rows of one sequence in a step
  double max_step_ms = 250;               // while anything decodes, prefill rows stop here
  // Every step has room for so many prefill rows, whatever the other limits say: prompts always
  // make progress.
  int64_t min_prefill_rows = 8;
  int64_t max_waiting = 1024;  // requests without a running sequence
  int64_t max_model_len = 0;   // tokens of prompt and output; the blocks may allow fewer

  int64_t num_blocks = 0;
  int64_t block_size = 0;  // tokens
  // Blocks that stay free when a sequence is admitted beside others, for what those will need.
  // None: one of 64.
  std::optional<int64_t> admission_headroom_blocks;
  // A request that is paused keeps its blocks and slots so long against those that wait for them.
  double paused_grace_ms = 1000;
};

inline constexpr int64_t kMaxNumSeqs = 4096;
// A sequence that was preempted so often is only preempted for others of its kind.
inline constexpr int32_t kMaxPreemptions = 3;

struct SchedulerStats {
  int64_t num_waiting_requests = 0;  // without a running sequence
  int64_t num_running_requests = 0;
  int64_t num_waiting_sequences = 0;  // preempted ones among them
  int64_t num_prefilling_sequences = 0;
  int64_t num_decoding_sequences = 0;
  int64_t num_paused_requests = 0;
  int64_t num_blocks = 0;
  int64_t num_free_blocks = 0;
  int64_t bookkeeping_bytes = 0;  // tokens, block tables and pool entries of what is running

  // Since the start.
  int64_t num_steps = 0;  // committed, not abandoned
  int64_t num_abandoned_steps = 0;
  int64_t num_prefill_rows = 0;
  int64_t num_decode_rows = 0;
  int64_t num_recomputed_rows = 0;  // of the prefill rows: paid for a second time
  int64_t num_preemptions = 0;
  int64_t num_finished_requests = 0;
};

// Plans one step at a time: plan(), run it, commit(). What is running in between is not touched by
// the events that may arrive in between: arrivals, cancels and pauses.
//
// Pure: no clock, threads or bytes of state; the same calls give the same plans. Times are
// milliseconds from any origin and never go back.
//
// What holds between calls (check_invariants() looks):
//   * every block is free or in use, and in use exactly as often as block tables name it
//   * a sequence that runs has a slot of its own and blocks for all its computed tokens; one that
//     waits has neither
//   * nothing is ever lost: every choice of an accepted request gets exactly one last event
//
// Allocates nothing in a step in which sequences only decode, but for token lists that outgrow
// their room (by half of it) and for log-probabilities. Takes time linear in what runs and, when
// something is admitted, in the number of fairness keys.
//
// Threading: not thread-safe; one owner.
class Scheduler {
 public:
  // Sees what became of each choice in a step: `event` is the caller's to move from.
  using EventSink = std::function<void(RequestHandle, int32_t choice_idx, StreamEvent& event)>;

  // Requires: validate(options) is ok. The tokens must outlive it.
  Scheduler(const SchedulerOptions& options, const OutputTokens& tokens);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Refuses a request that makes no sense, or that would not fit if it were alone
  // (kInvalidArgument), or that finds the queue full (kExhausted). A refused one gets no events.
  Status on_arrival(RequestHandle handle, Request request, double now_ms);
  // Ends it with kAbort at the next commit. Unknown handles are ignored: the last event may have
  // been on its way.
  void on_cancel(RequestHandle handle);
  // While its reader is slow, a request is in no plan.
  void set_paused(RequestHandle handle, bool paused, double now_ms);

  // What to run now. Valid until commit(), which must follow, also when the plan is empty.
  const StepPlan& plan(double now_ms);
  // Whether every sequence of the plan that is running has been cancelled or is out of time: then
  // the rest of the step helps nobody.
  bool is_moot(double now_ms) const;
  // Takes in the results of the plan and reports what became of everything since the last commit.
  // Log-probabilities are moved into the events, and back if the sink leaves them there.
  void commit(StepResult& result, double now_ms, const EventSink& sink);

  // Whether the next plan may have rows, or the next commit events. False: wait for an event, or
  // until next_deadline_ms().
  bool has_work() const;
  std::optional<double> next_deadline_ms() const;

  // The most tokens of prompt and output that a request may ask for: what fits.
  int64_t max_model_len() const { return max_model_len_; }
  // Rows that no step exceeds.
  int64_t max_step_rows() const;
  // The rows of a step whose estimated time is within max_step_ms, and estimates.
  const StepCost& step_cost() const { return step_cost_; }

  SchedulerStats stats() const;
  // Aborts when a rule is broken. For tests and fuzzers: linear in everything.
  void check_invariants() const;

 private:
  // An event that does not come from rows: of a request that was cancelled or ran out of time.
  struct Ending {
    RequestHandle handle;
    int32_t choice_idx;
    StreamEvent event;
  };

  Status check(const Request& request) const;

  SchedulerOptions options_;
  OutputTokens tokens_;
  int64_t max_model_len_;
  int64_t headroom_blocks_;
  StepCost step_cost_;
  SchedulerStats totals_;  // the part that counts from the start
};

// Refuses what makes no sense; the message names the option, what was found and what was expected.
Status validate(const SchedulerOptions& options);

}  // namespace millrace
