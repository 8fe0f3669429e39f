#include "openai/completion_request.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <span>

#include "base/format.h"
#include "chat/request_parser.h"
#include "request/request.h"

namespace millrace::openai {
namespace {

using Kind = JsonValue::Kind;

constexpr int64_t kDefaultMaxTokens = 16;  // of completions, as the API has it
constexpr size_t kMaxPrompts = 4096;       // in one request

// Known to clients, not to us: with any of these switched on the answer would not be what was
// asked for.
struct Unsupported {
  std::string_view name, reason;
};
constexpr Unsupported kUnsupported[] = {
    {"structured_outputs", "nothing constrains the output yet"},
    {"guided_json", "nothing constrains the output yet"},
    {"guided_regex", "nothing constrains the output yet"},
    {"guided_choice", "nothing constrains the output yet"},
    {"guided_grammar", "nothing constrains the output yet"},
    {"repetition_detection", "not supported"},
    {"kv_transfer_params", "this engine takes no state from others"},
    {"use_beam_search", "not supported"},
    {"early_stopping", "belongs to beam search, which is not supported"},
};
constexpr Unsupported kUnsupportedInChat[] = {
    {"documents", "the model's encoding has no place for documents"},
    {"chat_template", "the model's encoding is built in"},
    {"functions", "not supported; use tools"},
    {"function_call", "not supported; use tool_choice"},
    {"web_search_options", "not supported"},
    {"audio", "the model makes text only"},
    {"echo", "not supported; continue_final_message continues a reply"},
};
constexpr Unsupported kUnsupportedInCompletions[] = {
    {"suffix", "the model is not asked to fill in the middle yet"},
};

Error unsupported(const JsonNode& node, std::string_view reason) {
  return {Code::kUnimplemented, refuse_reason(node, reason).message};
}

bool is_switched_off(const JsonNode& node) {
  return !node.given() || (node.is(Kind::kBool) && !node.value->boolean);
}

Status refuse_unsupported(Fields& fields, std::span<const Unsupported> list) {
  for (const Unsupported& field : list) {
    const JsonNode node = fields.at(field.name);
    if (!is_switched_off(node)) return unsupported(node, field.reason);
  }
  return {};
}

Status read_stream(Fields& fields, CompletionRequest& request) {
  ASSIGN_OR_RETURN(request.stream, read_bool(fields.at("stream"), false));
  const JsonNode options = fields.at("stream_options");
  if (!options.given()) return {};
  RETURN_IF_ERROR(expect_object(options));
  if (!request.stream) return refuse_reason(options, "needs \"stream\": true");
  ASSIGN_OR_RETURN(request.include_usage, read_bool(options.at("include_usage"), false));
  ASSIGN_OR_RETURN(request.continuous_usage_stats,
                   read_bool(options.at("continuous_usage_stats"), false));
  return {};
}

Status read_truncation(Fields& fields, CompletionRequest& request) {
  const JsonNode count = fields.at("truncate_prompt_tokens"), side = fields.at("truncation_side");
  const Result<std::optional<int64_t>> wanted = read_number<int64_t>(count, -1);
  if (!wanted.has_value() || wanted.value() == 0) {
    return refuse(count, "-1 or an integer of at least 1");
  }
  request.truncate_prompt_tokens = wanted.value();
  if (side.given() && !side.is_text("left") && !side.is_text("right")) {
    return refuse(side, "left or right");
  }
  request.truncate_right = side.is_text("right");
  return {};
}

// What both APIs have.
Status read_common(Fields& fields, const SamplingLimits& limits, CompletionRequest& request) {
  RETURN_IF_ERROR(refuse_unsupported(fields, kUnsupported));
  ASSIGN_OR_RETURN(request.model, read_string(fields.at("model")));
  ASSIGN_OR_RETURN(request.request_id, read_string(fields.at("request_id")));
  ASSIGN_OR_RETURN(request.user, read_string(fields.at("user")));
  const JsonNode priority = fields.at("priority");
  ASSIGN_OR_RETURN(const std::optional<int32_t> rank, read_number<int32_t>(priority));
  request.priority = rank.value_or(0);
  RETURN_IF_ERROR(read_sampling(fields, request.sampling, limits));
  const JsonNode budget = fields.at("thinking_token_budget");
  ASSIGN_OR_RETURN(const std::optional<int64_t> tokens, read_number<int64_t>(budget, -1));
  if (tokens && *tokens != -1) {
    return unsupported(budget, "only -1, no limit; reasoning_effort says how much to think");
  }
  const JsonNode salt = fields.at("cache_salt");
  ASSIGN_OR_RETURN(const std::string salt_text, read_string(salt));
  if (salt.given() && salt_text.empty()) return refuse(salt, "at least one character");
  const JsonNode best_of = fields.at("best_of");
  ASSIGN_OR_RETURN(const std::optional<int32_t> best, read_number<int32_t>(best_of, 1));
  if (best && *best > request.sampling.num_choices) {
    return unsupported(best_of, format("only 1 to n, ", request.sampling.num_choices,
                                       ": nothing picks the best of more"));
  }
  const JsonNode length_penalty = fields.at("length_penalty");
  ASSIGN_OR_RETURN(const std::optional<double> penalty, read_number<double>(length_penalty));
  if (penalty && *penalty != 1) {
    return unsupported(length_penalty, "belongs to beam search, which is not supported");
  }
  RETURN_IF_ERROR(read_stream(fields, request));
  if (request.stream && request.sampling.params.prompt_logprobs) {
    return refuse_reason(fields.at("prompt_logprobs"), "not together with \"stream\": true");
  }
  RETURN_IF_ERROR(read_truncation(fields, request));
  ASSIGN_OR_RETURN(request.return_token_ids, read_bool(fields.at("return_token_ids"), false));
  ASSIGN_OR_RETURN(request.return_tokens_as_token_ids,
                   read_bool(fields.at("return_tokens_as_token_ids"), false));
  return {};
}

// `thinking` and the effort as vLLM's clients give them; fields of the request itself win.
Status read_template_kwargs(const JsonNode& kwargs, const JsonValue& body,
                            const ChatParseOptions& options, ChatRequest& chat) {
  if (!kwargs.given()) return {};
  RETURN_IF_ERROR(expect_object(kwargs));
  const bool has_thinking = JsonNode{body.find("thinking"), ""}.given();
  const JsonNode effort{body.find("reasoning_effort"), ""};
  for (const char* name : {"enable_thinking", "thinking"}) {
    ASSIGN_OR_RETURN(const bool thinking, read_bool(kwargs.at(name), chat.thinking));
    if (!has_thinking && !effort.is_text("none")) chat.thinking = thinking;
  }
  const JsonNode level = kwargs.at("reasoning_effort");
  if (!level.given() || effort.given()) return {};
  ASSIGN_OR_RETURN(const std::optional<int> number, read_effort(level, options));
  if (number) {
    chat.reasoning_effort = *number;
  } else {
    chat.thinking = false;
  }
  return {};
}

// As the API has them: parts of 1 to 64 letters, digits, - and _, a namespace before "::".
bool is_tool_name(std::string_view name) {
  constexpr size_t kMaxLength = 64;
  const size_t separator = name.find("::");
  if (separator != name.npos) {
    return is_tool_name(name.substr(0, separator)) && is_tool_name(name.substr(separator + 2));
  }
  return !name.empty() && name.size() <= kMaxLength &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '_' || c == '-';
         });
}

