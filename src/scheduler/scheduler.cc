#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/format.h"

namespace millrace {
namespace {

// Room that a sequence's lists get when it is admitted, beyond what is known of it.
constexpr int64_t kReservedTokens = 1024;

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace

Status validate(const SchedulerOptions& o) {
  const auto at_least = [](const char* name, int64_t found, int64_t least) -> Status {
    if (found >= least) return {};
    return Error{Code::kInvalidArgument,
                 format(name, ": found ", found, ", expected at least ", least)};
  };
  const auto within = [](const char* name, int64_t found, int64_t most) -> Status {
    if (found >= 1 && found <= most) return {};
    return Error{Code::kInvalidArgument, format(name, ": found ", found, ", expected 1 to ", most)};
  };
  RETURN_IF_ERROR(within("max_num_seqs", o.max_num_seqs, kMaxNumSeqs));
  RETURN_IF_ERROR(within("num_blocks", o.num_blocks, std::numeric_limits<BlockId>::max()));
  RETURN_IF_ERROR(within("block_size", o.block_size, kMaxBlockSize));
  RETURN_IF_ERROR(at_least("max_num_batched_tokens", o.max_num_batched_tokens, 1));
  RETURN_IF_ERROR(at_least("max_prefill_chunk", o.max_prefill_chunk, 1));
  RETURN_IF_ERROR(at_least("min_prefill_rows", o.min_prefill_rows, 1));
  RETURN_IF_ERROR(at_least("max_waiting", o.max_waiting, 1));
  RETURN_IF_ERROR(at_least("max_model_len", o.max_model_len, 1));
  RETURN_IF_ERROR(at_least("max_num_snapshots", o.max_num_snapshots, 0));
  if (o.prefix_caching || o.exact_replay) {
    RETURN_IF_ERROR(at_least("layer_reach: num_layers", o.layer_reach.num_layers, 1));
    RETURN_IF_ERROR(at_least("layer_reach: sliding_window", o.layer_reach.sliding_window, 1));
    int64_t least = 0;
    for (const int64_t layer : o.layer_reach.kv_source_layer_ids) {
      if (layer < least || layer >= o.layer_reach.num_layers) {
        return Error{Code::kInvalidArgument,
                     format("layer_reach: found layer ", layer, " as KV source, expected ", least,
                            " to ", o.layer_reach.num_layers - 1)};
      }
      least = layer + 1;
    }
  }
  RETURN_IF_ERROR(
      at_least("admission_headroom_blocks", o.admission_headroom_blocks.value_or(0), 0));
  if (!(o.max_step_ms > 0)) {
    return Error{Code::kInvalidArgument,
                 format("max_step_ms: found ", o.max_step_ms, ", expected more than 0")};
  }
  if (!(o.paused_grace_ms >= 0)) {
    return Error{Code::kInvalidArgument,
                 format("paused_grace_ms: found ", o.paused_grace_ms, ", expected at least 0")};
  }
  return {};
}

Scheduler::Scheduler(const SchedulerOptions& options, const OutputTokens& tokens)
    : options_(options),
      tokens_(tokens),
      max_model_len_(std::min(options.max_model_len, options.num_blocks * options.block_size)),
      headroom_blocks_(
          options.admission_headroom_blocks.value_or(divide_up(options.num_blocks, 64))),
      blocks_(options.num_blocks),
      slots_(options.max_num_seqs + options.max_num_snapshots),
      prefix_cache_({.block_size = options.block_size,
                     .vocab_size = int32_t(tokens.vocab_size()),
                     .max_num_snapshots = options.max_num_snapshots},
                    blocks_, slots_) {
  MR_CHECK(validate(options).ok());
  MR_CHECK_OP(tokens.bytes.size(), ==, tokens.is_control.size());
  running_.reserve(size_t(options.max_num_seqs));
  planned_.reserve(size_t(options.max_num_seqs));
  plan_.rows.reserve(size_t(options.max_num_seqs));
}

int64_t Scheduler::max_step_rows() const {
  return std::max(options_.max_num_batched_tokens,
                  options_.max_num_seqs + options_.min_prefill_rows);
}

// --- Events -------------------------------------------------------------------------------------

Status check_request(const Request& request, int64_t vocab_size, int64_t max_model_len) {
  const int64_t num_prompt_tokens = int64_t(request.prompt_token_ids.size());
  RETURN_IF_ERROR(validate(request.sampling, vocab_size));
  if (num_prompt_tokens == 0) {
    return Error{Code::kInvalidArgument, "prompt: found no tokens, expected at least one"};
  }
  for (int64_t i = 0; i < num_prompt_tokens; ++i) {
    const int32_t id = request.prompt_token_ids[size_t(i)];
    if (id < 0 || id >= vocab_size) {
      return Error{Code::kInvalidArgument, format("prompt: found token id ", id, " at position ", i,
                                                  ", expected 0 to ", vocab_size - 1)};
    }
  }
  // Compared by subtraction: max_tokens may be any number.
  const int64_t max_tokens = request.sampling.max_tokens.value_or(1);
  if (max_tokens > max_model_len - num_prompt_tokens) {
    return Error{Code::kInvalidArgument,
                 format("the maximum context length is ", max_model_len, " tokens, found ",
                        num_prompt_tokens, " in the prompt and ", max_tokens, " to generate")};
  }
  if (!request.sampling.seed && request.sampling.temperature >= kGreedyTemperature) {
    return Error{Code::kInvalidArgument, "seed: found none, expected one with this temperature"};
  }
  if (request.num_choices < 1 || request.num_choices > kMaxChoices) {
    return Error{Code::kInvalidArgument,
                 format("n: found ", request.num_choices, ", expected 1 to ", kMaxChoices)};
  }
  if (request.timeout_ms && !(*request.timeout_ms > 0 && std::isfinite(*request.timeout_ms))) {
    return Error{Code::kInvalidArgument, format("timeout: found ", *request.timeout_ms,
                                                " ms, expected a finite time above 0")};
  }
  return {};
}

Status Scheduler::on_arrival(RequestHandle handle, Request request, double now_ms) {
  MR_CHECK(!requests_.contains(handle));
  RETURN_IF_ERROR(check(request));
  // For those that a slot is free for, the wait is the rest of this step.
  const int64_t num_waiting =
      std::max<int64_t>(0, num_waiting_requests_ + num_ending_requests_ - num_free_seqs());
  const bool may_use_reserve = !fair_share_.is_waiting(request.priority, request.fairness_key);
  const int64_t max_waiting = may_use_reserve ? max_waiting_with_reserve() : options_.max_waiting;
  if (num_waiting >= max_waiting) {
    return Error{Code::kExhausted, format("queue: found ", num_waiting,
                                          " requests waiting, expected fewer than ", max_waiting)};
  }
  std::unique_ptr<ScheduledRequest>& slot = requests_[handle];
  slot = std::make_unique<ScheduledRequest>();
  ScheduledRequest& r = *slot;
  r.handle = handle;
  r.num_prompt_tokens = int64_t(request.prompt_token_ids.size());
  r.max_tokens = request.sampling.max_tokens.value_or(max_model_len_ - r.num_prompt_tokens);
  r.priority = std::clamp(request.priority, kMinPriority, kMaxPriority);
  r.key = fair_share_.join(r.priority, request.fairness_key);
  if (request.timeout_ms) {
    r.deadline_ms = now_ms + *request.timeout_ms;
    deadlines_.emplace(r.deadline_ms, handle);
  }
  r.num_unfinished = request.num_choices;
  r.first_sequence_id = next_sequence_id_;
  next_sequence_id_ += request.num_choices;
  r.request = std::move(request);
  r.sequences.push_back(make_sequence(r, 0));

  Sequence& first = *r.sequences[0];
  fair_share_.add_pending(r.key);
  fair_share_.add_waiting(&first, first.id, r.key);
  ++num_waiting_requests_;
  ++num_waiting_sequences_;
  is_blocked_ = false;
  return {};
}

std::unique_ptr<Sequence> Scheduler::make_sequence(ScheduledRequest& r, int32_t choice_idx) const {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = r.first_sequence_id + choice_idx;
  sequence->choice_idx = choice_idx;
  sequence->request = &r;
  if (r.max_tokens > 0) sequence->stop_rules.emplace(r.request, tokens_, r.max_tokens);
  return sequence;
}

void Scheduler::on_cancel(RequestHandle handle) {
  const auto found = requests_.find(handle);
  if (found != requests_.end()) end_request(*found->second, FinishReason::kAbort);
}

void Scheduler::set_paused(RequestHandle handle, bool paused, double now_ms) {
  const auto found = requests_.find(handle);
  if (found == requests_.end() || found->second->is_paused == paused) return;
  ScheduledRequest& r = *found->second;
  r.is_paused = paused;
  r.paused_since_ms = now_ms;
  is_blocked_ = false;
  totals_.num_paused_requests += paused ? 1 : -1;
  for (const std::unique_ptr<Sequence>& s : r.sequences) {
    if (!s || s->state == SequenceState::kDecoding) continue;
    if (paused) {
      fair_share_.remove_pending(r.key);
      if (!s->is_running()) fair_share_.remove_waiting(s->id, r.key);
    } else {
      fair_share_.add_pending(r.key);
      if (!s->is_running()) fair_share_.add_waiting(s.get(), s->id, r.key);
    }
  }
}

// Reports the end of every choice that has none yet, and frees what it holds. What a step is
// working with is kept until the step is committed.
void Scheduler::end_request(ScheduledRequest& r, FinishReason reason) {
  if (is_planned_) {
    if (!r.ending) {
      r.ending = reason;
      ending_handles_.push_back(r.handle);
    }
    return;
  }
  ++num_ending_requests_;
  is_blocked_ = false;
  const int32_t num_choices = r.request.num_choices;
  for (int32_t choice = 0; choice < num_choices; ++choice) {
    const bool is_made = size_t(choice) < r.sequences.size();
    Sequence* sequence = is_made ? r.sequences[size_t(choice)].get() : nullptr;
    if (is_made && !sequence) continue;  // has ended before
    Ending& ending = endings_.emplace_back(Ending{r.handle, choice, {}});
    if (sequence) {
      ending.event.num_computed_tokens =
          std::max({sequence->num_computed_tokens, sequence->num_cached_tokens,
                    sequence->num_reported_tokens});
    }
    ending.event.num_cached_tokens = r.num_cached_tokens;
    ending.event.num_settled_bytes = num_settled_bytes(sequence);
    ending.event.finish_reason = reason;
    if (sequence) {
      finish_sequence(*sequence);
    } else {
      finish_choice(r, choice);
    }
  }
  remove_request(r);
}

// --- Planning -----------------------------------------------------------------------------------

const StepPlan& Scheduler::plan(double now_ms) {
  MR_CHECK(!is_planned_);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ms) {
    end_request(*requests_.at(deadlines_.begin()->second), FinishReason::kTimeout);
  }
  is_planned_ = true;
  is_blocked_ = false;
  plan_.step_id = next_step_id_++;
  plan_.finished.clear();
  plan_.started.clear();
  plan_.state_copies.clear();
  plan_.block_copies.clear();
  plan_.rows.clear();
  plan_.num_rows = 0;
  plan_.num_whole_rows = 0;
  planned_.clear();
  plan_.finished.swap(finished_);
  // Copies come before rows, so what they read may belong to somebody else by now.
  plan_.state_copies.swap(state_copies_);
  plan_.block_copies.swap(block_copies_);
  add_decode_rows();
  add_prefill_rows(now_ms);
  return plan_;
}

// One row for every sequence that decodes. In the order of ranks: whoever loses its blocks to
// another one comes after it and has no rows yet.
void Scheduler::add_decode_rows() {
  size_t i = 0;
  while (i < running_.size()) {
    Sequence& s = *running_[i];
    if (s.state != SequenceState::kDecoding || s.request->is_paused) {
      ++i;
      continue;
    }
    if (s.num_tokens() > int64_t(s.block_table.size()) * options_.block_size) {
      const std::optional<BlockId> block = allocate_block();
      if (!block) {
        const size_t victim = victim_idx();
        preempt(victim);
        if (victim < i) --i;
        continue;  // with the same sequence, unless it was the victim
      }
      push_back_tightly(s.block_table, *block);
    }
    add_rows(s, 1);
    ++i;
  }
}

// The running sequence that is preempted first: one that is paused, or else the last in rank.
size_t Scheduler::victim_idx() const {
  MR_CHECK(!running_.empty());
  for (size_t i = running_.size(); i-- > 0;) {
    if (running_[i]->request->is_paused) return i;
  }
  return running_.size() - 1;
}

void Scheduler::add_prefill_rows(double now_ms) {
  if (fair_share_.num_pending() == 0) return;
  const int64_t num_decode_rows = plan_.num_rows;
  const auto left_of = [&](int64_t num_rows) {
    return std::max(num_rows - num_decode_rows, options_.min_prefill_rows);
  };
  int64_t num_left = left_of(options_.max_num_batched_tokens);
  double num_whole_left = double(num_left);
  if (num_decode_rows > 0) {
    const int64_t within_ms =
        step_cost_.is_measured() ? step_cost_.rows_within(options_.max_step_ms) : 0;
    num_whole_left = double(left_of(within_ms));
  }
  while (num_left > 0) {
    Sequence* s = next_to_prefill(now_ms);
    if (!s) break;
    int64_t num_rows =
        std::min({num_left, s->num_tokens() - s->num_computed_tokens, options_.max_prefill_chunk});
    // The most of them whose work is within the budget.
    int64_t most = num_rows;
    num_rows = 0;
    while (num_rows < most) {
      const int64_t middle = most - (most - num_rows) / 2;
      if (num_whole_rows(*s, middle) <= num_whole_left) {
        num_rows = middle;
      } else {
        most = middle - 1;
      }
    }
    if (num_rows == 0) break;
    num_left -= num_rows;
    num_whole_left -= num_whole_rows(*s, num_rows);
    add_rows(*s, num_rows);
  }
}

bool Scheduler::goes_before(const Sequence& a, const Sequence& b) const {
  if (a.request->key == b.request->key) return a.id < b.id;
  return fair_share_.is_before(*a.request->key, *b.request->key);
}

// The sequence whose turn it is, of those that are prefilling and the first of those that wait;
// that one is admitted. If it finds no room, nobody overtakes it to be admitted in this step.
Sequence* Scheduler::next_to_prefill(double now_ms) {
  Sequence* next = nullptr;
  for (Sequence* s : running_) {
    const bool may_run = s->state == SequenceState::kPrefilling && !s->request->is_paused &&
                         s->planned_step != plan_.step_id;
    if (may_run && (!next || goes_before(*s, *next))) next = s;
  }
  // With every slot taken the keys need not be looked at.
  if (num_free_seqs() == 0 && totals_.num_paused_requests == 0) is_blocked_ = true;
  if (is_blocked_) return next;
  if (FairShare::Key* key = fair_share_.next_waiting()) {
    Sequence* waiting = key->waiting.begin()->second;
    if (next && !goes_before(*waiting, *next)) return next;
    if (admit(*waiting, now_ms)) return waiting;
    is_blocked_ = true;
  }
  return next;
}

// Where a sequence that is admitted begins.
struct Scheduler::Start {
  int64_t num_blocks = 0;  // that it needs
  // What is there of it: blocks of a node, and perhaps a state.
  PrefixNode* node = nullptr;
  PrefixSnapshot* snapshot = nullptr;
  int64_t num_node_tokens = 0;
  int64_t num_cached_tokens = 0;  // more than the node's: the snapshot's last block counts
  int64_t first_position = 0;
};

Scheduler::Start Scheduler::find_start(const Sequence& s) {
  const ScheduledRequest& r = *s.request;
  const std::span<const int32_t> tokens =
      r.has_started ? std::span(s.tokens) : std::span(r.request.prompt_token_ids);
  const int64_t num_tokens = int64_t(tokens.size());
  Start start;
  start.num_blocks = divide_up(num_tokens, options_.block_size);
  if (!options_.prefix_caching || wants_prompt_logprobs(s)) return start;
  const PrefixCache::Hit hit = prefix_cache_.find(r.request.cache_salt, tokens);
  start.node = hit.node;
  start.num_blocks -= hit.num_tokens / options_.block_size;
  start.num_node_tokens = start.num_cached_tokens = hit.num_tokens;
  const int64_t first_output =
      options_.exact_replay ? num_tokens - 1 : std::min(hit.num_tokens, num_tokens - 1);
  start.first_position =
      std::min(hit.num_tokens,
               first_token(options_.layer_reach, {hit.num_tokens, first_output}));
  if (hit.snapshot && hit.num_snapshot_tokens >= start.first_position) {
    start.snapshot = hit.snapshot;
    start.first_position = hit.num_snapshot_tokens;
    start.num_cached_tokens = std::max(hit.num_tokens, hit.num_snapshot_tokens);
  }
  return start;
}

bool Scheduler::has_room_for(const Start& start) const {
  // Idle blocks that it takes over are not there for others.
  const int64_t num_taken = start.node ? prefix_cache_.num_idle_blocks(*start.node) : 0;
  return has_room_for(start.num_blocks + num_taken);
}

// Whether a sequence that needs so many blocks can be admitted.
bool Scheduler::has_room_for(int64_t num_blocks) const {
  const int64_t headroom = running_.empty() ? 0 : headroom_blocks_;
  return num_free_seqs() > 0 &&
         blocks_.num_free() + prefix_cache_.num_evictable_blocks() >= num_blocks + headroom;
}

std::optional<BlockId> Scheduler::allocate_block() {
  while (true) {
    if (const std::optional<BlockId> block = blocks_.allocate()) return block;
    if (!prefix_cache_.evict_block()) return std::nullopt;
  }
}

// Takes slot and blocks from requests that are paused for long, if that gives room.
bool Scheduler::reclaim_paused(const Start& start, double now_ms) {
  const auto is_reclaimable = [&](const Sequence& s) {
    return s.request->is_paused && now_ms - s.request->paused_since_ms >= options_.paused_grace_ms;
  };
  int64_t num_found = 0, num_found_blocks = 0;
  for (const Sequence* s : running_) {
    if (!is_reclaimable(*s)) continue;
    ++num_found;
    num_found_blocks += int64_t(s->block_table.size());
  }
  const bool others_run = num_found < int64_t(running_.size());
  const int64_t num_needed = start.num_blocks + (others_run ? headroom_blocks_ : 0);
  const int64_t num_there = blocks_.num_free() + prefix_cache_.num_evictable_blocks();
  if (num_found == 0 || num_there + num_found_blocks < num_needed) return false;
  // What is preempted leaves its blocks to the cache, so that what can be found may change.
  const int64_t num_blocks = start.num_blocks + start.num_node_tokens / options_.block_size;
  for (size_t i = running_.size(); i-- > 0 && !has_room_for(num_blocks);) {
    if (is_reclaimable(*running_[i])) preempt(i);
  }
  return true;
}

bool Scheduler::admit(Sequence& s, double now_ms) {
  ScheduledRequest& r = *s.request;
  Start start = find_start(s);
  if (!has_room_for(start)) {
    if (!reclaim_paused(start, now_ms)) return false;
    start = find_start(s);
    if (!has_room_for(start)) return false;
  }
  if (!r.has_started) {
    const int64_t num_reserved = r.num_prompt_tokens + std::min(r.max_tokens, kReservedTokens);
    s.tokens.reserve(size_t(num_reserved));
    s.tokens = r.request.prompt_token_ids;
    s.block_table.reserve(size_t(divide_up(num_reserved, options_.block_size)));
    plan_.started.push_back({r.first_sequence_id, r.request.num_choices, &r.request, r.max_tokens});
    started_.push_back(&r);
    r.has_started = true;
    r.num_cached_tokens = r.num_counted_tokens = s.num_charged_tokens = start.num_cached_tokens;
    totals_.num_queried_tokens += options_.prefix_caching ? r.num_prompt_tokens : 0;
    totals_.num_cached_tokens += start.num_cached_tokens;
  }
  fair_share_.remove_waiting(s.id, r.key);
  s.slot = *slots_.allocate();
  s.prefix = start.node;
  s.num_prefix_blocks = start.num_node_tokens / options_.block_size;
  s.num_cached_tokens = start.num_cached_tokens;
  s.num_computed_tokens = start.first_position;
  std::optional<BlockId> last_block;
  // Copies come first in a plan: whose the snapshot is by then does not matter.
  if (start.snapshot) {
    prefix_cache_.touch(*start.snapshot);
    plan_.state_copies.push_back({PrefixCache::slot(*start.snapshot), s.slot});
    if (start.num_cached_tokens > start.num_node_tokens) {
      last_block = PrefixCache::last_block(*start.snapshot);
    }
  }
  if (start.node) prefix_cache_.acquire(*start.node, s.block_table);
  for (int64_t i = 0; i < start.num_blocks; ++i) {
    push_back_tightly(s.block_table, *allocate_block());
  }
  if (last_block) {
    plan_.block_copies.push_back({*last_block, s.block_table[size_t(s.num_prefix_blocks)]});
  }
  start_running(s, SequenceState::kPrefilling);
  return true;
}

// Log-probabilities that have not been sent need the last layer's rows of the whole prompt.
bool Scheduler::wants_prompt_logprobs(const Sequence& s) const {
  const ScheduledRequest& r = *s.request;
  return r.request.sampling.prompt_logprobs && s.choice_idx == 0 &&
         r.num_prompt_logprobs < r.num_prompt_tokens - 1;
}

// Of a sequence's next rows. The same for all rows of a prompt, so that what a layer leaves out
// nobody misses later.
WantedTokens Scheduler::wanted(const Sequence& s) const {
  if (s.state == SequenceState::kDecoding || wants_prompt_logprobs(s)) return {};
  const int64_t last = s.num_tokens() - 1;
  return {s.num_cached_tokens, options_.exact_replay ? last : std::min(s.num_cached_tokens, last)};
}

double Scheduler::num_whole_rows(const Sequence& s, int64_t num_rows) const {
  const WantedTokens wanted = this->wanted(s);
  if (wanted.first_new == 0 && wanted.first_output == 0) return double(num_rows);
  return num_whole_tokens(options_.layer_reach, wanted, s.num_computed_tokens,
                          s.num_computed_tokens + num_rows);
}

void Scheduler::add_rows(Sequence& s, int64_t num_rows) {
  ScheduledRequest& r = *s.request;
  const int64_t begin = s.num_computed_tokens;
  const int64_t end = begin + num_rows;
  MR_CHECK_OP(end, <=, s.num_tokens());
  MR_CHECK_OP(end, <=, int64_t(s.block_table.size()) * options_.block_size);

  PlannedRows& rows = plan_.rows.emplace_back();
  rows.sequence_id = s.id;
  rows.tokens = s.tokens;
  rows.first_position = begin;
  rows.num_rows = int32_t(num_rows);
  rows.block_table = s.block_table;
  rows.state_slot = s.slot;
  const WantedTokens wanted = this->wanted(s);
  rows.num_cached_tokens = wanted.first_new;
  rows.first_output = wanted.first_output;
  if (end == s.num_tokens() && r.max_tokens > 0) {
    rows.num_samples = r.has_forked ? 1 : r.request.num_choices;
  }
  rows.num_prompt_tokens = r.num_prompt_tokens;
  rows.prompt_logprobs = wants_prompt_logprobs(s) &&
                         std::min(end, r.num_prompt_tokens - 1) > r.num_prompt_logprobs;

  const int64_t num_new = std::max<int64_t>(0, end - std::max(begin, s.num_charged_tokens));
  s.num_charged_tokens += num_new;
  fair_share_.charge(r.key, num_new);
  if (s.state == SequenceState::kDecoding) {
    ++totals_.num_decode_rows;
  } else {
    totals_.num_prefill_rows += num_rows;
    totals_.num_recomputed_rows += num_rows - num_new;
  }
  s.planned_step = plan_.step_id;
  plan_.num_rows += num_rows;
  plan_.num_whole_rows += num_whole_rows(s, num_rows);
  planned_.push_back(&s);
}

bool Scheduler::is_moot(double now_ms) const {
  MR_CHECK(is_planned_);
  return std::all_of(planned_.begin(), planned_.end(), [&](const Sequence* s) {
    return s->request->ending || s->request->deadline_ms <= now_ms;
  });
}

// --- Slots and blocks ---------------------------------------------------------------------------

// The sequence has its slot and blocks.
void Scheduler::start_running(Sequence& s, SequenceState state) {
  s.state = state;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &s, is_ranked_before), &s);
  --num_waiting_sequences_;
  if (s.request->num_running++ == 0) --num_waiting_requests_;
}

