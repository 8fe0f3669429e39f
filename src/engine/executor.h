#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/loaded_model.h"
#include "kvstore/kv_store.h"
#include "model/runner.h"
#include "request/step.h"
#include "sampler/sampler.h"

namespace millrace {

// Runs what the scheduler plans: builds the model's batch, computes it, samples. Owns the samplers
// of all sequences that have not finished.
//
// Threading: one owner thread, in the contract's floating-point state. The model, the store, the
// end tokens and the counts must outlive it.
class Executor {
 public:
  Executor(LoadedModel& model, KvStore& store, std::span<const int32_t> eos_token_ids,
           ExpertCounts* expert_counts = nullptr);

  // Fills `result` for this plan. Between two layers the monitor may end the step: then the result
  // says that it was abandoned, and every sequence is as it was before.
  void run(const StepPlan& plan, LayerMonitor* monitor, StepResult& result);

  size_t num_samplers() const { return samplers_.size(); }

 private:
  struct SequenceSampler {
    Sampler sampler;
    std::optional<int64_t> logprobs, prompt_logprobs;
  };

  void start(const StartedRequest& started);
  void make_segments(const StepPlan& plan);
  void take_logits(const StepPlan& plan, std::span<const LogitsRow> rows,
                   Matrix<const float> logits, StepResult& result);
  void take_row(const PlannedRows& rows, int64_t position, std::span<const float> logits,
                SamplerScratch& scratch, RowsResult& result);

  LoadedModel& model_;
  KvStore& store_;
  std::span<const int32_t> eos_token_ids_;
  ExpertCounts* expert_counts_;
  Runner runner_;
  std::unordered_map<SequenceId, SequenceSampler> samplers_;
  std::vector<SamplerScratch> scratch_;  // by thread
  std::vector<BatchSegment> segments_;
};

}  // namespace millrace
