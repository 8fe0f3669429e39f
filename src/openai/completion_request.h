#pragma once

// The bodies of POST /v1/chat/completions and /v1/completions as values. What is refused names the
// field, what was found and what was expected; fields that nobody knows are ignored.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "chat/messages.h"
#include "openai/sampling_fields.h"

namespace millrace::openai {

enum class Endpoint {
  kChatCompletions,
  kCompletions,
  kGenerate,  // POST /inference/v1/generate: token ids in and out
};

// One of /v1/completions: text, or token ids.
using PromptText = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  Endpoint endpoint = Endpoint::kChatCompletions;
  std::string model;                // empty: not given
  ChatRequest chat;                 // of a chat
  // Otherwise: at least one, each gives `n` choices. To generate from: one, of token ids.
  std::vector<PromptText> prompts;
  SamplingFields sampling;
  int32_t priority = 0;
  std::string request_id;
  std::string user;

  bool stream = false, include_usage = false, continuous_usage_stats = false;
  bool echo = false;                  // of completions: the prompt's text in front of the answer
  bool add_special_tokens = true;     // of completions: begin token in front of text
  bool include_reasoning = true;      // of a chat
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<int64_t> truncate_prompt_tokens;  // -1: to what fits
  bool truncate_right = false;                    // drop the end of the prompt, not the beginning
};

struct RequestLimits {
  JsonLimits json;
  int64_t max_logprobs = 20;  // alternatives per token; -1: the whole vocabulary
};

// `defaults`: the sampling of requests that say nothing.
Result<CompletionRequest> parse_completion_request(Endpoint endpoint, const JsonValue& body,
                                                   const SamplingParams& defaults,
                                                   const RequestLimits& limits = {});

}  // namespace millrace::openai