void Scheduler::stop_running(Sequence& s) {
  for (const BlockId block : s.block_table) blocks_.release(block);
  s.block_table.clear();
  if (s.prefix) prefix_cache_.release(*s.prefix);
  s.prefix = nullptr;
  if (s.slot != kNoSlot) slots_.release(s.slot);
  s.slot = kNoSlot;
  s.num_computed_tokens = s.num_prefix_blocks = s.num_cached_tokens = 0;
  s.state = SequenceState::kWaiting;
  ++num_waiting_sequences_;
  if (--s.request->num_running == 0) ++num_waiting_requests_;
  is_blocked_ = false;
}

// It keeps its tokens, and the executor its sampler: it will be computed anew.
void Scheduler::preempt(size_t running_idx) {
  Sequence& s = *running_[running_idx];
  MR_CHECK(s.planned_step != plan_.step_id);
  running_.erase(running_.begin() + int64_t(running_idx));
  const bool was_pending = s.state != SequenceState::kDecoding;
  leave_as_snapshot(s);
  stop_running(s);
  ++s.num_preemptions;
  ++totals_.num_preemptions;
  if (s.request->is_paused) return;
  if (!was_pending) fair_share_.add_pending(s.request->key);
  fair_share_.add_waiting(&s, s.id, s.request->key);
}

