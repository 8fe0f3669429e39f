#pragma once

// Drives a scheduler with events in any order a caller may produce, and holds what comes out
// against what must come out. Whoever calls decides what happens next: random numbers in a test,
// mutated bytes in a fuzzer.

#include <algorithm>
#include <set>

#include "scheduler/scheduler.h"
#include "scheduler/test_executor.h"

namespace millrace {

class TestDriver {
 public:
  // A number from 0 to n - 1.
  using Pick = std::function<uint32_t(uint32_t n)>;

  static constexpr int32_t kVocabSize = 64;

  static SchedulerOptions draw_options(const Pick& pick) {
    SchedulerOptions o;
    o.max_num_seqs = 1 + pick(8);
    o.max_num_batched_tokens = 1 + pick(64);
    o.max_prefill_chunk = 1 + pick(32);
    o.min_prefill_rows = 1 + pick(8);
    o.max_waiting = 1 + pick(12);
    o.max_model_len = 16 + pick(64);
    o.block_size = int64_t(1) << pick(4);
    o.num_blocks = 1 + pick(48);
    o.max_step_ms = 1 + pick(60);
    o.paused_grace_ms = pick(3) * 20;
    if (pick(2)) o.admission_headroom_blocks = pick(4);
    o.prefix_caching = pick(4) > 0;
    o.exact_replay = pick(2);
    o.max_num_snapshots = pick(5);
    o.layer_reach.num_layers = 1 + pick(6);
    o.layer_reach.sliding_window = 1 + pick(6);
    for (int32_t l = 0; l < o.layer_reach.num_layers; ++l) {
      if (pick(3) == 0) o.layer_reach.kv_source_layer_ids.push_back(l);
    }
    return o;
  }

  TestDriver(const SchedulerOptions& options, Pick pick)
      : options_(options),
        pick_(std::move(pick)),
        vocabulary_(kVocabSize),
        scheduler_(options, vocabulary_.tokens()),
        executor_(options.num_blocks, options.block_size, 
                  options.max_num_seqs + options.max_num_snapshots, kVocabSize) {
    executor_.layer_reach = options.layer_reach;
    executor_.fixed_ms = pick_(20);
    executor_.row_ms = 0.25 * (1 + pick_(8));
    executor_.sample_fails = [this](SequenceId id, int64_t position) {
      return fails(mix_hash(uint64_t(id), uint64_t(position)));
    };
    executor_.rows_fail = [this](const PlannedRows& rows) {
      return fails(mix_hash(~uint64_t(rows.sequence_id), uint64_t(rows.first_position)));
    };
    error_rate_ = pick_(4) ? 0 : 50;
  }

  void event() {
    ++num_events_;
    const uint32_t kind = pick_(16);
    if (kind < 3) {
      arrive();
    } else if (kind < 4) {
      cancel();
    } else if (kind < 5) {
      pause();
    } else if (kind < 6) {
      now_ms_ += 10 * pick_(8);
      if (pick_(64) == 0) scheduler_.reset_prefix_cache();
    } else if (is_planned_) {
      commit(/*abandon=*/pick_(16) == 0);
    } else {
      plan();
    }
    scheduler_.check_invariants();
  }

  // No more arrivals, nobody is paused: everything must come to its end, soon.
  void drain() {
    if (is_planned_) commit(false);
    for (const auto& [handle, live] : live_) scheduler_.set_paused(handle, false, now_ms_);
    // Every step computes something; what is computed twice is at most what preemptions take away,
    // and those end with the protection of the oldest.
    int64_t num_steps_left = 1000;
    for (const auto& [handle, live] : live_) {
      num_steps_left += 40 * live.request.num_choices * scheduler_.max_model_len();
    }
    while (scheduler_.has_work()) {
      MR_CHECK_OP(num_steps_left--, >, 0);
      plan();
      scheduler_.check_invariants();
      commit(false);
      scheduler_.check_invariants();
      ++num_events_;
    }
    MR_CHECK(live_.empty());
    const SchedulerStats stats = scheduler_.stats();
    MR_CHECK_OP(stats.num_free_blocks, ==, options_.num_blocks);
    MR_CHECK_OP(stats.num_waiting_requests, ==, 0);
    MR_CHECK_OP(stats.num_running_requests, ==, 0);
    MR_CHECK_OP(executor_.num_samplers(), ==, 0u);
    MR_CHECK(!scheduler_.next_deadline_ms());
  }

  int64_t num_events() const { return num_events_; }
  int64_t num_ended() const { return num_ended_; }        // requests
  int64_t num_compared() const { return num_compared_; }  // outputs that came to their own end
  size_t num_live() const { return live_.size(); }
  SchedulerStats stats() const { return scheduler_.stats(); }

