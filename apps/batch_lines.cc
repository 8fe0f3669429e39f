#include "batch_lines.h"

#include <charconv>

#include "base/format.h"
#include "base/sha256.h"
#include "chat/json_writer.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

constexpr std::string_view kIdPrefix = "batch_req_";

// Below 2^53: readers of JSON keep no more of a number.
uint64_t seed_of(uint64_t seed, const std::string& custom_id) {
  uint64_t bits = 0;
  const std::string digest = sha256(format(seed, ' ', custom_id));
  std::from_chars(digest.data(), digest.data() + 16, bits, 16);
  return bits >> 11;
}

Result<openai::Endpoint> read_endpoint(const JsonNode& url) {
  if (url.is_text("/v1/chat/completions")) return openai::Endpoint::kChatCompletions;
  if (url.is_text("/v1/completions")) return openai::Endpoint::kCompletions;
  return refuse(url, "\"/v1/chat/completions\" or \"/v1/completions\"");
}

// An output line up to its response.
JsonWriter begin_line(const std::string& id, const std::optional<std::string>& custom_id) {
  JsonWriter line;
  line.begin_object().member("id", id).key("custom_id");
  custom_id ? line.value(*custom_id) : line.null();
  line.key("response");
  return line;
}

}  // namespace

std::variant<BatchLine, BatchRefusal> parse_batch_line(std::string_view line,
                                                       const BatchOptions& options) {
  const Result<JsonValue> parsed = parse_json(line, options.limits.json);
  if (!parsed.has_value()) return BatchRefusal{std::nullopt, parsed.error()};
  const JsonNode root{&parsed.value(), ""};
  const JsonNode id = root.at("custom_id");
  BatchRefusal refusal;
  if (!id.is(Kind::kString) || id.value->text.empty()) {
    refusal.error = root.is(Kind::kObject) ? refuse(id, "a string") : refuse(root, "an object");
    return refusal;
  }
  refusal.custom_id = id.value->text;
  const auto refused = [&](const Error& error) {
    refusal.error = error;
    return refusal;
  };
  if (const Status status = expect_object(root); !status.ok()) return refused(status.error());
  const JsonNode method = root.at("method");
  if (!method.is_text("POST")) return refused(refuse(method, "\"POST\""));
  const Result<openai::Endpoint> endpoint = read_endpoint(root.at("url"));
  if (!endpoint.has_value()) return refused(endpoint.error());
  const JsonNode body = root.at("body");
  if (!body.is(Kind::kObject)) return refused(refuse(body, "an object"));

  refusal.is_request = true;
  Result<openai::CompletionRequest> request = openai::parse_completion_request(
      endpoint.value(), *body.value, options.defaults, options.limits);
  if (!request.has_value()) return refused(request.error());
  if (request.value().stream) {
    return refused(refuse_reason(JsonNode{body.value->find("stream"), "stream"},
                                 "a batch has no streams"));
  }
  const std::string& model = request.value().model;
  if (!options.served_model_name.empty() && !model.empty() && model != options.served_model_name) {
    return refused({Code::kNotFound, format("model: found ", model, ", expected ",
                                            options.served_model_name)});
  }
  SamplingParams& sampling = request.value().sampling.params;
  if (!sampling.seed) sampling.seed = seed_of(options.seed, *refusal.custom_id);
  return BatchLine{*refusal.custom_id, std::move(request.value())};
}

std::string batch_id(int64_t line_number, std::string_view line, const BatchOptions& options) {
  const std::string asked = format(line_number, ' ', options.seed, ' ', options.served_model_name,
                                   ' ', options.limits.max_logprobs, ' ', line);
  return std::string(kIdPrefix) + sha256(asked).substr(0, 24);
}

std::string answered_line(const std::string& id, const std::string& custom_id, int status,
                          const std::string& body) {
  JsonWriter line = begin_line(id, custom_id);
  line.begin_object().member("status_code", status).member("request_id", id);
  line.key("body").json(body).end_object();
  return line.key("error").null().end_object().text() + "\n";
}

std::string refused_line(const std::string& id, const BatchRefusal& refusal) {
  if (refusal.is_request) {
    const openai::ApiError error = openai::api_error(refusal.error);
    return answered_line(id, *refusal.custom_id, error.status, openai::error_body(error));
  }
  JsonWriter line = begin_line(id, refusal.custom_id);
  line.null().key("error").begin_object();
  line.member("code", "invalid_line").member("message", refusal.error.message).end_object();
  return line.end_object().text() + "\n";
}

Result<AnsweredLine> read_answered_line(std::string_view line, const JsonLimits& limits) {
  ASSIGN_OR_RETURN(const JsonValue value, parse_json(line, limits));
  const JsonNode root{&value, ""};
  const JsonNode id = root.at("custom_id");
  if (!root.is(Kind::kObject) || id.value == nullptr || root.at("response").value == nullptr) {
    return refuse(root, "a line of a batch's output");
  }
  AnsweredLine answered;
  if (const JsonNode own = root.at("id"); own.is(Kind::kString)) answered.id = own.value->text;
  if (id.is(Kind::kString)) answered.custom_id = id.value->text;
  const JsonNode fingerprint = root.at("response").at("body").at("system_fingerprint");
  if (fingerprint.is(Kind::kString)) answered.system_fingerprint = fingerprint.value->text;
  return answered;
}

bool is_begun_line(std::string_view text) {
  const std::string begin = format("{\"id\": \"", kIdPrefix);
  return text.starts_with(std::string_view(begin).substr(0, text.size()));
}

std::optional<std::string> custom_id_of(std::string_view line, const JsonLimits& limits) {
  const Result<JsonValue> value = parse_json(line, limits);
  const JsonValue* id = value.has_value() ? value.value().find("custom_id") : nullptr;
  if (id == nullptr || !id->is(Kind::kString) || id->text.empty()) return std::nullopt;
  return id->text;
}

}  // namespace millrace
