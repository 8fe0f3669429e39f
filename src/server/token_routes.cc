#include "server/token_routes.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "chat/json_node.h"
#include "chat/json_writer.h"
#include "openai/completion_request.h"
#include "server/completion_call.h"
#include "server/context.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

// Runs `make` on a worker with the parsed body, and answers with what it returns.
void answer_on_worker(std::unique_ptr<Call> call,
                      Result<std::string> (*make)(ServerContext&, const JsonValue&)) {
  ServerContext& context = call->context();
  std::shared_ptr<Call> shared = std::move(call);  // the task may be copied
  std::string body = shared->exchange().take_body();
  context.workers.post([shared, make, body = std::move(body)] {
    ServerContext& context = shared->context();
    const Result<JsonValue> json = parse_json(body);
    std::optional<openai::ApiError> error;
    std::string answer;
    if (!json.has_value()) {
      error = openai::invalid_json(json.error());
    } else {
      Result<std::string> made = make(context, json.value());
      if (made.has_value()) {
        answer = std::move(made.value());
      } else {
        error = openai::api_error(made.error());
      }
    }
    context.loop.post([shared, error, answer = std::move(answer)]() mutable {
      if (error) {
        shared->respond_error(*error);
      } else {
        shared->respond_json(std::move(answer));
      }
    });
  });
}

Status check_model(const ServerContext& context, const JsonNode& body) {
  ASSIGN_OR_RETURN(const std::string model, read_string(body.at("model")));
  const std::vector<std::string>& names = context.options.served_model_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return {};
  return Error{Code::kNotFound, openai::model_not_found(model, names.front()).message};
}

Result<std::string> tokenize_body(ServerContext& context, const JsonValue& json) {
  const JsonNode body{&json, ""};
  RETURN_IF_ERROR(expect_object(body));
  RETURN_IF_ERROR(check_model(context, body));
  ASSIGN_OR_RETURN(const bool wants_texts, read_bool(body.at("return_token_strs"), false));
  Prompt prompt;
  if (body.at("messages").given()) {
    // The very request that would be answered, so that the ids are the very same.
    ASSIGN_OR_RETURN(openai::CompletionRequest request,
                     openai::parse_completion_request(openai::Endpoint::kChatCompletions, json,
                                                      context.llm.default_sampling()));
    ASSIGN_OR_RETURN(prompt, context.llm.encode_chat(request.chat));
  } else {
    const JsonNode text = body.at("prompt");
    if (!text.is(Kind::kString)) return refuse(text, "a string, or messages instead");
    RETURN_IF_ERROR(context.llm.check_length(text.value->text.size()));
    ASSIGN_OR_RETURN(const bool add_bos, read_bool(body.at("add_special_tokens"), true));
    prompt = context.llm.encode_text(text.value->text, SpecialTokens::kPlainText, add_bos);
  }
  JsonWriter writer;
  writer.begin_object().member("count", int64_t(prompt.token_ids.size()));
  writer.member("max_model_len", context.llm.engine().max_model_len());
  writer.member("tokens", prompt.token_ids).key("token_strs");
  if (wants_texts) {
    writer.begin_array();
    for (int32_t id : prompt.token_ids) writer.value(context.llm.tokenizer().decode({&id, 1}));
    writer.end_array();
  } else {
    writer.null();
  }
  return writer.end_object().text();
}

Result<std::string> detokenize_body(ServerContext& context, const JsonValue& json) {
  const JsonNode body{&json, ""};
  RETURN_IF_ERROR(expect_object(body));
  RETURN_IF_ERROR(check_model(context, body));
  const JsonNode tokens = body.at("tokens");
  if (!tokens.is(Kind::kArray)) return refuse(tokens, "an array of token ids");
  const int32_t most = int32_t(context.llm.tokenizer().vocab_size() - 1);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens.value->items.size(); ++i) {
    const JsonNode token = tokens.at(i);
    ASSIGN_OR_RETURN(const std::optional<int32_t> id, read_number<int32_t>(token, 0, most));
    if (!id) return refuse(token, expected_number(0, most));
    ids.push_back(*id);
  }
  JsonWriter writer;
  writer.begin_object().member("prompt", context.llm.tokenizer().decode(ids));
  return writer.end_object().text();
}

}  // namespace

void tokenize(std::unique_ptr<Call> call) { answer_on_worker(std::move(call), tokenize_body); }

void detokenize(std::unique_ptr<Call> call) { answer_on_worker(std::move(call), detokenize_body); }

void tokenizer_info(std::unique_ptr<Call> call) {
  const Tokenizer& tokenizer = call->context().llm.tokenizer();
  JsonWriter json;
  json.begin_object().member("tokenizer_class", "byte-level BPE");
  json.member("vocab_size", tokenizer.vocab_size());
  json.member("chat_encoding", "DeepSeek-V4.1").key("special_tokens").begin_object();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) json.member(tokenizer.decode({&id, 1}), int64_t(id));
  }
  call->respond_json(json.end_object().end_object().text());
}

void abort_requests(std::unique_ptr<Call> call) {
  ServerContext& context = call->context();
  const Result<JsonValue> json = parse_json(call->request().body);
  if (!json.has_value()) {
    call->respond_error(openai::invalid_json(json.error()));
    return;
  }
  const JsonNode ids = JsonNode{&json.value(), ""}.at("request_ids");
  if (!ids.is(Kind::kArray)) {
    call->respond_error(openai::api_error(refuse(ids, "an array of request ids")));
    return;
  }
  for (size_t i = 0; i < ids.value->items.size(); ++i) {
    if (ids.at(i).is(Kind::kString)) continue;
    call->respond_error(openai::api_error(refuse(ids.at(i), "a request id")));
    return;
  }
  JsonWriter writer;
  writer.begin_object().key("aborted").begin_array();
  for (const JsonValue& id : ids.value->items) {
    // An abort changes the list of open calls.
    std::vector<std::shared_ptr<CompletionCall>> named;
    const auto [first, last] = context.open_calls.equal_range(id.text);
    for (auto it = first; it != last; ++it) {
      // Clients choose ids: that of another key's request is as good as unknown.
      if (it->second->key_idx() == call->key_idx) named.push_back(it->second->shared_from_this());
    }
    if (!named.empty()) writer.value(id.text);
    for (const std::shared_ptr<CompletionCall>& open : named) open->abort();
  }
  call->respond_json(writer.end_array().end_object().text());
}

}  // namespace millrace
