#include "openai/completion_response.h"

#include <algorithm>

#include "base/format.h"
#include "chat/json_writer.h"
#include "openai/response_parts.h"
#include "openai/token_writer.h"

namespace millrace::openai {
namespace {

constexpr size_t kMaxShownName = 200;

// "stop[0]: found ..." -> "stop[0]"; nothing if the message does not begin with a field.
std::optional<std::string> field_of(const std::string& message) {
  const size_t end = message.find(": ");
  if (end == message.npos) return std::nullopt;
  const std::string field = message.substr(0, end);
  const bool is_path = std::all_of(field.begin(), field.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '[' || c == ']';
  });
  return is_path && !field.empty() ? std::optional(field) : std::nullopt;
}

class BodyWriter {
 public:
  BodyWriter(const CompletionRequest& request, const ResponseContext& context)
      : request_(request), context_(context), tokens_(request, *context.tokenizer) {}

  void begin() {
    write_head(request_.endpoint, /*is_chunk=*/false, context_, json_);
    json_.key("choices").begin_array();
  }

  void chat_choice(int64_t index, const Prompt& prompt, const Answer& answer) {
    json_.begin_object().member("index", index).key("message").begin_object();
    json_.member("role", "assistant");
    const Reply& reply = answer.reply;
    json_.key("content");
    if (reply.content.empty() && !reply.tool_calls.empty()) {
      json_.null();
    } else {
      json_.value(reply.content);
    }
    for (const char* name : {"reasoning_content", "reasoning"}) {
      json_.key(name);
      if (request_.include_reasoning && !reply.reasoning.empty()) {
        json_.value(reply.reasoning);
      } else {
        json_.null();
      }
    }
    for (const char* name : {"refusal", "annotations", "audio", "function_call"}) {
      json_.key(name).null();
    }
    json_.key("tool_calls").begin_array();
    for (size_t i = 0; i < reply.tool_calls.size(); ++i) {
      json_.begin_object().member("id", call_id(context_, index, i)).member("type", "function");
      json_.key("function").begin_object();
      json_.member("name", reply.tool_calls[i].name);
      json_.member("arguments", reply.tool_calls[i].arguments).end_object().end_object();
    }
    json_.end_array().end_object().key("logprobs");
    chat_logprobs(answer);
    end_choice(prompt, answer);
  }

  void generated_choice(int64_t index, const Prompt& prompt, const Answer& answer) {
    json_.begin_object().member("index", index).key("logprobs");
    chat_logprobs(answer);
    end_choice(prompt, answer);
  }

  void text_choice(int64_t index, const Prompt& prompt, const Answer& answer,
                   const Completion& first) {
    json_.begin_object().member("index", index);
    json_.member("text",
                 request_.echo ? tokens_.shown_text(prompt.token_ids) + answer.text : answer.text);
    json_.key("logprobs");
    if (request_.sampling.params.logprobs) {
      text_logprobs(prompt, answer, first);
    } else {
      json_.null();
    }
    if (!request_.echo) prompt_logprobs(first);
    end_choice(prompt, answer);
  }

  void end(const std::vector<Prompt>& prompts, const std::vector<std::vector<Answer>>& answers) {
    json_.end_array();
    Usage usage{num_tokens(prompts), 0, 0};
    for (const std::vector<Answer>& choices : answers) {
      for (const Answer& answer : choices) {
        usage.num_output_tokens += int64_t(answer.completion.token_ids.size());
        usage.num_reasoning_tokens += answer.num_reasoning_tokens;
      }
    }
    json_.key("usage");
    write_usage(usage, json_);
    if (request_.endpoint != Endpoint::kCompletions) prompt_logprobs(answers[0][0].completion);
    if (request_.endpoint == Endpoint::kChatCompletions && request_.return_token_ids) {
      json_.member("prompt_token_ids", prompts[0].token_ids);
    }
    json_.member("system_fingerprint", context_.system_fingerprint);
    json_.key("service_tier").null().key("kv_transfer_params").null().end_object();
  }

  const std::string& text() const { return json_.text(); }

 private:
  void chat_logprobs(const Answer& answer) {
    if (!request_.sampling.params.logprobs) {
      json_.null();
      return;
    }
    json_.begin_object().key("content").begin_array();
    tokens_.chat_logprobs(answer.completion.logprobs, json_);
    json_.end_array().end_object();
  }

  // With echo the prompt's tokens come first; nothing comes before the very first one.
  void text_logprobs(const Prompt& prompt, const Answer& answer, const Completion& first) {
    std::vector<TokenWriter::TextToken> tokens;
    for (size_t i = 0; request_.echo && i < prompt.token_ids.size(); ++i) {
      // What was given up before its prompt was computed has fewer of them, or none.
      const bool is_there = i < first.prompt_logprobs.size() && first.prompt_logprobs[i];
      tokens.push_back({prompt.token_ids[i], is_there ? &*first.prompt_logprobs[i] : nullptr});
    }
    for (const TokenLogprobs& logprobs : answer.completion.logprobs) {
      tokens.push_back({logprobs.token.token_id, &logprobs});
    }
    int64_t offset = 0;
    tokens_.text_logprobs(tokens, offset, json_);
  }