 private:
  struct Live {
    Request request;
    int64_t max_tokens = 0;
    SequenceId first_sequence_id = 0;
    bool has_started = false;
    int32_t num_ended = 0;
    bool is_cancelled = false;
    bool is_paused = false;
    double deadline_ms = 1e300;
    std::map<int32_t, Recorder::Choice> choices;
  };

  bool fails(uint64_t hash) const {
    return error_rate_ > 0 && mix_hash(hash, 5) % uint64_t(error_rate_) == 0;
  }

  void arrive() {
    Request r;
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = pick_(2);
    const int64_t num_prompt_tokens = pick_(4) ? 1 + pick_(12) : pick_(60);
    // Many begin alike.
    const uint32_t beginning = pick_(6);
    const int64_t num_alike = beginning > 3 ? 0 : pick_(60);
    for (int64_t i = 0; i < num_prompt_tokens; ++i) {
      r.prompt_token_ids.push_back(i < num_alike ? int32_t((7 * i + 3 * beginning) % kVocabSize)
                                                 : int32_t(pick_(kVocabSize)));
    }
    if (pick_(4) == 0) r.cache_salt = "salt";
    if (pick_(4)) r.sampling.max_tokens = pick_(20);
    if (pick_(4) == 0) r.sampling.prompt_logprobs = 0;
    if (pick_(4) == 0) r.sampling.stop = {std::string(1, char('a' + pick_(26)))};
    r.num_choices = pick_(3) ? 1 : int32_t(1 + pick_(5));
    r.priority = int32_t(pick_(12)) - 6;
    r.fairness_key = std::string(1, char('a' + pick_(4)));
    if (pick_(8) == 0) r.timeout_ms = 1 + pick_(400);

    const RequestHandle handle = next_handle_++;
    const Status status = scheduler_.on_arrival(handle, r, now_ms_);
    const int64_t left = scheduler_.max_model_len() - num_prompt_tokens;
    const bool fits = num_prompt_tokens > 0 && left >= r.sampling.max_tokens.value_or(1);
    if (!status.ok()) {
      const bool is_full = status.error().code == Code::kExhausted;
      MR_CHECK(fits == is_full);
      return;
    }
    MR_CHECK(fits);
    Live& live = live_[handle];
    live.max_tokens = r.sampling.max_tokens.value_or(left);
    if (r.timeout_ms) live.deadline_ms = now_ms_ + *r.timeout_ms;
    live.first_sequence_id = next_sequence_id_;
    next_sequence_id_ += r.num_choices;
    live.request = std::move(r);
    MR_CHECK_OP(int64_t(live_.size()), <=, options_.max_waiting * 5 / 4 + options_.max_num_seqs);
  }

  // One of those that live; requires: there is one.
  std::map<RequestHandle, Live>::iterator draw_live() {
    auto chosen = live_.begin();
    std::advance(chosen, pick_(uint32_t(live_.size())));
    return chosen;
  }

  void cancel() {
    if (live_.empty()) return scheduler_.on_cancel(next_handle_);  // unknown
    const auto chosen = draw_live();
    chosen->second.is_cancelled = true;
    scheduler_.on_cancel(chosen->first);
  }

  void pause() {
    if (live_.empty()) return;
    const auto chosen = draw_live();
    chosen->second.is_paused = !chosen->second.is_paused;
    scheduler_.set_paused(chosen->first, chosen->second.is_paused, now_ms_);
  }

  void plan() {
    const int64_t num_prefill_before = scheduler_.stats().num_prefill_rows;
    plan_ = &scheduler_.plan(now_ms_);
    is_planned_ = true;
    const int64_t num_prefill = scheduler_.stats().num_prefill_rows - num_prefill_before;
    const int64_t num_decode = plan_->num_rows - num_prefill;
    MR_CHECK_OP(plan_->num_rows, <=, scheduler_.max_step_rows());
    std::set<SequenceId> planned;
    for (const PlannedRows& rows : plan_->rows) {
      MR_CHECK(planned.insert(rows.sequence_id).second);
      MR_CHECK_OP(rows.num_rows, <=, std::max<int64_t>(1, options_.max_prefill_chunk));
    }
    // The cost is linear, so the budget is kept in truth and not only by the estimate.
    const double num_whole = plan_->num_whole_rows;
    if (num_decode > 0 && num_whole - double(num_decode) > double(options_.min_prefill_rows)) {
      MR_CHECK(scheduler_.step_cost().estimate_ms(num_whole) <= options_.max_step_ms);
      const double truth = executor_.fixed_ms + executor_.row_ms * num_whole;
      MR_CHECK(truth <= options_.max_step_ms + 1e-9);
    }
    check_order();
    // Somebody runs, unless those that hold the room are paused.
    if (plan_->rows.empty()) {
      for (const auto& [handle, live] : live_) {
        MR_CHECK(live.is_cancelled || live.deadline_ms <= now_ms_ || live.is_paused ||
                 anybody_is_paused());
      }
    }
  }