// Lets `to` continue from where `from` stands, whole blocks in common. False: no room.
bool Scheduler::share_state(const Sequence& from, Sequence& to) {
  const int64_t num_whole = from.num_computed_tokens / options_.block_size;
  const bool has_partial = from.num_computed_tokens % options_.block_size != 0;
  if (!has_room_for(has_partial ? 1 : 0)) return false;
  to.slot = *slots_.allocate();
  state_copies_.push_back({from.slot, to.slot});
  to.block_table.reserve(from.block_table.capacity());
  for (int64_t i = 0; i < num_whole; ++i) {
    blocks_.retain(from.block_table[size_t(i)]);
    to.block_table.push_back(from.block_table[size_t(i)]);
  }
  if (has_partial) {
    to.block_table.push_back(*allocate_block());
    block_copies_.push_back({from.block_table[size_t(num_whole)], to.block_table.back()});
  }
  to.num_computed_tokens = from.num_computed_tokens;
  to.prefix = from.prefix;
  to.num_prefix_blocks = from.num_prefix_blocks;
  return true;
}

// --- The prefix cache ---------------------------------------------------------------------------

void Scheduler::reset_prefix_cache() {
  prefix_cache_.reset();
  is_blocked_ = false;
}

// Makes the blocks that a sequence has filled known.
void Scheduler::index_blocks(Sequence& s) {
  if (!options_.prefix_caching) return;
  const int64_t size = options_.block_size;
  for (; (s.num_prefix_blocks + 1) * size <= s.num_computed_tokens; ++s.num_prefix_blocks) {
    const auto tokens =
        std::span(s.tokens).subspan(size_t(s.num_prefix_blocks * size), size_t(size));
    s.prefix = &prefix_cache_.insert(s.prefix, s.request->request.cache_salt, tokens,
                                     s.block_table[size_t(s.num_prefix_blocks)]);
  }
}