  void prompt_logprobs(const Completion& completion) {
    json_.key("prompt_logprobs");
    if (!request_.sampling.params.prompt_logprobs) {
      json_.null();
      return;
    }
    json_.begin_array();
    for (const std::optional<TokenLogprobs>& logprobs : completion.prompt_logprobs) {
      if (logprobs) {
        tokens_.prompt_logprobs(*logprobs, json_);
      } else {
        json_.null();
      }
    }
    json_.end_array();
  }

  void end_choice(const Prompt& prompt, const Answer& answer) {
    write_finish(answer.finish_reason, answer.completion.stop_reason, json_);
    if (request_.return_token_ids) {
      json_.member("token_ids", answer.completion.token_ids);
      if (request_.endpoint == Endpoint::kCompletions) {
        json_.member("prompt_token_ids", prompt.token_ids);
      }
    }
    json_.end_object();
  }

  const CompletionRequest& request_;
  const ResponseContext& context_;
  TokenWriter tokens_;
  JsonWriter json_;
};

void truncate(const CompletionRequest& request, const Llm& llm, std::vector<int32_t>& ids) {
  if (!request.truncate_prompt_tokens) return;
  const int64_t num_output = request.sampling.params.max_tokens.value_or(1);
  const int64_t fitting = std::max<int64_t>(1, llm.engine().max_model_len() - num_output);
  const int64_t wanted = *request.truncate_prompt_tokens;
  const size_t count = size_t(wanted == -1 ? fitting : wanted);
  if (ids.size() <= count) return;
  if (request.truncate_right) {
    ids.resize(count);
  } else {
    ids.erase(ids.begin(), ids.end() - ptrdiff_t(count));
  }
}

}  // namespace

ApiError api_error(const Error& error) {
  ApiError api;
  api.message = error.message;
  api.type = "invalid_request_error";
  switch (error.code) {
    case Code::kInvalidArgument:
      api.param = field_of(error.message);
      api.code = "invalid_value";
      if (error.message.find("maximum context length") != std::string::npos) {
        api.code = "context_length_exceeded";
      } else if (error.message.find(": found nothing, ") != std::string::npos) {
        api.code = "missing_required_parameter";
      }
      return api;
    case Code::kUnimplemented:
      api.param = field_of(error.message);
      api.code = "unsupported_parameter";
      return api;
    case Code::kNotFound:
      api.status = 404, api.type = "not_found_error";
      return api;
    case Code::kExhausted:
    case Code::kUnavailable:
      api.status = 503, api.type = "service_unavailable_error", api.code = "overloaded";
      return api;
    case Code::kCorrupt:
    case Code::kCancelled:
      break;
  }
  api.status = 500, api.type = "server_error";
  return api;
}

ApiError invalid_json(const Error& error) {
  ApiError api;
  api.type = "invalid_request_error", api.code = "json_parse_error";
  api.message = error.message;
  return api;
}

ApiError model_not_found(const std::string& model, const std::string& served) {
  ApiError api;
  api.status = 404, api.type = "not_found_error";
  // A name in full could be a message of its own.
  const std::string found = model.size() <= kMaxShownName ? model : "a name too long to show";
  api.message = format("model: found ", found, ", expected ", served);
  api.param = "model", api.code = "model_not_found";
  return api;
}

std::string error_body(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("error").begin_object();
  json.member("message", error.message).member("type", error.type).key("param");
  error.param ? json.value(*error.param) : json.null();
  json.key("code");
  error.code ? json.value(*error.code) : json.null();
  return json.end_object().end_object().text();
}

Result<std::vector<Prompt>> encode_prompts(const CompletionRequest& request, const Llm& llm) {
  std::vector<Prompt> prompts;
  if (request.endpoint == Endpoint::kChatCompletions) {
    ASSIGN_OR_RETURN(Prompt prompt, llm.encode_chat(request.chat));
    prompts.push_back(std::move(prompt));
  }
  for (const PromptText& text : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&text)) {
      prompts.push_back({*ids, std::nullopt});
    } else {
      const std::string& plain = std::get<std::string>(text);
      if (!request.truncate_prompt_tokens) RETURN_IF_ERROR(llm.check_length(plain.size()));
      prompts.push_back(
          llm.encode_text(plain, SpecialTokens::kPlainText, request.add_special_tokens));
    }
  }
  for (Prompt& prompt : prompts) truncate(request, llm, prompt.token_ids);
  return prompts;
}

AnswerRequest make_answer_request(const CompletionRequest& request, Prompt prompt, const Llm& llm) {
  AnswerRequest answer;
  answer.prompt = std::move(prompt);
  answer.sampling = in_tokens(request.sampling, llm.tokenizer());
  answer.num_choices = request.sampling.num_choices;
  answer.priority = request.priority;
  answer.request_id = request.request_id;
  return answer;
}

std::string completion_body(const CompletionRequest& request, const std::vector<Prompt>& prompts,
                            const std::vector<std::vector<Answer>>& answers,
                            const ResponseContext& context) {
  BodyWriter writer(request, context);
  writer.begin();
  int64_t index = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (const Answer& answer : answers[i]) {
      switch (request.endpoint) {
        case Endpoint::kChatCompletions:
          writer.chat_choice(index++, prompts[i], answer);
          break;
        case Endpoint::kCompletions:
          writer.text_choice(index++, prompts[i], answer, answers[i][0].completion);
          break;
        case Endpoint::kGenerate:
          writer.generated_choice(index++, prompts[i], answer);
          break;
      }
    }
  }
  writer.end(prompts, answers);
  return writer.text();
}

}  // namespace millrace::openai
