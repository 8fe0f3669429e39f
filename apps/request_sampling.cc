#include "request_sampling.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/format.h"
#include "model_flags.h"
#include "request/request.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

// What parse_chat_request() reads.
constexpr std::string_view kPromptFields[] = {"messages",
                                              "tools",
                                              "tool_choice",
                                              "response_format",
                                              "thinking",
                                              "reasoning_effort",
                                              "drop_thinking",
                                              "add_generation_prompt",
                                              "continue_final_message"};

std::string shown(const JsonValue& value) {
  if (value.is(Kind::kArray)) return "an array";
  if (value.is(Kind::kObject)) return "an object";
  std::string text;
  if (!write_json(value, text).ok()) return value.text;
  return text;
}

// The fields of a request, each read at most once; null is absent.
class Fields {
 public:
  explicit Fields(const JsonValue& request) : request_(request) {}

  template <class T>
  Status number(std::string_view name, std::optional<T>& flag) {
    const JsonValue* field = find(name);
    if (field == nullptr) return {};
    T value = 0;
    if (!field->is(Kind::kNumber) || !parse_number(field->text, value)) {
      return refuse(name, *field,
                    std::is_unsigned_v<T>   ? "an integer from 0 to 18446744073709551615"
                    : std::is_integral_v<T> ? "an integer"
                                            : "a number");
    }
    if (!flag) flag = value;
    return {};
  }

  // Flags can only turn on.
  Status boolean(std::string_view name, bool& value) {
    const JsonValue* field = find(name);
    if (field == nullptr) return {};
    if (!field->is(Kind::kBool)) return refuse(name, *field, "true or false");
    value |= field->boolean;
    return {};
  }

  Status texts(std::string_view name, std::vector<std::string>& flag) {
    const JsonValue* field = find(name);
    if (field == nullptr) return {};
    std::vector<std::string> texts;
    if (field->is(Kind::kString))
      texts.push_back(field->text);
    else if (!field->is(Kind::kArray))
      return refuse(name, *field, "a string or an array of strings");
    for (const JsonValue& item : field->items) {
      if (!item.is(Kind::kString)) return refuse(name, item, "strings only");
      texts.push_back(item.text);
    }
    if (flag.empty()) flag = std::move(texts);
    return {};
  }

  Status token_ids(std::string_view name, std::string& flag) {
    const JsonValue* field = find(name);
    if (field == nullptr) return {};
    if (!field->is(Kind::kArray)) return refuse(name, *field, "an array of token ids");
    std::string list;
    for (const JsonValue& item : field->items) {
      int32_t id = 0;
      if (!item.is(Kind::kNumber) || !parse_number(item.text, id)) {
        return refuse(name, item, "token ids only");
      }
      list += item.text + " ";
    }
    if (flag.empty()) flag = std::move(list);
    return {};
  }

  Status logit_bias(std::vector<std::string>& flag) {
    const JsonValue* field = find("logit_bias");
    if (field == nullptr) return {};
    if (!field->is(Kind::kObject)) return refuse("logit_bias", *field, "an object");
    std::vector<std::string> biases;
    for (size_t i = 0; i < field->items.size(); ++i) {
      const JsonValue& bias = field->items[i];
      int32_t id = 0;
      double number = 0;
      if (!parse_number(field->keys[i], id) || !bias.is(Kind::kNumber) ||
          !parse_number(bias.text, number)) {
        return refuse(format("logit_bias.", field->keys[i]), bias, "a token id and a number");
      }
      biases.push_back(field->keys[i] + "=" + bias.text);
    }
    if (flag.empty()) flag = std::move(biases);
    return {};
  }

  // The API turns log-probabilities on with one field and says with another how many.
  Status logprobs(std::optional<int64_t>& flag) {
    bool is_wanted = false;
    RETURN_IF_ERROR(boolean("logprobs", is_wanted));
    std::optional<int64_t> count;
    RETURN_IF_ERROR(number("top_logprobs", count));
    if (count && !is_wanted) {
      return Error{Code::kInvalidArgument, "top_logprobs: needs \"logprobs\": true"};
    }
    if (is_wanted && !flag) flag = count.value_or(0);
    return {};
  }

