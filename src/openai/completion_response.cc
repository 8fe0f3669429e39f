#include "openai/completion_response.h"

#include <algorithm>

#include "base/format.h"
#include "base/sha256.h"
#include "chat/json_writer.h"
#include "tokenizer/detokenizer.h"

namespace millrace::openai {
namespace {

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
      : request_(request), context_(context), tokenizer_(*context.tokenizer) {}

  void begin(std::string_view prefix, std::string_view object) {
    json_.begin_object().member("id", std::string(prefix) + context_.id);
    json_.member("object", object).member("created", context_.created);
    json_.member("model", context_.model).key("choices").begin_array();
  }

  void chat_choice(int64_t index, const Prompt& prompt, const Answer& answer) {
    json_.begin_object().member("index", index).key("message").begin_object();
    json_.member("role", "assistant");
    const Reply& reply = answer.reply;
    const bool has_calls = answer.finish_reason == "tool_calls";
    json_.key("content");
    if (has_calls && reply.content.empty()) {
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
    for (size_t i = 0; has_calls && i < reply.tool_calls.size(); ++i) {
      json_.begin_object().member("id", call_id(index, i)).member("type", "function");
      json_.key("function").begin_object();
      json_.member("name", reply.tool_calls[i].name);
      json_.member("arguments", reply.tool_calls[i].arguments).end_object().end_object();
    }
    json_.end_array().end_object().key("logprobs");
    if (request_.sampling.params.logprobs) {
      json_.begin_object().key("content").begin_array();
      for (const TokenLogprobs& logprobs : answer.completion.logprobs) chat_logprobs(logprobs);
      json_.end_array().end_object();
    } else {
      json_.null();
    }
    end_choice(prompt, answer);
  }

  void text_choice(int64_t index, const Prompt& prompt, const Answer& answer,
                   const Completion& first) {
    json_.begin_object().member("index", index);
    json_.member("text", request_.echo ? shown_text(prompt.token_ids) + answer.text : answer.text);
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
    int64_t num_prompt_tokens = 0, num_output_tokens = 0, num_reasoning_tokens = 0;
    for (const Prompt& prompt : prompts) num_prompt_tokens += int64_t(prompt.token_ids.size());
    for (const std::vector<Answer>& choices : answers) {
      for (const Answer& answer : choices) {
        num_output_tokens += int64_t(answer.completion.token_ids.size());
        num_reasoning_tokens += answer.num_reasoning_tokens;
      }
    }
    json_.key("usage").begin_object().member("prompt_tokens", num_prompt_tokens);
    json_.member("completion_tokens", num_output_tokens);
    json_.member("total_tokens", num_prompt_tokens + num_output_tokens);
    json_.key("prompt_tokens_details").begin_object().member("cached_tokens", 0).end_object();
    json_.key("completion_tokens_details").begin_object();
    json_.member("reasoning_tokens", num_reasoning_tokens).end_object().end_object();
    if (request_.endpoint == Endpoint::kChatCompletions) {
      prompt_logprobs(answers[0][0].completion);
      if (request_.return_token_ids) json_.member("prompt_token_ids", prompts[0].token_ids);
    }
    json_.member("system_fingerprint", context_.system_fingerprint);
    json_.key("service_tier").null().key("kv_transfer_params").null().end_object();
  }

  const std::string& text() const { return json_.text(); }

 private:
  std::string token_text(int32_t id) const {
    if (request_.return_tokens_as_token_ids) return format("token_id:", id);
    return id < tokenizer_.vocab_size() ? tokenizer_.decode({&id, 1}) : "";
  }

  // Whether text shows the token.
  bool is_shown(int32_t id) const {
    if (id >= tokenizer_.vocab_size()) return false;
    return !request_.sampling.params.skip_special_tokens || !tokenizer_.is_special(id);
  }

  std::string shown_text(const std::vector<int32_t>& ids) const {
    std::vector<int32_t> shown;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(shown),
                 [&](int32_t id) { return is_shown(id); });
    return tokenizer_.decode(shown);
  }

  // A function of the response, so that it is the same however often the response is made.
  std::string call_id(int64_t choice_idx, size_t call_idx) const {
    return "call_" + sha256(format(context_.id, ' ', choice_idx, ' ', call_idx)).substr(0, 24);
  }

  void chat_logprob(const TokenLogprob& logprob) {
    json_.member("token", token_text(logprob.token_id)).member("logprob", logprob.logprob);
    json_.key("bytes").begin_array();
    if (logprob.token_id < tokenizer_.vocab_size()) {
      for (char byte : tokenizer_.token_bytes(logprob.token_id)) json_.value(int(uint8_t(byte)));
    }
    json_.end_array();
  }

  void chat_logprobs(const TokenLogprobs& logprobs) {
    json_.begin_object();
    chat_logprob(logprobs.token);
    json_.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : logprobs.top) {
      json_.begin_object();
      chat_logprob(top);
      json_.end_object();
    }
    json_.end_array().end_object();
  }