  bool anybody_is_paused() const {
    return std::any_of(live_.begin(), live_.end(),
                       [](const auto& l) { return l.second.is_paused; });
  }

  // Of one priority and key, who came first is admitted first.
  void check_order() {
    for (const StartedRequest& started : plan_->started) {
      const auto found = std::find_if(live_.begin(), live_.end(), [&](const auto& l) {
        return l.second.first_sequence_id == started.first_sequence_id;
      });
      MR_CHECK(found != live_.end());
      Live& live = found->second;
      MR_CHECK(!live.has_started);
      MR_CHECK_OP(started.num_choices, ==, live.request.num_choices);
      MR_CHECK_OP(started.max_tokens, ==, live.max_tokens);
      MR_CHECK(started.request->prompt_token_ids == live.request.prompt_token_ids);
      live.has_started = true;
      for (auto earlier = live_.begin(); earlier != found; ++earlier) {
        const Live& other = earlier->second;
        const bool is_peer = clamped_priority(other) == clamped_priority(live) &&
                             other.request.fairness_key == live.request.fairness_key;
        MR_CHECK(!is_peer || other.has_started || other.is_paused || other.is_cancelled ||
                 other.deadline_ms <= now_ms_);
      }
    }
  }
  static int32_t clamped_priority(const Live& live) {
    return std::clamp(live.request.priority, kMinPriority, kMaxPriority);
  }

  void commit(bool abandon) {
    StepResult& result = executor_.run(*plan_, abandon && !plan_->rows.empty());
    if (!plan_->rows.empty()) now_ms_ += result.elapsed_ms;
    is_planned_ = false;
    scheduler_.commit(result, [this](RequestHandle handle, int32_t choice_idx, StreamEvent& event) {
      take(handle, choice_idx, event);
    });
  }

  void take(RequestHandle handle, int32_t choice_idx, StreamEvent& event) {
    const auto found = live_.find(handle);
    MR_CHECK(found != live_.end());
    Live& live = found->second;
    MR_CHECK_OP(choice_idx, <, live.request.num_choices);
    Recorder::Choice& choice = live.choices[choice_idx];
    choice.take(event);
    if (!event.finish_reason) return;
    check_end(live, choice_idx, choice);
    if (++live.num_ended < live.request.num_choices) return;
    ++num_ended_;
    live_.erase(found);
  }

  void check_end(const Live& live, int32_t choice_idx, const Recorder::Choice& choice) {
    const Output want =
        expected_output(live.request, choice_idx, live.max_tokens, vocabulary_.tokens());
    const Output& found = choice.output;
    MR_CHECK_OP(found.tokens.size(), <=, want.tokens.size());
    MR_CHECK(std::equal(found.tokens.begin(), found.tokens.end(), want.tokens.begin()));
    switch (*found.finish_reason) {
      case FinishReason::kAbort:
        MR_CHECK(live.is_cancelled);
        return;
      case FinishReason::kTimeout:
        MR_CHECK(live.deadline_ms <= now_ms_);
        return;
      case FinishReason::kError:
        MR_CHECK(choice.error && error_rate_ > 0);
        return;
      case FinishReason::kStop:
      case FinishReason::kLength:
        break;
    }
    ++num_compared_;
    MR_CHECK(found.finish_reason == want.finish_reason);
    MR_CHECK_OP(found.tokens.size(), ==, want.tokens.size());
    MR_CHECK_OP(found.num_settled_bytes, ==, want.num_settled_bytes);
    const size_t num_prompt_tokens = live.request.prompt_token_ids.size();
    const bool has_logprobs = live.request.sampling.prompt_logprobs && choice_idx == 0;
    MR_CHECK_OP(choice.prompt_logprobs.size(), ==, has_logprobs ? num_prompt_tokens - 1 : 0);
    for (size_t i = 0; i < choice.prompt_logprobs.size(); ++i) {
      const TokenLogprob& token = choice.prompt_logprobs[i].token;
      MR_CHECK_OP(token.token_id, ==, live.request.prompt_token_ids[i + 1]);
      MR_CHECK(token.logprob == -float(i + 1));
    }
  }

  SchedulerOptions options_;
  Pick pick_;
  TestVocabulary vocabulary_;
  Scheduler scheduler_;
  TestExecutor executor_;
  int error_rate_ = 0;  // one of so many samples and rows fails; 0: none

  std::map<RequestHandle, Live> live_;
  RequestHandle next_handle_ = 0;
  SequenceId next_sequence_id_ = 0;
  const StepPlan* plan_ = nullptr;
  bool is_planned_ = false;
  double now_ms_ = 0;
  int64_t num_events_ = 0, num_ended_ = 0, num_compared_ = 0;
};

}  // namespace millrace