// Calls come back by name, so each has one of its own, and one that clients can pass on.
Status check_tool_names(const JsonNode& tools, const ChatRequest& chat) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < chat.tools.size(); ++i) {
    const JsonNode name = tools.at(i).at("function").at("name");
    if (!is_tool_name(chat.tools[i].name)) {
      return refuse(name, "1 to 64 letters, digits, - or _");
    }
    if (!names.insert(chat.tools[i].name).second) return refuse(name, "a name of its own");
  }
  return {};
}

// A schema that must be kept needs something that constrains the output.
Status refuse_strict_tools(const JsonNode& tools) {
  ASSIGN_OR_RETURN(const std::vector<JsonNode> entries, read_list(tools));
  for (const JsonNode& entry : entries) {
    const JsonNode strict = entry.at("function").at("strict");
    ASSIGN_OR_RETURN(const bool is_strict, read_bool(strict, false));
    if (is_strict) return unsupported(strict, "only false: nothing constrains the output yet");
  }
  return {};
}

Status read_chat(Fields& fields, const JsonValue& body, const RequestLimits& limits,
                 CompletionRequest& request) {
  const SamplingLimits sampling_limits{.least_max_tokens = 1, .max_logprobs = limits.max_logprobs};
  RETURN_IF_ERROR(read_common(fields, sampling_limits, request));
  RETURN_IF_ERROR(refuse_unsupported(fields, kUnsupportedInChat));
  const JsonNode format = fields.at("response_format");
  if (format.given() && !format.at("type").is_text("text")) {
    return unsupported(format, "only {\"type\": \"text\"}: nothing constrains the output yet");
  }
  RETURN_IF_ERROR(refuse_strict_tools(fields.at("tools")));
  ChatParseOptions options;
  options.limits = limits.json;
  ASSIGN_OR_RETURN(request.chat, parse_chat_request(body, options));
  RETURN_IF_ERROR(check_tool_names(fields.at("tools"), request.chat));
  RETURN_IF_ERROR(
      read_template_kwargs(fields.at("chat_template_kwargs"), body, options, request.chat));
  if (request.chat.tool_choice == ToolChoice::kRequired) {
    return unsupported(fields.at("tool_choice"),
                         "only auto and none: nothing constrains the output yet");
  }
  const JsonNode parallel = fields.at("parallel_tool_calls");
  ASSIGN_OR_RETURN(const bool is_parallel, read_bool(parallel, true));
  if (!is_parallel && !request.chat.tools.empty()) {
    return unsupported(parallel, "only true: nothing constrains the output yet");
  }
  SamplingParams& params = request.sampling.params;
  RETURN_IF_ERROR(read_max_completion_tokens(fields, params, sampling_limits));
  ASSIGN_OR_RETURN(request.include_reasoning, read_bool(fields.at("include_reasoning"), true));
  ASSIGN_OR_RETURN(params.logprobs, read_chat_logprobs(fields, sampling_limits));
  return {};
}

