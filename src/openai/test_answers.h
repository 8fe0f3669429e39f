#pragma once

// For tests: answers as an engine brings them, cut where a test wants it, and what came of them.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"
#include "chat/reply_parser.h"
#include "llm/llm.h"
#include "openai/completion_request.h"
#include "openai/completion_response.h"

namespace millrace::openai {

inline const Tokenizer& test_tokenizer() {
  static const Tokenizer* const tokenizer =
      new Tokenizer(open_tokenizer(MILLRACE_SOURCE_DIR "/models/nano").value());
  return *tokenizer;
}

inline CompletionRequest test_request(Endpoint endpoint, const std::string& fields) {
  const char* const prompt = endpoint == Endpoint::kChatCompletions
                                 ? R"("messages": [{"role": "user", "content": "Hi"}])"
                             : endpoint == Endpoint::kCompletions ? R"("prompt": "a")"
                                                                  : R"("token_ids": [5])";
  const std::string body = "{" + std::string(prompt) + (fields.empty() ? "" : ", ") + fields + "}";
  return parse_completion_request(endpoint, parse_json(body).value(), {}).value();
}

inline ResponseContext test_context() {
  return {.id = "7",
          .created = 1790000000,
          .model = "m",
          .system_fingerprint = "fp",
          .tokenizer = &test_tokenizer()};
}

// One choice while it is answered: what AnswerStream makes of an engine's steps.
class TestChoice {
 public:
  // `start`: of a chat; none: text.
  explicit TestChoice(std::optional<ReplyStart> start, int32_t choice_idx = 0) {
    event_.choice_idx = choice_idx;
    if (!start) return;
    ReplyParserOptions options;
    options.start = *start;
    parser_.emplace(options);
  }

  // The next token, and the text that it settles.
  const AnswerEvent& step(int32_t token_id, std::string_view text) {
    return take(token_id, text, std::nullopt, {});
  }
  // The last token, and the rest.
  const AnswerEvent& end(int32_t token_id, std::string_view text, FinishReason reason,
                         StopReason stop_reason = {}) {
    return take(token_id, text, reason, std::move(stop_reason));
  }
  // It ends without another token.
  const AnswerEvent& give_up(FinishReason reason) { return take(std::nullopt, "", reason, {}); }
  // How far the prompt has come.
  const AnswerEvent& progress() { return take(std::nullopt, "", std::nullopt, {}); }

  const Answer& answer() const { return answer_; }

  bool has_logprobs = false;
  std::optional<int32_t> last_reasoning_token;  // all tokens up to it are of the reasoning

 private:
  const AnswerEvent& take(std::optional<int32_t> token_id, std::string_view text,
                          std::optional<FinishReason> reason, StopReason stop_reason) {
    StreamEvent& step = event_.step;
    step = {};
    step.token_id = token_id;
    step.finish_reason = reason;
    step.stop_reason = stop_reason;
    if (token_id && has_logprobs) {
      const TokenLogprob token{*token_id, 1, -0.5f};
      step.logprobs = TokenLogprobs{token, {token}};
      answer_.completion.logprobs.push_back(*step.logprobs);
    }
    if (token_id) {
      answer_.completion.token_ids.push_back(*token_id);
      answer_.num_reasoning_tokens += is_reasoning_ && last_reasoning_token.has_value();
      if (token_id == last_reasoning_token) is_reasoning_ = false;
    }
    event_.text = text;
    answer_.text += text;
    event_.reply.clear();
    if (parser_) {
      event_.reply = parser_->feed(text);
      if (reason) {
        for (ReplyEvent& part : parser_->finish()) event_.reply.push_back(std::move(part));
      }
      for (const ReplyEvent& part : event_.reply) answer_.reply.add(part);
    }
    if (reason) {
      const std::string_view name = finish_reason_name(*reason);
      answer_.finish_reason = parser_ ? parser_->finish_reason(name) : std::string(name);
      answer_.completion.finish_reason = *reason;
      answer_.completion.stop_reason = std::move(stop_reason);
    }
    return event_;
  }

  std::optional<ReplyParser> parser_;
  AnswerEvent event_;
  Answer answer_;
  bool is_reasoning_ = true;
};

// The member at the end of a path like "choices.0.delta"; null if there is none.
inline const JsonValue* at(const JsonValue& json, std::string_view path) {
  const JsonValue* value = &json;
  while (value != nullptr && !path.empty()) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (value->is(JsonValue::Kind::kArray)) {
      const size_t index = std::stoul(key);
      value = index < value->items.size() ? &value->items[index] : nullptr;
    } else {
      value = value->find(key);
    }
    path = dot == path.npos ? std::string_view() : path.substr(dot + 1);
  }
  return value;
}

// What stands there, as JSON writes it; "absent" if nothing does.
inline std::string shown(const JsonValue& json, std::string_view path) {
  const JsonValue* value = at(json, path);
  if (value == nullptr) return "absent";
  std::string text;
  return write_json(*value, text).ok() ? text : "not to be written";
}

}  // namespace millrace::openai