  // With echo the prompt's tokens come first; nothing comes before the very first one.
  void text_logprobs(const Prompt& prompt, const Answer& answer, const Completion& first) {
    std::vector<const TokenLogprobs*> all;
    std::vector<int32_t> ids;
    if (request_.echo) {
      for (const auto& logprobs : first.prompt_logprobs) all.push_back(logprobs ? &*logprobs : nullptr);
      ids = prompt.token_ids;
    }
    for (const TokenLogprobs& logprobs : answer.completion.logprobs) {
      all.push_back(&logprobs);
      ids.push_back(logprobs.token.token_id);
    }
    json_.begin_object().key("text_offset").begin_array();
    int64_t offset = 0;  // in characters; bytes that continue one do not count
    for (int32_t id : ids) {
      json_.value(offset);
      if (!is_shown(id)) continue;
      const std::string_view bytes = tokenizer_.token_bytes(id);
      offset += std::count_if(bytes.begin(), bytes.end(),
                              [](char c) { return (uint8_t(c) & 0xc0) != 0x80; });
    }
    json_.end_array().key("tokens").begin_array();
    for (int32_t id : ids) json_.value(token_text(id));
    json_.end_array().key("token_logprobs").begin_array();
    for (const TokenLogprobs* logprobs : all) {
      if (logprobs != nullptr) {
        json_.value(logprobs->token.logprob);
      } else {
        json_.null();
      }
    }
    json_.end_array().key("top_logprobs").begin_array();
    for (const TokenLogprobs* logprobs : all) {
      if (logprobs == nullptr) {
        json_.null();
        continue;
      }
      json_.begin_object();
      for (const TokenLogprob& top : logprobs->top) {
        json_.member(token_text(top.token_id), top.logprob);
      }
      json_.end_object();
    }
    json_.end_array().end_object();
  }

  void prompt_logprobs(const Completion& completion) {
    json_.key("prompt_logprobs");
    if (!request_.sampling.params.prompt_logprobs) {
      json_.null();
      return;
    }
    json_.begin_array();
    for (const std::optional<TokenLogprobs>& logprobs : completion.prompt_logprobs) {
      if (!logprobs) {
        json_.null();
        continue;
      }
      json_.begin_object();
      prompt_logprob(logprobs->token);
      for (const TokenLogprob& top : logprobs->top) {
        if (top.token_id != logprobs->token.token_id) prompt_logprob(top);
      }
      json_.end_object();
    }
    json_.end_array();
  }

  void prompt_logprob(const TokenLogprob& logprob) {
    json_.key(format(logprob.token_id)).begin_object().member("logprob", logprob.logprob);
    json_.member("rank", logprob.rank);
    json_.member("decoded_token", token_text(logprob.token_id)).end_object();
  }

  void end_choice(const Prompt& prompt, const Answer& answer) {
    json_.member("finish_reason", answer.finish_reason).key("stop_reason");
    if (const auto* id = std::get_if<int32_t>(&answer.completion.stop_reason)) {
      json_.value(*id);
    } else if (const auto* text = std::get_if<std::string>(&answer.completion.stop_reason)) {
      json_.value(to_utf8(*text));
    } else {
      json_.null();
    }
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
  const Tokenizer& tokenizer_;
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
  switch (error.code) {
    case Code::kInvalidArgument:
      api.type = "invalid_request_error";
      api.param = field_of(error.message);
      api.code = "invalid_value";
      if (error.message.find("maximum context length") != std::string::npos) {
        api.code = "context_length_exceeded";
      } else if (error.message.find(": found nothing, ") != std::string::npos) {
        api.code = "missing_required_parameter";
      }
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

ApiError model_not_found(const std::string& model, const std::string& served) {
  ApiError api;
  api.status = 404, api.type = "not_found_error";
  api.message = format("model: found ", model, ", expected ", served);
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
      prompts.push_back(llm.encode_text(std::get<std::string>(text), SpecialTokens::kPlainText,
                                        request.add_special_tokens));
    }
  }
  for (Prompt& prompt : prompts) truncate(request, llm, prompt.token_ids);
  return prompts;
}

AnswerRequest make_answer_request(const CompletionRequest& request, Prompt prompt, const Llm& llm) {
  AnswerRequest answer;
  answer.prompt = std::move(prompt);
  answer.sampling = request.sampling.params;
  for (const std::string& word : request.sampling.bad_words) {
    add_bad_word(llm.tokenizer(), word, answer.sampling);
  }
  answer.num_choices = request.sampling.num_choices;
  answer.priority = request.priority;
  answer.request_id = request.request_id;
  return answer;
}

std::string completion_body(const CompletionRequest& request, const std::vector<Prompt>& prompts,
                            const std::vector<std::vector<Answer>>& answers,
                            const ResponseContext& context) {
  const bool is_chat = request.endpoint == Endpoint::kChatCompletions;
  BodyWriter writer(request, context);
  writer.begin(is_chat ? "chatcmpl-" : "cmpl-", is_chat ? "chat.completion" : "text_completion");
  int64_t index = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (const Answer& answer : answers[i]) {
      if (is_chat) {
        writer.chat_choice(index++, prompts[i], answer);
      } else {
        writer.text_choice(index++, prompts[i], answer, answers[i][0].completion);
      }
    }
  }
  writer.end(prompts, answers);
  return writer.text();
}

}  // namespace millrace::openai
