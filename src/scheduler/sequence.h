#pragma once

// What the scheduler keeps of each request and of each of its choices.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "request/request.h"
#include "request/step.h"
#include "scheduler/fair_share.h"
#include "scheduler/stop_rules.h"

namespace millrace {

inline constexpr StateSlot kNoSlot = -1;

// A sequence that was preempted so often is only preempted for others of its kind.
inline constexpr int32_t kMaxPreemptions = 3;

struct ScheduledRequest;

enum class SequenceState {
  kWaiting,     // holds nothing: not admitted yet, or preempted
  kPrefilling,  // holds a slot and blocks for all its tokens; some are not computed yet
  kDecoding,    // only the token sampled last is not computed
};

// One choice of a request.
struct Sequence {
  SequenceId id = 0;
  int32_t choice_idx = 0;  // 0 to num_choices - 1
  ScheduledRequest* request = nullptr;
  SequenceState state = SequenceState::kWaiting;

  std::vector<int32_t> tokens;  // prompt, then output
  int64_t num_computed_tokens = 0;
  int64_t num_charged_tokens = 0;   // planned at least once: nobody pays twice
  int64_t num_reported_tokens = 0;  // of the prompt, in events
  std::vector<BlockId> block_table;
  // While it runs: its first blocks are those of this node of the prefix cache, and so many of its
  // tokens were in blocks when it was admitted.
  PrefixNode* prefix = nullptr;
  int64_t num_prefix_blocks = 0;
  int64_t num_cached_tokens = 0;
  StateSlot slot = kNoSlot;
  int32_t num_preemptions = 0;
  bool is_keepable = true;  // slot and blocks hold what its computed tokens give, and no error
  int64_t planned_step = -1;  // step_id of the last plan with rows of it

  std::optional<StopRules> stop_rules;  // none: max_tokens is 0

  bool is_running() const { return state != SequenceState::kWaiting; }
  int64_t num_tokens() const { return int64_t(tokens.size()); }
};

struct ScheduledRequest {
  RequestHandle handle = 0;
  Request request;  // its prompt only until it has started
  FairShare::Key* key = nullptr;
  int32_t priority = 0;  // clamped
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;  // of the prompt, when it was admitted first
  int64_t max_tokens = 0;  // of each choice, what the context allows included
  double deadline_ms = std::numeric_limits<double>::infinity();
  SequenceId first_sequence_id = 0;
  // By choice_idx. The first stands alone until the prompt is computed; finished ones are null.
  std::vector<std::unique_ptr<Sequence>> sequences;
  int32_t num_unfinished = 0;       // choices, made or not
  int32_t num_running = 0;          // sequences that hold a slot
  int64_t num_prompt_logprobs = 0;  // sent so far
  int64_t num_counted_tokens = 0;   // of the prompt, in the statistics
  bool has_started = false;         // the executor knows it; its prompt is in the sequences now
  bool has_forked = false;          // all choices are made
  bool is_paused = false;
  double paused_since_ms = 0;
  std::optional<FinishReason> ending;  // kAbort or kTimeout, when the step that runs is over
};

// Grows by an eighth: hardly more than 4.5 bytes for a token id, and eight copies of it in all.
inline void push_back_tightly(std::vector<int32_t>& list, int32_t value) {
  if (list.size() == list.capacity()) list.reserve(list.size() + list.size() / 8 + 8);
  list.push_back(value);
}

// Lower is served first and preempted last. Sequences that were preempted often enough stand above
// all priorities, so that the oldest of them runs to its end.
inline int32_t rank(const Sequence& s) {
  return s.num_preemptions >= kMaxPreemptions ? kMinPriority - 1 : s.request->priority;
}

inline bool is_ranked_before(const Sequence* a, const Sequence* b) {
  return rank(*a) != rank(*b) ? rank(*a) < rank(*b) : a->id < b->id;
}

// Of its output; 0 for a choice that has none.
inline int64_t num_settled_bytes(const Sequence* sequence) {
  return sequence && sequence->stop_rules ? sequence->stop_rules->num_bytes() : 0;
}

}  // namespace millrace
