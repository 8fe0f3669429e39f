// What becomes of a step's results: the half of the scheduler that speaks to requests.

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace millrace {

void Scheduler::commit(StepResult& result, const EventSink& sink) {
  MR_CHECK(is_planned_);
  is_planned_ = false;
  // Their samplers are made and their sequences have tokens of their own.
  for (ScheduledRequest* r : started_) std::vector<int32_t>().swap(r->request.prompt_token_ids);
  started_.clear();

  if (result.abandoned) {
    ++totals_.num_abandoned_steps;
  } else if (!planned_.empty()) {
    ++totals_.num_steps;
    step_cost_.add(plan_.num_whole_rows, result.elapsed_ms);
    MR_CHECK_OP(result.rows.size(), >=, planned_.size());
    for (size_t i = 0; i < planned_.size(); ++i) {
      ScheduledRequest& r = *planned_[i]->request;
      if (r.ending) {
        planned_[i]->is_keepable = false;
        continue;
      }
      commit_rows(plan_.rows[i], *planned_[i], result.rows[i], sink);
      if (r.num_unfinished == 0) remove_request(r);
    }
  }
  planned_.clear();
  plan_.rows.clear();  // their spans

  for (const RequestHandle handle : ending_handles_) {
    ScheduledRequest& r = *requests_.at(handle);
    end_request(r, *r.ending);
  }
  ending_handles_.clear();
  for (Ending& ending : endings_) sink(ending.handle, ending.choice_idx, ending.event);
  endings_.clear();
  num_ending_requests_ = 0;
}

void Scheduler::commit_rows(const PlannedRows& rows, Sequence& s, RowsResult& result,
                            const EventSink& sink) {
  ScheduledRequest& r = *s.request;
  const int64_t end = rows.first_position + rows.num_rows;
  s.num_computed_tokens = end;
  StreamEvent event;
  // What is computed anew after a preemption has been reported before.
  event.num_computed_tokens = std::max({end, s.num_cached_tokens, s.num_reported_tokens});
  event.num_cached_tokens = r.num_cached_tokens;
  if (result.error) {
    event.finish_reason = FinishReason::kError;
    event.error = std::move(result.error);
    s.is_keepable = false;
    return end_choices_of_rows(s, event, sink);
  }
  index_blocks(s);
  count_prompt_tokens(r, end);
  if (rows.prompt_logprobs) take_prompt_logprobs(rows, s, result, event);
  if (rows.num_samples > 0) {
    MR_CHECK_OP(int64_t(result.samples.size()), >=, rows.num_samples);
    if (!r.has_forked) return commit_first_samples(s, result, event, sink);
    finish_prefill(s);
    if (append_token(s, result.samples[0], event, sink)) finish_sequence(s);
    return;
  }
  if (end == s.num_tokens()) {  // max_tokens is 0
    event.finish_reason = FinishReason::kLength;
    return end_choices_of_rows(s, event, sink);
  }
  if (event.num_computed_tokens > s.num_reported_tokens && !r.has_forked) {
    s.num_reported_tokens = event.num_computed_tokens;
    sink(r.handle, s.choice_idx, event);
  }
}

// Each of them once: rows may be computed a second time, or for another choice.
void Scheduler::count_prompt_tokens(ScheduledRequest& r, int64_t num_computed_tokens) {
  const int64_t num_known = std::min(num_computed_tokens, r.num_prompt_tokens);
  if (num_known <= r.num_counted_tokens) return;
  totals_.num_prompt_tokens += num_known - r.num_counted_tokens;
  r.num_counted_tokens = num_known;
}

// Those that have not been sent: rows may be computed a second time, in other chunks.
void Scheduler::take_prompt_logprobs(const PlannedRows& rows, Sequence& s, RowsResult& result,
                                     StreamEvent& event) {
  ScheduledRequest& r = *s.request;
  const int64_t last = std::min(rows.first_position + rows.num_rows, r.num_prompt_tokens - 1);
  const int64_t num_given = last - rows.first_position;
  const int64_t num_new = last - r.num_prompt_logprobs;
  MR_CHECK_OP(int64_t(result.prompt_logprobs.size()), >=, num_given);
  const auto given = result.prompt_logprobs.begin();
  for (int64_t i = num_given - num_new; i < num_given; ++i) {
    event.prompt_logprobs.push_back(std::move(given[i]));
  }
  r.num_prompt_logprobs = last;
}

void Scheduler::finish_prefill(Sequence& s) {
  if (s.state == SequenceState::kDecoding) return;
  s.state = SequenceState::kDecoding;
  if (!s.request->is_paused) fair_share_.remove_pending(s.request->key);
}

// The prompt is computed, and each choice has its first token. From here on every choice is a
// sequence of its own. Choices that find no room wait, and compute the prompt themselves.
void Scheduler::commit_first_samples(Sequence& first, RowsResult& result, StreamEvent& event,
                                     const EventSink& sink) {
  ScheduledRequest& r = *first.request;
  const int32_t num_choices = r.request.num_choices;
  r.has_forked = true;
  finish_prefill(first);
  copy_to_snapshot(first);
  for (int32_t choice = 1; choice < num_choices; ++choice) {
    Sequence& s = *r.sequences.emplace_back(make_sequence(r, choice));
    s.tokens.reserve(first.tokens.capacity());
    s.tokens = first.tokens;
    s.num_charged_tokens = s.num_reported_tokens = first.num_computed_tokens;
  }
  const bool has_first_ended = append_token(first, result.samples[0], event, sink);
  for (int32_t choice = 1; choice < num_choices; ++choice) {
    Sequence& s = *r.sequences[size_t(choice)];
    StreamEvent own_event;
    own_event.num_computed_tokens = first.num_computed_tokens;
    own_event.num_cached_tokens = r.num_cached_tokens;
    if (append_token(s, result.samples[size_t(choice)], own_event, sink)) {
      finish_choice(r, choice);
      continue;
    }
    ++num_waiting_sequences_;
    if (share_state(first, s)) {
      start_running(s, SequenceState::kDecoding);
    } else if (!r.is_paused) {
      fair_share_.add_pending(r.key);
      fair_share_.add_waiting(&s, s.id, r.key);
    }
  }
  if (has_first_ended) finish_sequence(first);
}

// Reports a token; true: it was the last one.
bool Scheduler::append_token(Sequence& s, SampledToken& sample, StreamEvent& event,
                             const EventSink& sink) {
  ScheduledRequest& r = *s.request;
  if (sample.error) {
    event.finish_reason = FinishReason::kError;
    event.error = std::move(sample.error);
    s.is_keepable = false;
    event.num_settled_bytes = num_settled_bytes(&s);
    sink(r.handle, s.choice_idx, event);
    return true;
  }
  MR_CHECK_OP(sample.token_id, >=, 0);
  MR_CHECK_OP(sample.token_id, <, tokens_.vocab_size());
  push_back_tightly(s.tokens, sample.token_id);
  ++totals_.num_output_tokens;
  s.num_reported_tokens = event.num_computed_tokens;
  s.stop_rules->append(sample.token_id, event);
  const bool has_ended = event.finish_reason.has_value();
  event.logprobs = std::move(sample.logprobs);
  sink(r.handle, s.choice_idx, event);
  sample.logprobs = std::move(event.logprobs);
  return has_ended;
}

// One end for all choices that these rows stand for.
void Scheduler::end_choices_of_rows(Sequence& s, const StreamEvent& event, const EventSink& sink) {
  ScheduledRequest& r = *s.request;
  const int32_t first = s.choice_idx;
  const int32_t last = r.has_forked ? first : r.request.num_choices - 1;
  for (int32_t choice = first; choice <= last; ++choice) {
    StreamEvent own_event = event;
    if (choice > first) own_event.prompt_logprobs.clear();
    own_event.num_settled_bytes = choice == first ? num_settled_bytes(&s) : 0;
    sink(r.handle, choice, own_event);
    if (choice > first) finish_choice(r, choice);
  }
  finish_sequence(s);
}

// Frees what a sequence holds.
void Scheduler::finish_sequence(Sequence& s) {
  ScheduledRequest& r = *s.request;
  if (s.state != SequenceState::kDecoding && !r.is_paused) {
    fair_share_.remove_pending(r.key);
    if (!s.is_running()) fair_share_.remove_waiting(s.id, r.key);
  }
  if (s.is_running()) {
    running_.erase(std::find(running_.begin(), running_.end(), &s));
    leave_as_snapshot(s);
    stop_running(s);
  }
  --num_waiting_sequences_;
  finish_choice(r, s.choice_idx);
}

// A choice that holds nothing, made or not.
void Scheduler::finish_choice(ScheduledRequest& r, int32_t choice) {
  if (size_t(choice) < r.sequences.size()) r.sequences[size_t(choice)].reset();
  if (r.has_started) finished_.push_back(r.first_sequence_id + choice);
  --r.num_unfinished;
}

void Scheduler::remove_request(ScheduledRequest& r) {
  MR_CHECK_OP(r.num_unfinished, ==, 0);
  MR_CHECK_OP(r.num_running, ==, 0);
  --num_waiting_requests_;
  totals_.num_paused_requests -= r.is_paused ? 1 : 0;
  ++totals_.num_finished_requests;
  if (std::isfinite(r.deadline_ms)) deadlines_.erase({r.deadline_ms, r.handle});
  fair_share_.leave(r.key);
  requests_.erase(r.handle);
}

}  // namespace millrace
