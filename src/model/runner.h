#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/status.h"
#include "checkpoint/expert_source.h"
#include "kernels/kernels.h"
#include "model/batch_rows.h"
#include "model/expert_counts.h"
#include "model/model.h"
#include "model/trace.h"
#include "sys/read_ahead.h"

namespace millrace {

// Looks on while a forward call runs, and may end it.
class LayerMonitor {
 public:
  virtual ~LayerMonitor() = default;
  // Before each layer; false abandons the call.
  virtual bool before_layer(int64_t layer) = 0;
};

// One row of logits of a call: the token at `position` of a segment's sequence.
struct LogitsRow {
  int64_t segment_idx;
  int64_t position;
};
// Takes logits [rows, vocab_size] as they are made: segment after segment, num_logits() of each, a
// bounded number at a time. Valid during the call. May use the context's threads.
using LogitsSink = std::function<void(std::span<const LogitsRow>, Matrix<const float>)>;

struct ForwardOptions {
  bool feed_draft = false;  // also extend the draft stages' rings, so that draft() may follow
  Trace* trace = nullptr;
  LayerMonitor* monitor = nullptr;
  ExpertCounts* expert_counts = nullptr;
};

// What the draft stages propose after `anchor`.
struct Draft {
  std::vector<int32_t> tokens;     // [dspark_block_size]
  std::vector<float> confidences;  // [dspark_block_size], each in (0, 1)
};

// Runs a model with one table of kernels on sequences whose state lies in a KvStore. The bits of
// every result are a function of the model, the numerics and the sequence's own tokens: not of
// what else is in the call, the chunking, the table or the number of threads.
//
// Threading: one owner thread, in the contract's floating-point state (ScopedFpEnvironment).
// Model, source, store, table and context must outlive it.
class Runner {
 public:
  Runner(const Model& model, ExpertSource& experts, KvStore& store, const KernelTable& kernels,
         KernelContext& kernel_context)
      : model_(model),
        experts_(experts),
        store_(store),
        kernels_(kernels),
        kernel_context_(kernel_context) {}

  // Computes the rows of all segments and writes their state. Logits come when that is done.
  // A call that fails or is abandoned (kCancelled) leaves every sequence as it was before: of what
  // it may have written, only rows that do not count yet. Refuses token ids outside the vocabulary
  // and a call without rows.
  Status forward(std::span<const BatchSegment> segments, const ForwardOptions& options,
                 const LogitsSink& sink);
  // The same with all logits in one piece.
  Status forward(std::span<const BatchSegment> segments, const ForwardOptions& options,
                 std::vector<float>& logits);

  // Proposes tokens to follow `anchor`, the token sampled after the first `num_computed_tokens` of
  // the sequence in `slot`. Every forward call must have fed the draft. Does not change the state.
  Result<Draft> draft(StateSlot slot, int64_t num_computed_tokens, int32_t anchor);

 private:
  Status check_token_ids(std::span<const int32_t> token_ids) const;
  void check_cached_tokens(const BatchSegment& segment) const;
  void make_logits(LayerContext& ctx, const BatchRows& rows, Matrix<const float> streams,
                   Matrix<const float> pre_mix, const LogitsSink& sink);
  struct DraftFeed;
  void feed_draft_rings(LayerContext& ctx, const DraftWeights& weights,
                        std::span<const BatchSegment> segments, const DraftFeed& feed);

  const Model& model_;
  ExpertSource& experts_;
  KvStore& store_;
  const KernelTable& kernels_;
  KernelContext& kernel_context_;
  Arena arena_;
  ReadAhead read_ahead_;
};

}  // namespace millrace
