#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "request/stop_matcher.h"
#include "sampler/sampler.h"
#include "sys/fp_environment.h"

namespace millrace {
namespace {

// Rows of logits that prompt_logprobs may hold at a time: 64 MiB of floats.
constexpr int64_t kMaxLogits = int64_t(16) << 20;

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

// Decides after every token whether the output ends here, and how many of its bytes are settled.
class Engine::Output {
 public:
  Output(const Request& request, const std::vector<int32_t>& eos_token_ids, int64_t max_tokens)
      : params_(request.sampling),
        scope_(request.stop_scope),
        eos_token_ids_(eos_token_ids),
        max_tokens_(max_tokens),
        matcher_(request.sampling.stop),
        scope_part_(scope_.begin_after_token_id ? ScopePart::kBefore : ScopePart::kInside) {}

  void append(int32_t token_id, std::string_view bytes, StreamEvent& event) {
    ++num_tokens_;
    event.token_id = token_id;
    if (!params_.ignore_eos && contains(eos_token_ids_, token_id)) {
      return finish(FinishReason::kStop, num_bytes_, event);
    }
    if (contains(params_.stop_token_ids, token_id)) {
      event.stop_reason = token_id;
      return finish(FinishReason::kStop, num_bytes_, event);
    }
    num_bytes_ += int64_t(bytes.size());
    if (const auto match = match_stop_strings(token_id, bytes)) {
      event.stop_reason = params_.stop[match->stop_idx];
      const bool include = params_.include_stop_str_in_output;
      return finish(FinishReason::kStop, include ? match->end : match->begin, event);
    }
    if (num_tokens_ >= max_tokens_) return finish(FinishReason::kLength, num_bytes_, event);
    event.num_settled_bytes =
        params_.include_stop_str_in_output ? num_bytes_ : matcher_.num_settled_bytes();
  }

  int64_t num_bytes() const { return num_bytes_; }

 private:
  enum class ScopePart { kBefore, kInside, kAfter };

  static void finish(FinishReason reason, int64_t num_settled_bytes, StreamEvent& event) {
    event.finish_reason = reason;
    event.num_settled_bytes = num_settled_bytes;
  }

  // The tokens that open and close the scope are outside it.
  std::optional<StopMatcher::Match> match_stop_strings(int32_t token_id, std::string_view bytes) {
    if (token_id == scope_.end_at_token_id) scope_part_ = ScopePart::kAfter;
    std::optional<StopMatcher::Match> match;
    if (scope_part_ == ScopePart::kInside && num_tokens_ > params_.min_tokens) {
      match = matcher_.append(bytes);
    } else {
      matcher_.skip(int64_t(bytes.size()));
    }
    if (scope_part_ == ScopePart::kBefore && token_id == scope_.begin_after_token_id) {
      scope_part_ = ScopePart::kInside;
    }
    return match;
  }

  const SamplingParams& params_;
  const StopScope& scope_;
  const std::vector<int32_t>& eos_token_ids_;
  const int64_t max_tokens_;
  StopMatcher matcher_;
  ScopePart scope_part_;
  int64_t num_tokens_ = 0;
  int64_t num_bytes_ = 0;
};

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options, TokenTable tokens,
                                             const OpenProgress& progress) {
  if (options.prefill_chunk < 1) {
    return Error{Code::kInvalidArgument,
                 format("chunk: found ", options.prefill_chunk, ", expected at least 1")};
  }
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model,
                   LoadedModel::open(options.load, std::move(tokens.compressed_ids), progress));
  const ModelConfig& config = model->config();
  const int64_t max_model_len = options.max_model_len.value_or(config.max_position_embeddings);
  if (max_model_len < 1 || max_model_len > config.max_position_embeddings) {
    return Error{Code::kInvalidArgument,
                 format("max_model_len: found ", max_model_len, ", expected 1 to ",
                        config.max_position_embeddings, ", the checkpoint's max_position_embeddings")};
  }
  if (int64_t(tokens.bytes.size()) > config.vocab_size) {
    return Error{Code::kInvalidArgument, format("tokenizer: found ", tokens.bytes.size(),
                                                " tokens, expected at most vocab_size, ",
                                                config.vocab_size)};
  }
  tokens.bytes.resize(size_t(config.vocab_size));  // ids that the tokenizer does not know
  tokens.is_control.resize(size_t(config.vocab_size), 0);
  if (tokens.eos_token_ids.empty()) tokens.eos_token_ids = {int32_t(config.eos_token_id)};
  for (int32_t id : tokens.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return Error{Code::kInvalidArgument, format("eos_token_id: found ", id, ", expected 0 to ",
                                                  config.vocab_size - 1)};
    }
  }
  return std::unique_ptr<Engine>(
      new Engine(std::move(model), std::move(tokens), options.prefill_chunk, max_model_len));
}

Engine::Engine(std::unique_ptr<LoadedModel> model, TokenTable tokens, int64_t prefill_chunk,
               int64_t max_model_len)
    : model_(std::move(model)),
      tokens_(std::move(tokens)),
      prefill_chunk_(prefill_chunk),
      max_model_len_(max_model_len) {}

EngineInfo Engine::info() {
  EngineInfo info;
  info.numerics_id = numerics_id(numerics_digest(model_->kernels(), model_->kernel_context()),
                                 model_->model().numerics);
  info.isa = model_->kernels().name;
  info.num_threads = model_->pool().num_threads();
  for (const MappedFile& shard : model_->checkpoint().shards()) {
    info.mapped_bytes += int64_t(shard.bytes().size());
  }
  info.copied_bytes = model_->checkpoint().copied_bytes();
  return info;
}

