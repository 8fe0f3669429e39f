#pragma once

// The text front door: text or messages in; text, reasoning and tool calls out.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/encoder.h"
#include "chat/messages.h"
#include "engine/engine.h"
#include "llm/answer_stream.h"
#include "request/request.h"
#include "tokenizer/tokenizer.h"

namespace millrace {

// What the engine will continue. A chat knows where in a reply the first generated token stands.
struct Prompt {
  std::vector<int32_t> token_ids;
  std::optional<ReplyStart> reply_start;  // none: plain text
};

struct AnswerRequest {
  Prompt prompt = {};
  // Draws a seed if there is none. In a chat, stop strings end the answer only: not reasoning, not
  // tool calls.
  SamplingParams sampling = {};
  // The rest is as in request/request.h.
  int32_t choice_idx = 0, num_choices = 1;
  int32_t priority = 0;
  std::string fairness_key = {}, request_id = {};
  std::optional<double> timeout_ms = {};
};

// Engine, tokenizer and chat encoding of one model directory.
//
// Threading: any thread may call everything. Streams must be gone before it is.
class Llm {
 public:
  // Sees an answer as it comes; false ends it with "abort".
  using AnswerSink = std::function<bool(const AnswerEvent&)>;

  // Reads tokenizer.json, and generation_config.json if there is one, beside the checkpoint.
  static Result<std::unique_ptr<Llm>> open(const EngineOptions& options,
                                           const OpenProgress& progress = {});

  // What generation_config.json recommends, over the API's defaults.
  const SamplingParams& default_sampling() const { return default_sampling_; }

  // Refuses text of so many bytes that no tokens for it would fit, which is cheaper to find out
  // than the tokens.
  Status check_length(size_t num_bytes) const;
  // Plain text to be continued. With `add_bos` it starts with the begin token, once.
  Prompt encode_text(std::string_view text, SpecialTokens mode, bool add_bos) const;
  // Refuses, too, what check_length() does.
  Result<Prompt> encode_chat(const ChatRequest& chat) const;

  // Begins to answer. Refuses at once what makes no sense, does not fit (kInvalidArgument) or would
  // be one too many (kExhausted).
  //   on_event  called by the engine's thread when there is something to read; must not block
  Result<std::unique_ptr<AnswerStream>> submit(AnswerRequest request,
                                               std::function<void()> on_event = {});

  // Answers a request of one choice while the caller waits. Errors: of submit(), and of the answer.
  Result<Answer> generate(AnswerRequest request, const AnswerSink& on_event = {});

  const Tokenizer& tokenizer() const { return tokenizer_; }
  Engine& engine() const { return *engine_; }

 private:
  Llm(Tokenizer tokenizer, SamplingParams default_sampling, std::unique_ptr<Engine> engine);

  Tokenizer tokenizer_;
  size_t longest_token_bytes_ = 1;
  SamplingParams default_sampling_;
  std::unique_ptr<Engine> engine_;
  std::atomic<uint64_t> num_requests_{0};
};

// Bans a word in both spellings in tokens: at the start of a line, and behind a blank.
void add_bad_word(const Tokenizer& tokenizer, const std::string& word, SamplingParams& sampling);

// What an engine needs to know of a tokenizer. Without end tokens those of config.json count.
TokenTable make_token_table(const Tokenizer& tokenizer, std::vector<int32_t> eos_token_ids);

// Why Llm::open() would refuse what stands beside the weights: the tokenizer, control tokens that
// the config names otherwise, generation_config.json. `config` is that of the directory.
std::vector<Error> find_faults(const std::string& model_dir, const ModelConfig& config);

// The tokenizer of a model directory; errors name the file.
Result<Tokenizer> open_tokenizer(const std::string& model_dir);

}  // namespace millrace