  // Every given field that nobody has read, in the order of the request.
  std::vector<std::string> rest() const {
    std::vector<std::string> rest;
    for (size_t i = 0; i < request_.keys.size(); ++i) {
      const std::string& name = request_.keys[i];
      const auto is_in = [&](const auto& names) {
        return std::find(std::begin(names), std::end(names), name) != std::end(names);
      };
      if (request_.items[i].is(Kind::kNull) || is_in(kPromptFields) || is_in(seen_)) continue;
      rest.push_back(name);
    }
    return rest;
  }

 private:
  const JsonValue* find(std::string_view name) {
    seen_.push_back(name);
    const JsonValue* field = request_.find(name);
    return field == nullptr || field->is(Kind::kNull) ? nullptr : field;
  }

  static Error refuse(std::string_view name, const JsonValue& found, std::string_view expected) {
    return {Code::kInvalidArgument,
            format(name, ": found ", shown(found), ", expected ", expected)};
  }

  const JsonValue& request_;
  std::vector<std::string_view> seen_;
};

}  // namespace

Result<std::vector<std::string>> add_request_sampling(const JsonValue& request,
                                                      GenerateOptions& options) {
  Fields fields(request);
  SamplingFlags& flags = options.sampling;
  RETURN_IF_ERROR(fields.number("temperature", flags.temperature));
  RETURN_IF_ERROR(fields.number("top_k", flags.top_k));
  RETURN_IF_ERROR(fields.number("top_p", flags.top_p));
  RETURN_IF_ERROR(fields.number("min_p", flags.min_p));
  RETURN_IF_ERROR(fields.number("presence_penalty", flags.presence_penalty));
  RETURN_IF_ERROR(fields.number("frequency_penalty", flags.frequency_penalty));
  RETURN_IF_ERROR(fields.number("repetition_penalty", flags.repetition_penalty));
  RETURN_IF_ERROR(fields.logit_bias(flags.logit_bias));
  RETURN_IF_ERROR(fields.token_ids("allowed_token_ids", flags.allowed_token_ids));
  RETURN_IF_ERROR(fields.texts("bad_words", flags.bad_words));
  RETURN_IF_ERROR(fields.number("seed", flags.seed));
  RETURN_IF_ERROR(fields.texts("stop", flags.stop));
  RETURN_IF_ERROR(fields.token_ids("stop_token_ids", flags.stop_token_ids));
  RETURN_IF_ERROR(fields.boolean("include_stop_str_in_output", flags.include_stop));
  RETURN_IF_ERROR(fields.boolean("ignore_eos", flags.ignore_eos));
  RETURN_IF_ERROR(fields.number("min_tokens", flags.min_tokens));
  RETURN_IF_ERROR(fields.number("max_completion_tokens", flags.max_tokens));
  RETURN_IF_ERROR(fields.number("max_tokens", flags.max_tokens));
  RETURN_IF_ERROR(fields.logprobs(flags.logprobs));
  RETURN_IF_ERROR(fields.number("prompt_logprobs", flags.prompt_logprobs));
  RETURN_IF_ERROR(fields.number("n", options.num_choices));
  if (const std::optional<int64_t> n = options.num_choices; n && (*n < 1 || *n > kMaxChoices)) {
    return Error{Code::kInvalidArgument, format("n: found ", *n, ", expected 1 to ", kMaxChoices)};
  }

  std::vector<std::string> warnings;
  std::string ignored;
  for (const std::string& name : fields.rest()) ignored += (ignored.empty() ? "" : ", ") + name;
  if (!ignored.empty()) warnings.push_back("ignored: " + ignored);
  const JsonValue* response_format = request.find("response_format");
  const JsonValue* type = response_format == nullptr ? nullptr : response_format->find("type");
  if (type != nullptr && type->text != "text") {
    warnings.push_back("response_format: the prompt asks for it, nothing enforces it");
  }
  return warnings;
}

}  // namespace millrace