// Those that are computed and in no block that is known.
std::span<const int32_t> Scheduler::tokens_behind_prefix(const Sequence& s) const {
  const int64_t begin = s.num_prefix_blocks * options_.block_size;
  return std::span(s.tokens).subspan(size_t(begin), size_t(s.num_computed_tokens - begin));
}

// What a hit saves against one of whole blocks: the rows behind them, and the halo before.
double Scheduler::snapshot_value(const Sequence& s) const {
  const int64_t begin = s.num_prefix_blocks * options_.block_size;
  return double(s.num_computed_tokens - begin) +
         num_whole_tokens(options_.layer_reach, {begin, begin}, 0, begin);
}

// At the end of a prompt: the sequence goes on with its own slot.
void Scheduler::copy_to_snapshot(Sequence& s) {
  if (!options_.prefix_caching) return;
  const std::span<const int32_t> tail = tokens_behind_prefix(s);
  const std::string& salt = s.request->request.cache_salt;
  if (!prefix_cache_.prepare_snapshot(s.prefix, salt, tail)) return;
  std::optional<BlockId> last_block;
  if (!tail.empty()) {
    if (!has_room_for(1)) return;
    last_block = allocate_block();
    block_copies_.push_back({s.block_table[size_t(s.num_prefix_blocks)], *last_block});
  }
  const StateSlot slot = *slots_.allocate();
  state_copies_.push_back({s.slot, slot});
  prefix_cache_.add_snapshot(s.prefix, salt, tail, last_block, slot, snapshot_value(s));
}

