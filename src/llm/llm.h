#pragma once

// The text front door: text or messages in; text, reasoning and tool calls out.

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
#include "chat/reply_parser.h"
#include "engine/engine.h"
#include "request/request.h"
#include "tokenizer/tokenizer.h"

namespace millrace {

// What the engine will continue. A chat knows where in a reply the first generated token stands.
struct Prompt {
  std::vector<int32_t> token_ids;
  std::optional<ReplyStart> reply_start;  // none: plain text
};

// One step of an answer, valid during the call. All text is whole characters.
struct AnswerEvent {
  const StreamEvent& step;
  std::string_view text;                // that this step settled
  const std::vector<ReplyEvent>& reply; // the same text of a chat, parsed
};

struct Answer {
  std::string text;  // a chat's as the model wrote it, without its end token
  Reply reply;       // a chat's text, parsed
  // "stop", "length", "tool_calls" (chat), "abort".
  std::string finish_reason;
  int64_t num_prompt_tokens = 0;
  uint64_t seed = 0;  // the request's, or the one drawn for it
  Completion completion;
};

// Engine, tokenizer and chat encoding of one model directory.
//
// Threading: one owner thread calls generate(); the rest only reads.
class Llm {
 public:
  // Sees an answer as it comes; false ends it.
  using AnswerSink = std::function<bool(const AnswerEvent&)>;

  // Reads tokenizer.json, and generation_config.json if there is one, beside the checkpoint.
  static Result<std::unique_ptr<Llm>> open(const EngineOptions& options,
                                           const OpenProgress& progress = {});

  // What generation_config.json recommends, over the API's defaults.
  const SamplingParams& default_sampling() const { return default_sampling_; }

  // Plain text to be continued. With `add_bos` it starts with the begin token, once.
  Prompt encode_text(std::string_view text, SpecialTokens mode, bool add_bos) const;
  Result<Prompt> encode_chat(const ChatRequest& chat) const;

  // Draws a seed if `sampling` has none. `choice_idx` tells several answers to one prompt apart.
  // In a chat, stop strings end the answer only: not reasoning, not tool calls.
  Result<Answer> generate(const Prompt& prompt, const SamplingParams& sampling,
                          const AnswerSink& on_event = {}, int32_t choice_idx = 0);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  Engine& engine() const { return *engine_; }

 private:
  class Writer;

  Llm(Tokenizer tokenizer, SamplingParams default_sampling, std::unique_ptr<Engine> engine)
      : tokenizer_(std::move(tokenizer)),
        default_sampling_(std::move(default_sampling)),
        engine_(std::move(engine)) {}

  Tokenizer tokenizer_;
  SamplingParams default_sampling_;
  std::unique_ptr<Engine> engine_;
  uint64_t num_requests_ = 0;
};

// What an engine needs to know of a tokenizer. Without end tokens those of config.json count.
TokenTable make_token_table(const Tokenizer& tokenizer, std::vector<int32_t> eos_token_ids);

// The tokenizer of a model directory; errors name the file.
Result<Tokenizer> open_tokenizer(const std::string& model_dir);

}  // namespace millrace
