#pragma once

// Who runs in the next step, and what becomes of what came out. docs/scheduler.md explains the
// rules and their reasons.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kvcache/block_pool.h"
#include "kvcache/prefix_cache.h"
#include "kvcache/slot_pool.h"
#include "model_config/needed_tokens.h"
#include "request/request.h"
#include "request/step.h"
#include "scheduler/fair_share.h"
#include "scheduler/sequence.h"
#include "scheduler/stats.h"
#include "scheduler/step_cost.h"
#include "scheduler/stop_rules.h"

namespace millrace {

struct SchedulerOptions {
  int64_t max_num_seqs = 256;  // sequences that hold state at a time; at most kMaxNumSeqs
  int64_t max_num_batched_tokens = 2048;  // rows of a step, but see min_prefill_rows
  int64_t max_prefill_chunk = 2048;       // rows of one sequence in a step
  double max_step_ms = 250;               // while anything decodes, prefill rows stop here
  // Every step has room for so many prefill rows, whatever the other limits say: prompts always
  // make progress.
  int64_t min_prefill_rows = 8;
  // Requests without a running sequence, beyond those that a slot is free for. A key that has none
  // finds a reserve of a quarter more, so that no other key can close the door.
  int64_t max_waiting = 1024;
  int64_t max_model_len = 0;  // tokens of prompt and output; the blocks may allow fewer

  int64_t num_blocks = 0;
  int64_t block_size = 0;  // tokens
  // Blocks that stay free when a sequence is admitted beside others, for what those will need.
  // None: one of 64.
  std::optional<int64_t> admission_headroom_blocks;
  // A request that is paused keeps its blocks and slots so long against those that wait for them.
  double paused_grace_ms = 1000;

  // What has been computed is found again by requests that begin alike.
  bool prefix_caching = false;
  int64_t max_num_snapshots = 0;  // states that are kept to continue from, in slots of their own
  // Layers leave out the rows of a prompt that nothing depends on.
  bool exact_replay = false;
  LayerReach layer_reach;  // of the model; both of them need it
};

inline constexpr int64_t kMaxNumSeqs = 4096;
inline constexpr int64_t kMaxBlockSize = int64_t{1} << 20;

// Refuses a request that makes no sense, or that would not fit if it were alone.
Status check_request(const Request& request, int64_t vocab_size, int64_t max_model_len);

// Plans one step at a time: plan(), run it, commit(). What is running in between is not touched by
// the events that may arrive in between: arrivals, cancels and pauses.
//
// Pure: no clock, threads or bytes of state; the same calls give the same plans. Times are
// milliseconds from any origin and never go back.
//
// What holds between calls (check_invariants() looks):
//   * every block is free or in use, and in use exactly as often as block tables and the prefix
//     cache name it
//   * a sequence that runs has a slot of its own and blocks for all its computed tokens; one that
//     waits has neither
//   * nothing is ever lost: every choice of an accepted request gets exactly one last event
//
// Allocates nothing in a step in which sequences only decode, but for token lists that outgrow
// their room (by an eighth of it), for blocks that are full and become known to the prefix cache,
// and for log-probabilities. Takes time linear in what runs and, while a slot is free, in the
// number of fairness keys, and the prompt's length, for each admission that is tried.
//
// Threading: not thread-safe; one owner.
class Scheduler {
 public:
  // Sees what became of each choice in a step. May move from the event; must not call the
  // scheduler.
  using EventSink = std::function<void(RequestHandle, int32_t choice_idx, StreamEvent& event)>;

  // Requires: validate(options) is ok. The tokens must outlive it.
  Scheduler(const SchedulerOptions& options, const OutputTokens& tokens);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // What on_arrival() refuses whatever else is there. From any thread: it reads what never changes.
  Status check(const Request& request) const {
    return check_request(request, tokens_.vocab_size(), max_model_len_);
  }
  // Refuses a request that makes no sense, or that would not fit if it were alone
  // (kInvalidArgument), or that finds the queue full (kExhausted). A refused one gets no events.
  Status on_arrival(RequestHandle handle, Request request, double now_ms);
  // Ends it with kAbort at the next commit. Unknown handles are ignored: the last event may have
  // been on its way.
  void on_cancel(RequestHandle handle);
  // While its reader is slow, a request is in no plan.
  void set_paused(RequestHandle handle, bool paused, double now_ms);
  // From now on nothing is found of what was computed before.
  void reset_prefix_cache();

  // What to run now. Valid until commit(), which must follow, also when the plan is empty.
  const StepPlan& plan(double now_ms);
  // Whether every sequence of the plan that is running has been cancelled or is out of time: then
  // the rest of the step helps nobody.
  bool is_moot(double now_ms) const;
  // Takes in the results of the plan and reports what became of everything since the last commit.
  // Log-probabilities are moved into the events, and back if the sink leaves them there.
  void commit(StepResult& result, const EventSink& sink);

