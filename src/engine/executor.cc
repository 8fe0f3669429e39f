#include "engine/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace millrace {
namespace {

// Logits per thread below which more threads do not pay.
constexpr int64_t kLogitsWorthSplitting = 16384;

constexpr float kNotFinite = std::numeric_limits<float>::quiet_NaN();

}  // namespace

Executor::Executor(LoadedModel& model, KvStore& store, std::span<const int32_t> eos_token_ids,
                   ExpertCounts* expert_counts)
    : model_(model),
      store_(store),
      eos_token_ids_(eos_token_ids),
      expert_counts_(expert_counts),
      runner_(model.make_runner(store)),
      scratch_(size_t(model.pool().num_threads())) {}

void Executor::start(const StartedRequest& started) {
  const SamplingParams& params = started.request->sampling;
  Request choice = *started.request;
  for (int32_t c = 0; c < started.num_choices; ++c) {
    choice.choice_idx = started.request->choice_idx + c;
    const Sampler::Options options{model_.config().vocab_size,
                                   {eos_token_ids_.begin(), eos_token_ids_.end()},
                                   params.seed.value_or(0),
                                   started.max_tokens};
    samplers_.emplace(started.first_sequence_id + c,
                      SequenceSampler{Sampler(choice, options), params.logprobs,
                                      params.prompt_logprobs});
  }
}

void Executor::make_segments(const StepPlan& plan) {
  segments_.clear();
  for (const PlannedRows& rows : plan.rows) {
    segments_.push_back({.tokens = rows.tokens.first(size_t(rows.first_position + rows.num_rows)),
                         .first_position = rows.first_position,
                         .block_table = rows.block_table,
                         .slot = rows.state_slot,
                         .num_cached_tokens = rows.num_cached_tokens,
                         .first_output = rows.first_output,
                         .logits = rows.prompt_logprobs   ? LogitsFor::kAll
                                   : rows.num_samples > 0 ? LogitsFor::kLast
                                                          : LogitsFor::kNone});
  }
}

void Executor::run(const StepPlan& plan, LayerMonitor* monitor, StepResult& result) {
  const auto start_time = std::chrono::steady_clock::now();
  for (SequenceId id : plan.finished) samplers_.erase(id);
  for (const StartedRequest& started : plan.started) start(started);
  for (const StateCopy& copy : plan.state_copies) store_.copy_slot(copy);
  for (const BlockCopy& copy : plan.block_copies) store_.copy_block(copy);

  result.abandoned = false;
  if (result.rows.size() < plan.rows.size()) result.rows.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    RowsResult& rows = result.rows[i];
    rows.error.reset();
    rows.prompt_logprobs.clear();
    rows.samples.resize(size_t(plan.rows[i].num_samples));
    for (SampledToken& sample : rows.samples) sample.error.reset();
    const PlannedRows& planned = plan.rows[i];
    if (!planned.prompt_logprobs) continue;
    const int64_t end = std::min(planned.first_position + planned.num_rows + 1,
                                 planned.num_prompt_tokens);
    rows.prompt_logprobs.resize(size_t(std::max<int64_t>(0, end - planned.first_position - 1)));
  }
  if (!plan.rows.empty()) {
    make_segments(plan);
    const Status status = runner_.forward(
        segments_, {.monitor = monitor, .expert_counts = expert_counts_},
        [&](std::span<const LogitsRow> rows, Matrix<const float> logits) {
          take_logits(plan, rows, logits, result);
        });
    if (!status.ok() && status.error().code == Code::kCancelled) {
      result.abandoned = true;
    } else if (!status.ok()) {
      for (size_t i = 0; i < plan.rows.size(); ++i) result.rows[i].error = status.error();
    }
  }
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start_time;
  result.elapsed_ms = elapsed.count();
}

// Every row of logits is its own work, and a sampler belongs to one row.
void Executor::take_logits(const StepPlan& plan, std::span<const LogitsRow> rows,
                           Matrix<const float> logits, StepResult& result) {
  const int64_t grain = (kLogitsWorthSplitting + logits.shape[1] - 1) / logits.shape[1];
  model_.pool().parallel_for(
      int64_t(rows.size()), grain, [&](int64_t begin, int64_t end, int thread_idx) {
        for (int64_t r = begin; r < end; ++r) {
          const size_t i = size_t(rows[size_t(r)].segment_idx);
          take_row(plan.rows[i], rows[size_t(r)].position,
                   {logits.row(r), size_t(logits.shape[1])}, scratch_[size_t(thread_idx)],
                   result.rows[i]);
        }
      });
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t i = size_t(rows[r].segment_idx);
    const int64_t idx = rows[r].position - plan.rows[i].first_position;
    RowsResult& of = result.rows[i];
    if (of.error || idx >= int64_t(of.prompt_logprobs.size())) continue;
    if (!std::isnan(of.prompt_logprobs[size_t(idx)].token.logprob)) continue;
    const Sampler& sampler = samplers_.at(plan.rows[i].sequence_id).sampler;
    of.error = check_finite({logits.row(int64_t(r)), size_t(logits.shape[1])},
                            sampler.request_id(), rows[r].position + 1).error();
  }
}

void Executor::take_row(const PlannedRows& rows, int64_t position, std::span<const float> logits,
                        SamplerScratch& scratch, RowsResult& result) {
  const int64_t next = position + 1;
  if (rows.prompt_logprobs && next < rows.num_prompt_tokens) {
    const SequenceSampler& entry = samplers_.at(rows.sequence_id);
    TokenLogprobs& out = result.prompt_logprobs[size_t(position - rows.first_position)];
    if (check_finite(logits, "", 0).ok()) {
      compute_logprobs(logits, rows.tokens[size_t(next)], entry.prompt_logprobs.value_or(0), out);
    } else {
      out.token.logprob = kNotFinite;  // the error follows: other threads have rows of this result
    }
  }
  if (next < rows.first_position + rows.num_rows) return;
  for (int32_t c = 0; c < rows.num_samples; ++c) {
    SequenceSampler& entry = samplers_.at(rows.sequence_id + c);
    SampledToken& sample = result.samples[size_t(c)];
    Result<int32_t> token = entry.sampler.sample(logits, scratch);
    if (!token.has_value()) {
      sample.error = token.error();
      continue;
    }
    sample.token_id = token.value();
    entry.sampler.append(sample.token_id);
    if (!entry.logprobs) {
      sample.logprobs.reset();
      continue;
    }
    if (!sample.logprobs) sample.logprobs.emplace();
    compute_logprobs(logits, sample.token_id, *entry.logprobs, *sample.logprobs);
  }
}

}  // namespace millrace
