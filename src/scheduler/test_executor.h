#pragma once

// For tests, fuzzers and simulations of the scheduler: an executor whose state is hashes. What a
// block or a slot holds is a digest of the tokens it was computed from, so every plan that reads
// something that is not there (freed, overwritten, not copied, another sequence's) is noticed.
// Tokens are a function of the tokens before them and the choice: the right output of a request is
// known without a schedule.

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model_config/needed_tokens.h"
#include "request/step.h"
#include "scheduler/stop_rules.h"

namespace millrace {

inline uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

// Digest of all tokens of a span.
inline uint64_t prefix_hash(std::span<const int32_t> tokens) {
  uint64_t hash = 1;
  for (const int32_t token : tokens) hash = mix_hash(hash, uint64_t(token));
  return hash;
}

// A vocabulary of which token 0 ends an output; each token is one letter, in turns.
struct TestVocabulary {
  std::vector<std::string> bytes;
  std::vector<uint8_t> is_control;
  std::vector<int32_t> eos_token_ids = {0};

  explicit TestVocabulary(int32_t size) : bytes(size_t(size)), is_control(size_t(size)) {
    for (int32_t id = 0; id < size; ++id) bytes[size_t(id)] = std::string(1, char('a' + id % 26));
  }
  OutputTokens tokens() const { return {bytes, is_control, eos_token_ids}; }
};

class TestExecutor {
 public:
  TestExecutor(int64_t num_blocks, int64_t block_size, int64_t num_slots, int32_t vocab_size)
      : block_size_(block_size),
        vocab_size_(vocab_size),
        blocks_(size_t(num_blocks * block_size)),
        slots_(size_t(num_slots)) {}

  // How far the layers of what it plays look back. No layers: each token needs all before it.
  LayerReach layer_reach;
  double fixed_ms = 10;
  double row_ms = 1;
  // Whether sampling for this choice at this position fails, and whether all these rows do.
  std::function<bool(SequenceId, int64_t position)> sample_fails;
  std::function<bool(const PlannedRows&)> rows_fail;

  static int32_t next_token(uint64_t hash, int32_t choice_idx, int32_t vocab_size) {
    return int32_t((mix_hash(hash, uint64_t(choice_idx) + 77) >> 20) % uint64_t(vocab_size));
  }

  StepResult& run(const StepPlan& plan, bool abandon = false) {
    for (const SequenceId id : plan.finished) MR_CHECK_OP(samplers_.erase(id), ==, 1u);
    for (const StartedRequest& started : plan.started) {
      for (int32_t choice = 0; choice < started.num_choices; ++choice) {
        MR_CHECK(samplers_.emplace(started.first_sequence_id + choice, choice).second);
      }
    }
    for (const StateCopy& copy : plan.state_copies) {
      slots_[size_t(copy.to)] = slots_[size_t(copy.from)];
    }
    for (const BlockCopy& copy : plan.block_copies) {
      for (int64_t i = 0; i < block_size_; ++i) cell(copy.to, i) = cell(copy.from, i);
    }
    result_.abandoned = abandon;
    result_.elapsed_ms = fixed_ms + row_ms * plan.num_whole_rows;
    if (result_.rows.size() < plan.rows.size()) result_.rows.resize(plan.rows.size());
    if (abandon) return result_;
    int64_t num_rows = 0;
    double num_whole_rows = 0;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      run_rows(plan.rows[i], result_.rows[i]);
      num_rows += plan.rows[i].num_rows;
      num_whole_rows += whole_rows(plan.rows[i]);
    }
    MR_CHECK_OP(num_rows, ==, plan.num_rows);
    MR_CHECK(std::abs(num_whole_rows - plan.num_whole_rows) < 1e-6);
    return result_;
  }

  size_t num_samplers() const { return samplers_.size(); }

 private:
  // The state behind `num_tokens` tokens: of each layer, its keys from a token on.
  struct Slot {
    uint64_t hash = 0;
    int64_t num_tokens = 0;
    std::vector<int64_t> first_key;
  };

  double whole_rows(const PlannedRows& rows) const {
    const int64_t end = rows.first_position + rows.num_rows;
    const WantedTokens wanted{rows.num_cached_tokens, rows.first_output};
    return num_whole_tokens(layer_reach, wanted, rows.first_position, end);
  }

  uint64_t& cell(BlockId block, int64_t offset) {
    return blocks_[size_t(block * block_size_ + offset)];
  }

  // Every layer that computes a token has the keys of its window.
  void extend(Slot& slot, bool goes_on, const PlannedRows& rows) {
    const size_t num_layers = size_t(layer_reach.num_layers);
    if (num_layers == 0) return MR_CHECK(goes_on || rows.first_position == 0);
    const int64_t end = rows.first_position + rows.num_rows;
    std::vector<int64_t> first(num_layers + 1);
    first_tokens(layer_reach, {rows.num_cached_tokens, rows.first_output}, first);
    slot.first_key.resize(num_layers);
    for (size_t l = 0; l < num_layers; ++l) {
      int64_t& first_key = slot.first_key[l];
      const int64_t first_row = std::max(rows.first_position, first[l]);
      if (!goes_on || first_row > rows.first_position) first_key = std::min(first_row, end);
      // What goes on to the next layer; whatever the last one makes of it, from first_output on.
      const int64_t first_query = std::max(rows.first_position, first[l + 1]);
      if (first_query >= end) continue;
      MR_CHECK_OP(first_key, <=,
                  std::max<int64_t>(0, first_query - (layer_reach.sliding_window - 1)));
    }
  }