// When a sequence gives up what it holds: slot and last block stay as they are.
void Scheduler::leave_as_snapshot(Sequence& s) {
  if (!options_.prefix_caching || s.state != SequenceState::kDecoding || !s.is_keepable) return;
  const std::span<const int32_t> tail = tokens_behind_prefix(s);
  const std::string& salt = s.request->request.cache_salt;
  if (!prefix_cache_.prepare_snapshot(s.prefix, salt, tail)) return;
  std::optional<BlockId> last_block;
  if (!tail.empty()) {
    const auto last = s.block_table.begin() + s.num_prefix_blocks;
    last_block = *last;
    s.block_table.erase(last);
  }
  prefix_cache_.add_snapshot(s.prefix, salt, tail, last_block, s.slot, snapshot_value(s));
  s.slot = kNoSlot;
}

// --- What callers ask ---------------------------------------------------------------------------

bool Scheduler::has_work() const {
  if (!endings_.empty() || !finished_.empty()) return true;
  if (std::any_of(running_.begin(), running_.end(),
                  [](const Sequence* s) { return !s->request->is_paused; })) {
    return true;
  }
  return !is_blocked_ && fair_share_.num_pending() > 0;
}

std::optional<double> Scheduler::next_deadline_ms() const {
  double next = std::numeric_limits<double>::infinity();
  if (!deadlines_.empty()) next = deadlines_.begin()->first;
  if (is_blocked_) {
    for (const Sequence* s : running_) {
      if (!s->request->is_paused) continue;
      next = std::min(next, s->request->paused_since_ms + options_.paused_grace_ms);
    }
  }
  if (std::isinf(next)) return std::nullopt;
  return next;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = totals_;
  stats.num_waiting_requests = num_waiting_requests_;
  stats.num_running_requests = int64_t(requests_.size()) - num_waiting_requests_;
  stats.num_waiting_sequences = num_waiting_sequences_;
  stats.num_blocks = blocks_.num_blocks();
  stats.num_free_blocks = blocks_.num_free() + prefix_cache_.num_evictable_blocks();
  stats.num_cached_blocks = prefix_cache_.num_evictable_blocks();
  stats.num_snapshots = prefix_cache_.num_snapshots();
  stats.block_size = options_.block_size;
  stats.bookkeeping_bytes =
      (blocks_.num_blocks() - blocks_.num_free()) * BlockPool::kBytesPerBlock +
      prefix_cache_.bookkeeping_bytes();
  for (const Sequence* s : running_) {
    ++(s->state == SequenceState::kDecoding ? stats.num_decoding_sequences
                                            : stats.num_prefilling_sequences);
    stats.bookkeeping_bytes += int64_t(s->tokens.capacity() * sizeof(int32_t) +
                                       s->block_table.capacity() * sizeof(BlockId));
  }
  return stats;
}

}  // namespace millrace
