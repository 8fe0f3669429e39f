#include "llm/generation_config.h"

#include <charconv>
#include <limits>

#include "base/format.h"
#include "chat/json.h"

namespace millrace {
namespace {

constexpr size_t kMaxFoundBytes = 60;

Error refuse(std::string_view key, const JsonValue& found, std::string_view expected) {
  std::string text;
  if (!write_json(found, text).ok()) text = found.text;  // a number beyond double
  if (text.size() > kMaxFoundBytes) text = text.substr(0, kMaxFoundBytes) + "...";
  return {Code::kInvalidArgument,
          format(key, key.empty() ? "" : ": ", "found ", text, ", expected ", expected)};
}

template <class T>
Status read_number(const JsonValue& value, std::string_view key, T& out) {
  const char* end = value.text.data() + value.text.size();
  if (value.is(JsonValue::Kind::kNumber)) {
    const auto [stopped, error] = std::from_chars(value.text.data(), end, out);
    if (error == std::errc() && stopped == end) return {};
  }
  return refuse(key, value, std::numeric_limits<T>::is_integer ? "an integer" : "a number");
}

template <class T>
Status read_member(const JsonValue& object, std::string_view key, T& out) {
  const JsonValue* value = object.find(key);
  if (value == nullptr || value->is(JsonValue::Kind::kNull)) return {};
  return read_number(*value, key, out);
}

Status read_token_id(const JsonValue& value, std::string_view key, int64_t vocab_size,
                     std::vector<int32_t>& ids) {
  int64_t id = -1;
  if (!read_number(value, key, id).ok() || id < 0 || id >= vocab_size) {
    return refuse(key, value, format("a token id from 0 to ", vocab_size - 1));
  }
  ids.push_back(int32_t(id));
  return {};
}

Status read_eos_token_ids(const JsonValue& object, int64_t vocab_size, std::vector<int32_t>& ids) {
  const JsonValue* value = object.find("eos_token_id");
  if (value == nullptr || value->is(JsonValue::Kind::kNull)) return {};
  if (!value->is(JsonValue::Kind::kArray)) {
    return read_token_id(*value, "eos_token_id", vocab_size, ids);
  }
  if (value->items.empty()) return refuse("eos_token_id", *value, "at least one token id");
  for (size_t i = 0; i < value->items.size(); ++i) {
    RETURN_IF_ERROR(
        read_token_id(value->items[i], format("eos_token_id[", i, "]"), vocab_size, ids));
  }
  return {};
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view json, int64_t vocab_size) {
  ASSIGN_OR_RETURN(const JsonValue object, parse_json(json));
  if (!object.is(JsonValue::Kind::kObject)) {
    return refuse("", object, "an object");
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
  RETURN_IF_ERROR(read_eos_token_ids(object, vocab_size, config.eos_token_ids));
  RETURN_IF_ERROR(validate(sampling, vocab_size));
  return config;
}

}  // namespace millrace