  void run_rows(const PlannedRows& rows, RowsResult& result) {
    MR_CHECK_OP(rows.num_rows, >, 0);
    const int64_t end = rows.first_position + rows.num_rows;
    MR_CHECK_OP(int64_t(rows.tokens.size()), >=, end);
    MR_CHECK_OP(int64_t(rows.block_table.size()) * block_size_, >=, end);
    const auto at = [&](int64_t position) -> uint64_t& {
      return cell(rows.block_table[size_t(position / block_size_)], position % block_size_);
    };
    // Compressed rows of what comes before, and of what is cached, are there; the rest is written.
    uint64_t hash = 1, hash_before = 1;
    for (int64_t p = 0; p < end; ++p) {
      if (p == rows.first_position) hash_before = hash;
      hash = mix_hash(hash, uint64_t(rows.tokens[size_t(p)]));
      if (p < std::max(rows.first_position, rows.num_cached_tokens)) {
        MR_CHECK(at(p) == hash);
      } else {
        at(p) = hash;
      }
    }
    Slot& slot = slots_[size_t(rows.state_slot)];
    const bool goes_on = rows.first_position > 0 && slot.num_tokens == rows.first_position &&
                         slot.hash == hash_before;
    extend(slot, goes_on, rows);
    slot.hash = hash;
    slot.num_tokens = end;

    result.error.reset();
    if (rows_fail && rows_fail(rows)) {
      result.error = Error{Code::kCorrupt, "logits: found nan"};
      return;
    }
    result.prompt_logprobs.clear();
    if (rows.prompt_logprobs) {
      for (int64_t p = rows.first_position + 1; p <= end && p < rows.num_prompt_tokens; ++p) {
        result.prompt_logprobs.push_back({{rows.tokens[size_t(p)], 1, -float(p)}, {}});
      }
    }
    if (int64_t(result.samples.size()) < rows.num_samples) {
      result.samples.resize(size_t(rows.num_samples));
    }
    for (int32_t k = 0; k < rows.num_samples; ++k) {
      SampledToken& sample = result.samples[size_t(k)];
      const SequenceId id = rows.sequence_id + k;
      sample.token_id = next_token(hash, samplers_.at(id), vocab_size_);
      sample.error.reset();
      if (sample_fails && sample_fails(id, end)) {
        sample.error = Error{Code::kCorrupt, "logits: found inf"};
      }
    }
  }

  int64_t block_size_;
  int32_t vocab_size_;
  std::vector<uint64_t> blocks_;  // by block and offset: the digest up to that position
  std::vector<Slot> slots_;
  std::map<SequenceId, int32_t> samplers_;  // and their choices
  StepResult result_;
};

// What a choice must say, whoever ran beside it.
struct Output {
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish_reason;
  int64_t num_settled_bytes = 0;
};

inline Output expected_output(const Request& request, int32_t choice_idx, int64_t max_tokens,
                              const OutputTokens& vocabulary) {
  Output output;
  if (max_tokens == 0) {
    output.finish_reason = FinishReason::kLength;
    return output;
  }
  StopRules rules(request, vocabulary, max_tokens);
  uint64_t hash = prefix_hash(request.prompt_token_ids);
  while (!output.finish_reason) {
    StreamEvent event;
    const int32_t token =
        TestExecutor::next_token(hash, choice_idx, int32_t(vocabulary.vocab_size()));
    rules.append(token, event);
    hash = mix_hash(hash, uint64_t(token));
    output.tokens.push_back(token);
    output.finish_reason = event.finish_reason;
    output.num_settled_bytes = event.num_settled_bytes;
  }
  return output;
}

// Collects what came out and checks the order of events.
struct Recorder {
  struct Choice {
    Output output;
    std::vector<TokenLogprobs> prompt_logprobs;
    std::optional<Error> error;
    int64_t num_computed_tokens = 0, num_cached_tokens = 0;
    int64_t num_events = 0;

    void take(StreamEvent& event) {
      MR_CHECK(!output.finish_reason);  // the last event is the last
      ++num_events;
      if (event.token_id) output.tokens.push_back(*event.token_id);
      MR_CHECK_OP(event.num_settled_bytes, >=, output.num_settled_bytes);
      MR_CHECK_OP(event.num_computed_tokens, >=, num_computed_tokens);
      num_computed_tokens = event.num_computed_tokens;
      num_cached_tokens = event.num_cached_tokens;
      output.num_settled_bytes = event.num_settled_bytes;
      output.finish_reason = event.finish_reason;
      error = event.error;
      for (TokenLogprobs& logprobs : event.prompt_logprobs) {
        prompt_logprobs.push_back(std::move(logprobs));
      }
    }
  };

  void operator()(RequestHandle handle, int32_t choice_idx, StreamEvent& event) {
    choices[{handle, choice_idx}].take(event);
  }

  std::map<std::pair<RequestHandle, int32_t>, Choice> choices;
};

}  // namespace millrace
