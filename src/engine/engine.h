#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/loaded_model.h"
#include "request/request.h"

namespace millrace {

struct EngineOptions {
  LoadOptions load;
  int64_t prefill_chunk = 256;           // tokens of a prompt that are computed at once
  std::optional<int64_t> max_model_len;  // tokens of prompt and output; none: the checkpoint's
};

// What the engine knows of the tokenizer, as data by token id.
struct TokenTable {
  std::vector<std::string> bytes;      // of each token; a control token's literal
  std::vector<uint8_t> is_control;     // left out of the output where a request skips them
  std::vector<int32_t> compressed_ids; // tokenizer/token_map.h
  std::vector<int32_t> eos_token_ids;  // empty: the one of config.json
};

struct Timings {
  double prefill_s = 0;              // all prompt tokens
  double time_to_first_token_s = 0;  // prefill and the first sampling
  double decode_s = 0;               // everything after the first token
};

struct Completion {
  std::vector<int32_t> token_ids;  // an end or stop token included
  FinishReason finish_reason = FinishReason::kLength;
  StopReason stop_reason;
  int64_t num_output_bytes = 0;         // of the output, as the last event settled them
  std::vector<TokenLogprobs> logprobs;  // per output token, if asked for
  // Per prompt token, if asked for; nothing comes before the first.
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  Timings timings;
};

struct EngineInfo {
  std::string numerics_id;
  std::string isa;
  int num_threads = 0;
  int64_t mapped_bytes = 0;  // checkpoint files, read as they are needed
  int64_t copied_bytes = 0;  // of them, those that had to be copied to memory
};

// One model and, for now, one sequence at a time.
//
// Threading: one owner thread calls generate().
class Engine {
 public:
  // Sees every step of a request in order; false ends it with kAbort.
  using EventSink = std::function<bool(const StreamEvent&)>;

  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, TokenTable tokens,
                                              const OpenProgress& progress = {});

  // What comes out is a function of the request alone: not of the chunks, the threads or the
  // kernels. Refuses a request that makes no sense or does not fit the context, before any work.
  // Requires of a request with temperature: a seed.
  Result<Completion> generate(const Request& request, const EventSink& on_event = {});

  int64_t vocab_size() const { return model_->config().vocab_size; }
  int64_t max_model_len() const { return max_model_len_; }
  EngineInfo info();  // measures the numerics id: a few milliseconds

 private:
  class Output;

  Engine(std::unique_ptr<LoadedModel> model, TokenTable tokens, int64_t prefill_chunk,
         int64_t max_model_len);
  Status check(const Request& request) const;
  Result<bool> prefill(const Request& request, const EventSink& on_event, SequenceState& state,
                       Completion& completion);
  std::string_view output_bytes(int32_t token_id, const SamplingParams& params) const;

  std::unique_ptr<LoadedModel> model_;
  TokenTable tokens_;
  int64_t prefill_chunk_;
  int64_t max_model_len_;
  std::vector<float> logits_;
};

}  // namespace millrace
