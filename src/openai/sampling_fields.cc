#include "openai/sampling_fields.h"

#include <algorithm>

#include "base/format.h"
#include "llm/llm.h"
#include "request/request.h"

namespace millrace::openai {
namespace {

using Kind = JsonValue::Kind;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

Status read(const JsonNode& node, double& value) {
  ASSIGN_OR_RETURN(const std::optional<double> number, read_number<double>(node));
  value = number.value_or(value);
  return {};
}

// `least`, `most`: what any vocabulary and any context allow; validate() knows more.
template <class T>
Status read_integer(const JsonNode& node, T least, T most, T& value) {
  ASSIGN_OR_RETURN(const std::optional<T> number, read_number<T>(node, least, most));
  value = number.value_or(value);
  return {};
}

Status read_max_tokens(const JsonNode& node, int64_t least, std::optional<int64_t>& value) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> number, read_number<int64_t>(node, least));
  if (number) value = number;
  return {};
}

Status read(const JsonNode& node, bool& value) {
  ASSIGN_OR_RETURN(value, read_bool(node, value));
  return {};
}

// One string, or several.
Status read(const JsonNode& node, std::vector<std::string>& value) {
  if (!node.given()) return {};
  if (node.is(Kind::kString)) {
    value = {node.value->text};
    return {};
  }
  if (!node.is(Kind::kArray)) return refuse(node, "a string or an array of strings");
  value.clear();
  for (size_t i = 0; i < node.value->items.size(); ++i) {
    if (!node.at(i).is(Kind::kString)) return refuse(node.at(i), "a string");
    value.push_back(node.value->items[i].text);
  }
  return {};
}

Status read(const JsonNode& node, std::vector<int32_t>& value) {
  if (!node.given()) return {};
  ASSIGN_OR_RETURN(value, read_token_ids(node));
  return {};
}

Status read_logit_bias(const JsonNode& node, std::vector<std::pair<int32_t, double>>& biases) {
  if (!node.given()) return {};
  RETURN_IF_ERROR(expect_object(node));
  biases.clear();
  for (size_t i = 0; i < node.value->items.size(); ++i) {
    const std::string& key = node.value->keys[i];
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || key.empty()) {
      return refuse_reason(node, format("found key ", key, ", expected token ids as keys"));
    }
    const JsonNode bias{&node.value->items[i], format(node.path, '.', key)};
    ASSIGN_OR_RETURN(const std::optional<double> number, read_number<double>(bias));
    if (!number) return refuse(bias, "a number");
    biases.emplace_back(id, std::clamp(*number, -kMaxLogitBias, kMaxLogitBias));
  }
  return {};
}

// Any 64 bits: a negative seed is the number with the same bits.
Status read_seed(const JsonNode& node, std::optional<uint64_t>& seed) {
  if (!node.given()) return {};
  if (const Result<std::optional<int64_t>> number = read_number<int64_t>(node);
      number.has_value()) {
    seed = uint64_t(*number.value());
    return {};
  }
  const Result<std::optional<uint64_t>> number = read_number<uint64_t>(node);
  if (!number.has_value()) return refuse(node, kSeedRange);
  seed = number.value();
  return {};
}

}  // namespace

std::vector<std::string> Fields::rest() const {
  std::vector<std::string> rest;
  for (size_t i = 0; i < body_.keys.size(); ++i) {
    if (body_.items[i].is(Kind::kNull)) continue;
    if (std::find(seen_.begin(), seen_.end(), body_.keys[i]) == seen_.end()) {
      rest.push_back(body_.keys[i]);
    }
  }
  return rest;
}

SamplingParams in_tokens(SamplingFields sampling, const Tokenizer& tokenizer) {
  for (const std::string& word : sampling.bad_words) {
    add_bad_word(tokenizer, word, sampling.params);
  }
  return std::move(sampling.params);
}

Result<std::vector<int32_t>> read_token_ids(const JsonNode& node) {
  constexpr std::string_view kExpected = "a token id";  // the vocabulary is not known here
  if (!node.is(Kind::kArray)) return refuse(node, "an array of token ids");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < node.value->items.size(); ++i) {
    const Result<std::optional<int32_t>> id = read_number<int32_t>(node.at(i));
    if (!id.has_value() || !id.value()) return refuse(node.at(i), kExpected);
    ids.push_back(*id.value());
  }
  return ids;
}

Result<std::optional<int64_t>> read_logprobs(const JsonNode& node, int64_t most) {
  if (most == -1) return read_number<int64_t>(node, -1);
  return read_number<int64_t>(node, 0, most);
}

