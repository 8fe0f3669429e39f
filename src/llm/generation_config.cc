#include "llm/generation_config.h"

#include <charconv>
#include <limits>

#include "base/format.h"
#include "chat/json.h"

namespace millrace {
namespace {

template <class T>
Status read_number(const JsonValue& value, std::string_view key, T& out) {
  const char* end = value.text.data() + value.text.size();
  if (value.is(JsonValue::Kind::kNumber)) {
    const auto [stopped, error] = std::from_chars(value.text.data(), end, out);
    if (error == std::errc() && stopped == end) return {};
  }
  const bool is_integer = std::numeric_limits<T>::is_integer;
  return Error{Code::kInvalidArgument, format(key, ": expected ", is_integer ? "an integer" : "a number")};
}

template <class T>
Status read_member(const JsonValue& object, std::string_view key, T& out) {
  const JsonValue* value = object.find(key);
  if (value == nullptr || value->is(JsonValue::Kind::kNull)) return {};
  return read_number(*value, key, out);
}

Status read_eos_token_ids(const JsonValue& object, std::vector<int32_t>& ids) {
  const JsonValue* value = object.find("eos_token_id");
  if (value == nullptr || value->is(JsonValue::Kind::kNull)) return {};
  if (!value->is(JsonValue::Kind::kArray)) {
    return read_number(*value, "eos_token_id", ids.emplace_back());
  }
  for (const JsonValue& item : value->items) {
    RETURN_IF_ERROR(read_number(item, "eos_token_id", ids.emplace_back()));
  }
  return {};
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view json) {
  ASSIGN_OR_RETURN(const JsonValue object, parse_json(json));
  if (!object.is(JsonValue::Kind::kObject)) {
    return Error{Code::kInvalidArgument, "expected a JSON object"};
  }
  for (size_t i = 0; i < object.keys.size(); ++i) {
    if (!object.items[i].is_repeated) continue;
    return Error{Code::kInvalidArgument, format(object.keys[i], ": found twice, expected once")};
  }
  GenerationConfig config;
  SamplingParams& sampling = config.sampling;
  RETURN_IF_ERROR(read_member(object, "temperature", sampling.temperature));
  RETURN_IF_ERROR(read_member(object, "top_k", sampling.top_k));
  RETURN_IF_ERROR(read_member(object, "top_p", sampling.top_p));
  RETURN_IF_ERROR(read_member(object, "min_p", sampling.min_p));
  RETURN_IF_ERROR(read_member(object, "repetition_penalty", sampling.repetition_penalty));
  RETURN_IF_ERROR(read_eos_token_ids(object, config.eos_token_ids));
  RETURN_IF_ERROR(validate(sampling, std::numeric_limits<int64_t>::max()));
  return config;
}

}  // namespace millrace
