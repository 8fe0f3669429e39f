#pragma once

// One step of the engine as plain data: the scheduler plans it, the executor runs it, and what came
// out goes back. Ids and counts, no addresses of state: the executor knows where blocks and slots
// lie.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "request/request.h"

namespace millrace {

// Chosen by the caller; of two requests of which the scheduler still holds something, not the same.
using RequestHandle = int64_t;

// One token stream. Never used again. A request of n choices owns n ids in a row, in their order.
using SequenceId = int64_t;

using BlockId = int32_t;    // of a block of tokens: compressed rows and index keys
using StateSlot = int32_t;  // of what a sequence keeps whatever its length: rings and open groups

// Tokens of one sequence to be computed: a chunk of what is known, or the token sampled last.
// The spans are valid until the plan is committed.
struct PlannedRows {
  SequenceId sequence_id = 0;
  // All known tokens of the sequence: these rows are those from first_position on. The executor
  // also looks back, and for prompt_logprobs one ahead.
  std::span<const int32_t> tokens;
  // Everything before it is in the blocks, and what is still needed of it in the slot. 0, and where
  // the rows begin before num_cached_tokens: the slot may hold another sequence's state.
  int64_t first_position = 0;
  int32_t num_rows = 0;
  std::span<const BlockId> block_table;  // covers every position up to the last of these rows
  StateSlot state_slot = 0;
  // The blocks hold the first num_cached_tokens, perhaps for others too: they are not written. Rows
  // before it are there for the slot's sake.
  int64_t num_cached_tokens = 0;
  // What the last layer makes of tokens before this one is of no use.
  int64_t first_output = 0;
  // The last row's logits give one token each for the sequences sequence_id and the num_samples - 1
  // ids after it. 0: no logits are needed.
  int32_t num_samples = 0;
  // The log-probability of every prompt token that follows one of these rows is wanted. Prompt
  // tokens come before num_prompt_tokens.
  bool prompt_logprobs = false;
  int64_t num_prompt_tokens = 0;
};

struct StateCopy {
  StateSlot from, to;
};

struct BlockCopy {
  BlockId from, to;
};

// Sequences whose first rows, or first sample, may be in this plan: the executor makes samplers.
struct StartedRequest {
  SequenceId first_sequence_id = 0;
  int32_t num_choices = 1;
  const Request* request = nullptr;  // valid until the plan is committed
  int64_t max_tokens = 0;            // of each choice, what the context allows included
};

// In this order: samplers of `finished` are dropped and those of `started` made, copies are made as
// they are listed, then the rows are computed.
struct StepPlan {
  int64_t step_id = 0;
  std::vector<SequenceId> finished;  // since the last plan; never those that will run again
  std::vector<StartedRequest> started;
  std::vector<StateCopy> state_copies;
  std::vector<BlockCopy> block_copies;
  std::vector<PlannedRows> rows;  // each sequence at most once
  int64_t num_rows = 0;           // of all together
  double num_whole_rows = 0;      // the same work in rows that go through every layer

  bool empty() const { return rows.empty() && finished.empty(); }
};

struct SampledToken {
  int32_t token_id = 0;
  std::optional<TokenLogprobs> logprobs;
  std::optional<Error> error;  // ends this sequence only; there is no token
};

// What became of one PlannedRows.
struct RowsResult {
  std::vector<SampledToken> samples;  // num_samples of them
  // Of the prompt tokens at first_position + 1 and on, as many as follow one of these rows.
  std::vector<TokenLogprobs> prompt_logprobs;
  // Logits that are not finite, for example. Ends every sequence that samples from these rows;
  // the other members do not count.
  std::optional<Error> error;
};

// Buffers may be kept from step to step: entries beyond those of the plan are ignored.
struct StepResult {
  double elapsed_ms = 0;
  // Given up between two layers: the copies were made, no row was computed, and every sequence is
  // as it was before.
  bool abandoned = false;
  std::vector<RowsResult> rows;  // in the order of the plan
};

}  // namespace millrace