std::string_view Engine::output_bytes(int32_t token_id, const SamplingParams& params) const {
  if (params.skip_special_tokens && tokens_.is_control[size_t(token_id)]) return {};
  return tokens_.bytes[size_t(token_id)];
}

Status Engine::check(const Request& request) const {
  const int64_t num_prompt_tokens = int64_t(request.prompt_token_ids.size());
  RETURN_IF_ERROR(validate(request.sampling, vocab_size()));
  if (num_prompt_tokens == 0) {
    return Error{Code::kInvalidArgument, "prompt: found no tokens, expected at least one"};
  }
  for (int64_t i = 0; i < num_prompt_tokens; ++i) {
    const int32_t id = request.prompt_token_ids[size_t(i)];
    if (id < 0 || id >= vocab_size()) {
      return Error{Code::kInvalidArgument, format("prompt: found token id ", id, " at position ", i,
                                                  ", expected 0 to ", vocab_size() - 1)};
    }
  }
  const int64_t max_tokens = request.sampling.max_tokens.value_or(1);
  if (num_prompt_tokens + max_tokens > max_model_len_) {
    return Error{Code::kInvalidArgument,
                 format("the maximum context length is ", max_model_len_, " tokens, found ",
                        num_prompt_tokens, " in the prompt and ", max_tokens, " to generate")};
  }
  if (!request.sampling.seed && request.sampling.temperature >= kGreedyTemperature) {
    return Error{Code::kInvalidArgument, "seed: found none, expected one with this temperature"};
  }
  return {};
}

// Computes the prompt; false when the caller gave up. Leaves the last token's logits at the end
// of logits_.
Result<bool> Engine::prefill(const Request& request, const EventSink& on_event,
                             SequenceState& state, Completion& completion) {
  const std::span<const int32_t> prompt = request.prompt_token_ids;
  const std::optional<int64_t> num_logprobs = request.sampling.prompt_logprobs;
  const int64_t num_tokens = int64_t(prompt.size());
  int64_t chunk = prefill_chunk_;
  if (num_logprobs) {
    chunk = std::clamp<int64_t>(kMaxLogits / vocab_size(), 1, chunk);
    completion.prompt_logprobs.resize(1);
  }
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, num_tokens);
    ForwardOptions options;
    options.logits = num_logprobs         ? LogitsFor::kAll
                     : end == num_tokens ? LogitsFor::kLast
                                         : LogitsFor::kNone;
    RETURN_IF_ERROR(model_->runner().forward(state, prompt.subspan(size_t(begin), size_t(end - begin)),
                                             options, logits_));
    for (int64_t t = begin + 1; num_logprobs && t <= end && t < num_tokens; ++t) {
      const std::span<const float> row =
          std::span(logits_).subspan(size_t((t - 1 - begin) * vocab_size()), size_t(vocab_size()));
      RETURN_IF_ERROR(check_finite(row, request.request_id, t));
      compute_logprobs(row, prompt[size_t(t)], *num_logprobs,
                       completion.prompt_logprobs.emplace_back().emplace());
    }
    StreamEvent event;
    event.num_computed_tokens = end;
    if (on_event && !on_event(event)) return false;
  }
  return true;
}

Result<Completion> Engine::generate(const Request& request, const EventSink& on_event) {
  const ScopedFpEnvironment fp_environment;
  RETURN_IF_ERROR(check(request));
  const SamplingParams& params = request.sampling;
  const int64_t num_prompt_tokens = int64_t(request.prompt_token_ids.size());
  const int64_t max_tokens = params.max_tokens.value_or(max_model_len_ - num_prompt_tokens);

  const Stopwatch stopwatch;
  Completion completion;
  SequenceState state(model_->config());
  ASSIGN_OR_RETURN(const bool prompt_done, prefill(request, on_event, state, completion));
  completion.timings.prefill_s = stopwatch.seconds();
  if (!prompt_done || max_tokens == 0) {
    completion.finish_reason = prompt_done ? FinishReason::kLength : FinishReason::kAbort;
    StreamEvent event;
    event.num_computed_tokens = state.num_computed_tokens;
    event.finish_reason = completion.finish_reason;
    if (on_event) on_event(event);
    return completion;
  }

  Sampler sampler(request, {vocab_size(), tokens_.eos_token_ids, params.seed.value_or(0), max_tokens});
  Output output(request, tokens_.eos_token_ids, max_tokens);
  StreamEvent event;
  while (true) {
    const std::span<const float> logits = std::span(logits_).last(size_t(vocab_size()));
    ASSIGN_OR_RETURN(const int32_t token_id, sampler.sample(logits));
    if (params.logprobs) {
      if (!event.logprobs) event.logprobs.emplace();
      compute_logprobs(logits, token_id, *params.logprobs, *event.logprobs);
      completion.logprobs.push_back(*event.logprobs);
    }
    sampler.append(token_id);
    completion.token_ids.push_back(token_id);
    if (sampler.num_output_tokens() == 1) {
      completion.timings.time_to_first_token_s = stopwatch.seconds();
    }
    event.num_computed_tokens = state.num_computed_tokens;
    output.append(token_id, output_bytes(token_id, params), event);
    if (on_event && !on_event(event) && !event.finish_reason) {
      // The caller has seen the event without a reason; what it holds back is now settled.
      event.finish_reason = FinishReason::kAbort;
      event.num_settled_bytes = output.num_bytes();
    }
    if (event.finish_reason) break;
    RETURN_IF_ERROR(model_->runner().forward(state, {&token_id, 1}, {}, logits_));
  }
  completion.finish_reason = *event.finish_reason;
  completion.stop_reason = event.stop_reason;
  completion.num_output_bytes = event.num_settled_bytes;
  completion.timings.decode_s = stopwatch.seconds() - completion.timings.time_to_first_token_s;
  return completion;
}

}  // namespace millrace
