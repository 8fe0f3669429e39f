#pragma once

// What the OpenAI API answers: bodies of completions and chat completions, and errors.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llm/llm.h"
#include "openai/completion_request.h"

namespace millrace::openai {

// An HTTP status and the body's `error` object.
struct ApiError {
  int status = 400;
  std::string type, message;
  std::optional<std::string> param, code;
  int retry_after_s = 1;  // of 429 and 503: when it may go better
};

// By the code of the error and the form of its message: "FIELD: found X, expected Y".
ApiError api_error(const Error& error);
// Of a body that is no JSON, or more of it than is read.
ApiError invalid_json(const Error& error);
ApiError model_not_found(const std::string& model, const std::string& served);
std::string error_body(const ApiError& error);

struct ResponseContext {
  std::string id;  // without its prefix
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string system_fingerprint;
  const Tokenizer* tokenizer = nullptr;
};

// The prompts of a request as token ids, truncated where it asks for that. One of a chat.
Result<std::vector<Prompt>> encode_prompts(const CompletionRequest& request, const Llm& llm);

// What to submit for one of the prompts.
AnswerRequest make_answer_request(const CompletionRequest& request, Prompt prompt, const Llm& llm);

// The body of a request whose choices have all ended. `answers`: those of each prompt.
std::string completion_body(const CompletionRequest& request, const std::vector<Prompt>& prompts,
                            const std::vector<std::vector<Answer>>& answers,
                            const ResponseContext& context);

}  // namespace millrace::openai
