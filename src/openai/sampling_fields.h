#pragma once

// The sampling fields of a request body, under the names of the OpenAI API and of vLLM.

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_node.h"
#include "request/sampling_params.h"

namespace millrace {
class Llm;
class Tokenizer;
}  // namespace millrace

namespace millrace::openai {

// Reads the fields of one object and remembers which: what is left is what nobody read.
class Fields {
 public:
  // Requires: `body` is an object and outlives this.
  explicit Fields(const JsonValue& body) : body_(body) {}

  JsonNode at(std::string_view name) {
    seen_.push_back(name);
    return {body_.find(name), std::string(name)};
  }
  // Given fields that were never asked for, in the order of the body.
  std::vector<std::string> rest() const;

 private:
  const JsonValue& body_;
  std::vector<std::string_view> seen_;
};

struct SamplingFields {
  SamplingParams params;
  std::vector<std::string> bad_words;  // as text: ids need a tokenizer
  int32_t num_choices = 1;
};

// With the words that are banned in tokens.
SamplingParams in_tokens(SamplingFields sampling, const Tokenizer& tokenizer);

// What differs between the APIs.
struct SamplingLimits {
  int64_t least_max_tokens = 0;
  int64_t max_logprobs = -1;  // alternatives per token; -1: the whole vocabulary
};

// Takes from the body what it gives and leaves the rest of `sampling` as it is. Log-probabilities
// of the answer are not among these fields: each API has its own. What needs no vocabulary and no
// context to be refused is refused here, the rest by validate() in request/sampling_params.h.
Status read_sampling(Fields& fields, SamplingFields& sampling, const SamplingLimits& limits = {});

// Of Chat Completions: max_completion_tokens, which wins over max_tokens.
Status read_max_completion_tokens(Fields& fields, SamplingParams& params,
                                  const SamplingLimits& limits = {});

// A number of alternatives, up to `most` (-1: -1 and everything else).
Result<std::optional<int64_t>> read_logprobs(const JsonNode& node, int64_t most);

// Of Chat Completions: whether, and how many alternatives beside the token itself.
Result<std::optional<int64_t>> read_chat_logprobs(Fields& fields,
                                                  const SamplingLimits& limits = {});

// An array of them.
Result<std::vector<int32_t>> read_token_ids(const JsonNode& node);

// All of these of Chat Completions.
Status read_chat_sampling(Fields& fields, SamplingFields& sampling);

// What a Chat Completions request says about sampling, over what is recommended for the model.
struct ChatSampling {
  SamplingParams params;
  int32_t num_choices = 1;
};
// Requires: `body` is an object.
Result<ChatSampling> read_chat_sampling(const JsonValue& body, const Llm& llm);

}  // namespace millrace::openai