  // Whether the next plan may have rows, or the next commit events. False: wait for an event, or
  // until next_deadline_ms().
  bool has_work() const;
  std::optional<double> next_deadline_ms() const;

  // The most tokens of prompt and output that a request may ask for: what fits.
  int64_t max_model_len() const { return max_model_len_; }
  // Rows that no step exceeds.
  int64_t max_step_rows() const;
  // What it expects of steps of any size.
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

  int64_t max_waiting_with_reserve() const {
    return options_.max_waiting + options_.max_waiting / 4;
  }
  std::unique_ptr<Sequence> make_sequence(ScheduledRequest& request, int32_t choice_idx) const;

  // Planning.
  void add_decode_rows();
  void add_prefill_rows(double now_ms);
  Sequence* next_to_prefill(double now_ms);
  bool admit(Sequence& sequence, double now_ms);
  void add_rows(Sequence& sequence, int64_t num_rows);
  bool wants_prompt_logprobs(const Sequence& sequence) const;
  WantedTokens wanted(const Sequence& sequence) const;
  double num_whole_rows(const Sequence& sequence, int64_t num_rows) const;
  bool goes_before(const Sequence& a, const Sequence& b) const;

  // Slots and blocks.
  struct Start;
  Start find_start(const Sequence& sequence);
  bool has_room_for(const Start& start) const;
  bool has_room_for(int64_t num_blocks) const;
  std::optional<BlockId> allocate_block();
  void copy_to_snapshot(Sequence& sequence);
  void leave_as_snapshot(Sequence& sequence);
  std::span<const int32_t> tokens_behind_prefix(const Sequence& sequence) const;
  double snapshot_value(const Sequence& sequence) const;
  bool reclaim_paused(const Start& start, double now_ms);
  int64_t num_free_seqs() const { return options_.max_num_seqs - int64_t(running_.size()); }
  size_t victim_idx() const;
  void preempt(size_t running_idx);
  void start_running(Sequence& sequence, SequenceState state);
  void stop_running(Sequence& sequence);
  bool share_state(const Sequence& from, Sequence& to);

  // Results.
  void commit_rows(const PlannedRows& rows, Sequence& sequence, RowsResult& result,
                   const EventSink& sink);
  void count_prompt_tokens(ScheduledRequest& request, int64_t num_computed_tokens);
  void take_prompt_logprobs(const PlannedRows& rows, Sequence& sequence, RowsResult& result,
                            StreamEvent& event);
  void index_blocks(Sequence& sequence);
  void finish_prefill(Sequence& sequence);
  void commit_first_samples(Sequence& first, RowsResult& result, StreamEvent& event,
                            const EventSink& sink);
  bool append_token(Sequence& sequence, SampledToken& sample, StreamEvent& event,
                    const EventSink& sink);
  void end_choices_of_rows(Sequence& sequence, const StreamEvent& event, const EventSink& sink);
  void end_request(ScheduledRequest& request, FinishReason reason);
  void finish_sequence(Sequence& sequence);
  void finish_choice(ScheduledRequest& request, int32_t choice_idx);
  void remove_request(ScheduledRequest& request);

  SchedulerOptions options_;
  OutputTokens tokens_;
  int64_t max_model_len_;
  int64_t headroom_blocks_;

  BlockPool blocks_;
  SlotPool slots_;  // of what runs and of snapshots
  PrefixCache prefix_cache_;
  FairShare fair_share_;
  StepCost step_cost_;

  std::map<RequestHandle, std::unique_ptr<ScheduledRequest>> requests_;
  std::set<std::pair<double, RequestHandle>> deadlines_;
  std::vector<Sequence*> running_;    // hold a slot; those that are preempted last come first
  int64_t num_waiting_requests_ = 0;  // without a running sequence
  int64_t num_waiting_sequences_ = 0;
  SequenceId next_sequence_id_ = 0;
  // The first of those that wait found no room in the last plan, and nothing has happened since.
  bool is_blocked_ = false;

  StepPlan plan_;
  std::vector<Sequence*> planned_;          // of plan_.rows
  std::vector<ScheduledRequest*> started_;  // of plan_.started
  bool is_planned_ = false;                 // between plan() and commit()
  int64_t next_step_id_ = 0;
  std::vector<RequestHandle> ending_handles_;  // that ended in between

  // For the next plan.
  std::vector<SequenceId> finished_;
  std::vector<StateCopy> state_copies_;
  std::vector<BlockCopy> block_copies_;
  // For the next commit.
  std::vector<Ending> endings_;
  int64_t num_ending_requests_ = 0;

  SchedulerStats totals_;  // the part that counts from the start
};

// Refuses what makes no sense; the message names the option, what was found and what was expected.
Status validate(const SchedulerOptions& options);

}  // namespace millrace