// A string, strings, token ids, or lists of those.
Status read_prompts(const JsonNode& node, std::vector<PromptText>& prompts) {
  constexpr std::string_view kExpected =
      "a string, token ids, or a non-empty array of strings or of lists of token ids";
  if (node.is(Kind::kString)) {
    prompts.emplace_back(node.value->text);
    return {};
  }
  if (!node.is(Kind::kArray) || node.value->items.empty()) return refuse(node, kExpected);
  if (node.at(size_t{0}).is(Kind::kNumber)) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, read_token_ids(node));
    prompts.emplace_back(std::move(ids));
    return {};
  }
  if (node.value->items.size() > kMaxPrompts) {
    return refuse(node, format("at most ", kMaxPrompts, " prompts"));
  }
  for (size_t i = 0; i < node.value->items.size(); ++i) {
    const JsonNode item = node.at(i);
    if (item.is(Kind::kString)) {
      prompts.emplace_back(item.value->text);
    } else if (item.is(Kind::kArray) && !item.value->items.empty()) {
      ASSIGN_OR_RETURN(std::vector<int32_t> ids, read_token_ids(item));
      prompts.emplace_back(std::move(ids));
    } else {
      return refuse(item, "a string or a non-empty list of token ids");
    }
  }
  return {};
}

Status read_completions(Fields& fields, const RequestLimits& limits, CompletionRequest& request) {
  ASSIGN_OR_RETURN(request.echo, read_bool(fields.at("echo"), false));
  // With an echo the prompt alone is an answer.
  RETURN_IF_ERROR(read_common(
      fields, {.least_max_tokens = request.echo ? 0 : 1, .max_logprobs = limits.max_logprobs},
      request));
  RETURN_IF_ERROR(refuse_unsupported(fields, kUnsupportedInCompletions));
  const JsonNode format = fields.at("response_format");
  if (format.given() && !format.at("type").is_text("text")) {
    return unsupported(format, "only {\"type\": \"text\"}: nothing constrains the output yet");
  }
  RETURN_IF_ERROR(read_prompts(fields.at("prompt"), request.prompts));
  SamplingParams& params = request.sampling.params;
  if (!params.max_tokens) params.max_tokens = kDefaultMaxTokens;
  ASSIGN_OR_RETURN(request.add_special_tokens, read_bool(fields.at("add_special_tokens"), true));
  ASSIGN_OR_RETURN(params.logprobs, read_logprobs(fields.at("logprobs"), limits.max_logprobs));
  if (request.echo && params.logprobs) params.prompt_logprobs = params.logprobs;
  return {};
}

