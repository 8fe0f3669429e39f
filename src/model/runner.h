#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/status.h"
#include "checkpoint/expert_source.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/sequence_state.h"
#include "model/trace.h"

namespace millrace {

enum class LogitsFor { kNone, kLast, kAll };

struct ForwardOptions {
  LogitsFor logits = LogitsFor::kLast;
  bool feed_draft = false;  // also extend the draft stages' windows, so that draft() may follow
  Trace* trace = nullptr;
};

// What the draft stages propose after `anchor` (spec 6.2).
struct Draft {
  std::vector<int32_t> tokens;     // [dspark_block_size]
  std::vector<float> confidences;  // [dspark_block_size], each in (0, 1)
};

// Runs a model with one table of kernels. The bits of every result are a function of the model,
// the numerics and the tokens: not of the chunking, the table or the number of threads.
//
// Threading: one owner thread, in the contract's floating-point state (ScopedFpEnvironment).
// Model, source, table and context must outlive it.
class Runner {
 public:
  Runner(const Model& model, ExpertSource& experts, const KernelTable& kernels,
         KernelContext& kernel_context)
      : model_(model), experts_(experts), kernels_(kernels), kernel_context_(kernel_context) {}

  // Computes the tokens that follow `state` and advances it.
  //   logits  [rows, vocab_size] out, rows by options.logits
  // Fails, leaving `state` of no further use, when a weight cannot be brought; refuses, leaving
  // `state` as it was, token ids outside the vocabulary and an empty call.
  Status forward(SequenceState& state, std::span<const int32_t> token_ids,
                 const ForwardOptions& options, std::vector<float>& logits);

  // Proposes tokens to follow `anchor`, the token sampled after the last computed one. Needs a
  // state that was fed by feed_draft in every call. Does not change it.
  Result<Draft> draft(const SequenceState& state, int32_t anchor);

 private:
  Status check_token_ids(std::span<const int32_t> token_ids) const;

  const Model& model_;
  ExpertSource& experts_;
  const KernelTable& kernels_;
  KernelContext& kernel_context_;
  Arena arena_;
};

}  // namespace millrace
