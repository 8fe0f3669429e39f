#pragma once

// Tokens and their log-probabilities as the two APIs show them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chat/json_writer.h"
#include "openai/completion_request.h"
#include "request/request.h"
#include "tokenizer/tokenizer.h"

namespace millrace::openai {

class TokenWriter {
 public:
  // Both must outlive it.
  TokenWriter(const CompletionRequest& request, const Tokenizer& tokenizer)
      : request_(request), tokenizer_(tokenizer) {}

  // A token that text need not show; its bytes may be part of a character only.
  std::string token_text(int32_t id) const;
  // What text shows of tokens.
  std::string shown_text(std::span<const int32_t> ids) const;

  // Elements of `logprobs.content` of a chat.
  void chat_logprobs(std::span<const TokenLogprobs> tokens, JsonWriter& json) const;

  // `logprobs` of completions, the token itself among its alternatives. The first of all prompt
  // tokens has none: null.
  //   offset  characters of the text before these tokens; moved on behind them
  struct TextToken {
    int32_t id = 0;
    const TokenLogprobs* logprobs = nullptr;
  };
  void text_logprobs(std::span<const TextToken> tokens, int64_t& offset, JsonWriter& json) const;

  // One element of `prompt_logprobs`.
  void prompt_logprobs(const TokenLogprobs& logprobs, JsonWriter& json) const;

 private:
  bool is_shown(int32_t id) const;
  void chat_logprob(const TokenLogprob& logprob, JsonWriter& json) const;
  void prompt_logprob(const TokenLogprob& logprob, JsonWriter& json) const;
  void top_logprobs(const TokenLogprobs& logprobs, JsonWriter& json) const;

  const CompletionRequest& request_;
  const Tokenizer& tokenizer_;
};

}  // namespace millrace::openai