// The sampling fields stand in an object of their own.
Status read_generate(Fields& fields, const RequestLimits& limits, CompletionRequest& request) {
  ASSIGN_OR_RETURN(request.model, read_string(fields.at("model")));
  ASSIGN_OR_RETURN(request.request_id, read_string(fields.at("request_id")));
  const JsonNode priority = fields.at("priority");
  ASSIGN_OR_RETURN(const std::optional<int32_t> rank, read_number<int32_t>(priority));
  request.priority = rank.value_or(0);
  const JsonNode transfer = fields.at("kv_transfer_params");
  if (!is_switched_off(transfer)) {
    return unsupported(transfer, "this engine takes no state from others");
  }
  const JsonNode ids = fields.at("token_ids");
  if (!ids.is(Kind::kArray) || ids.value->items.empty()) {
    return refuse(ids, "a non-empty array of token ids");
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, read_token_ids(ids));
  request.prompts.emplace_back(std::move(prompt));
  request.return_token_ids = request.return_tokens_as_token_ids = true;

  SamplingParams& params = request.sampling.params;
  const JsonNode sampling = fields.at("sampling_params");
  if (sampling.given()) {
    RETURN_IF_ERROR(expect_object(sampling));
    Fields inner(*sampling.value);
    RETURN_IF_ERROR(refuse_unsupported(inner, kUnsupported));
    RETURN_IF_ERROR(
        read_sampling(inner, request.sampling, {.max_logprobs = limits.max_logprobs}));
    ASSIGN_OR_RETURN(params.logprobs, read_logprobs(inner.at("logprobs"), limits.max_logprobs));
  }
  RETURN_IF_ERROR(read_stream(fields, request));
  if (request.stream && params.prompt_logprobs) {
    return refuse_reason(sampling.at("prompt_logprobs"), "not together with \"stream\": true");
  }
  return {};
}

}  // namespace

Result<CompletionRequest> parse_completion_request(Endpoint endpoint, const JsonValue& body,
                                                   const SamplingParams& defaults,
                                                   const RequestLimits& limits) {
  RETURN_IF_ERROR(expect_object({&body, ""}));
  Fields fields(body);
  CompletionRequest request;
  request.endpoint = endpoint;
  request.sampling.params = defaults;
  switch (endpoint) {
    case Endpoint::kChatCompletions:
      RETURN_IF_ERROR(read_chat(fields, body, limits, request));
      break;
    case Endpoint::kCompletions:
      RETURN_IF_ERROR(read_completions(fields, limits, request));
      break;
    case Endpoint::kGenerate:
      RETURN_IF_ERROR(read_generate(fields, limits, request));
      break;
  }
  return request;
}

}  // namespace millrace::openai