Status read_sampling(Fields& fields, SamplingFields& sampling, const SamplingLimits& limits) {
  SamplingParams& params = sampling.params;
  RETURN_IF_ERROR(read(fields.at("temperature"), params.temperature));
  RETURN_IF_ERROR(read_integer<int64_t>(fields.at("top_k"), -1, kMost, params.top_k));
  RETURN_IF_ERROR(read(fields.at("top_p"), params.top_p));
  RETURN_IF_ERROR(read(fields.at("min_p"), params.min_p));
  RETURN_IF_ERROR(read(fields.at("presence_penalty"), params.presence_penalty));
  RETURN_IF_ERROR(read(fields.at("frequency_penalty"), params.frequency_penalty));
  RETURN_IF_ERROR(read(fields.at("repetition_penalty"), params.repetition_penalty));
  RETURN_IF_ERROR(read_logit_bias(fields.at("logit_bias"), params.logit_bias));
  const JsonNode allowed = fields.at("allowed_token_ids");
  RETURN_IF_ERROR(read(allowed, params.allowed_token_ids));
  if (allowed.given() && params.allowed_token_ids.empty()) {
    return refuse(allowed, "at least one token id");
  }
  const JsonNode bad_words = fields.at("bad_words");
  RETURN_IF_ERROR(read(bad_words, sampling.bad_words));
  for (const std::string& word : sampling.bad_words) {
    if (word.empty()) return refuse(bad_words, "words of at least one character");
  }
  RETURN_IF_ERROR(read_seed(fields.at("seed"), params.seed));
  RETURN_IF_ERROR(read(fields.at("stop"), params.stop));
  RETURN_IF_ERROR(read(fields.at("stop_token_ids"), params.stop_token_ids));
  RETURN_IF_ERROR(read(fields.at("include_stop_str_in_output"), params.include_stop_str_in_output));
  RETURN_IF_ERROR(read(fields.at("ignore_eos"), params.ignore_eos));
  RETURN_IF_ERROR(read(fields.at("skip_special_tokens"), params.skip_special_tokens));
  RETURN_IF_ERROR(read_integer<int64_t>(fields.at("min_tokens"), 0, kMost, params.min_tokens));
  RETURN_IF_ERROR(
      read_max_tokens(fields.at("max_tokens"), limits.least_max_tokens, params.max_tokens));
  ASSIGN_OR_RETURN(const std::optional<int64_t> prompt_logprobs,
                   read_logprobs(fields.at("prompt_logprobs"), limits.max_logprobs));
  if (prompt_logprobs) params.prompt_logprobs = prompt_logprobs;
  return read_integer<int32_t>(fields.at("n"), 1, kMaxChoices, sampling.num_choices);
}

Status read_max_completion_tokens(Fields& fields, SamplingParams& params,
                                  const SamplingLimits& limits) {
  return read_max_tokens(fields.at("max_completion_tokens"), limits.least_max_tokens,
                         params.max_tokens);
}

Result<std::optional<int64_t>> read_chat_logprobs(Fields& fields, const SamplingLimits& limits) {
  const JsonNode wanted = fields.at("logprobs"), top = fields.at("top_logprobs");
  ASSIGN_OR_RETURN(const bool is_wanted, read_bool(wanted, false));
  ASSIGN_OR_RETURN(const std::optional<int64_t> count, read_logprobs(top, limits.max_logprobs));
  if (count && *count != 0 && !is_wanted) return refuse_reason(top, "needs \"logprobs\": true");
  return is_wanted ? std::optional(count.value_or(0)) : std::nullopt;
}

Status read_chat_sampling(Fields& fields, SamplingFields& sampling) {
  RETURN_IF_ERROR(read_sampling(fields, sampling));
  RETURN_IF_ERROR(read_max_completion_tokens(fields, sampling.params));
  ASSIGN_OR_RETURN(sampling.params.logprobs, read_chat_logprobs(fields));
  return {};
}

Result<ChatSampling> read_chat_sampling(const JsonValue& body, const Llm& llm) {
  Fields fields(body);
  SamplingFields sampling;
  sampling.params = llm.default_sampling();
  RETURN_IF_ERROR(read_chat_sampling(fields, sampling));
  const int32_t num_choices = sampling.num_choices;
  return ChatSampling{in_tokens(std::move(sampling), llm.tokenizer()), num_choices};
}

}  // namespace millrace::openai
