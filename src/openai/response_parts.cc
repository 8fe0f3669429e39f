#include "openai/response_parts.h"

#include "base/format.h"
#include "base/sha256.h"
#include "tokenizer/detokenizer.h"

namespace millrace::openai {

void write_head(Endpoint endpoint, bool is_chunk, const ResponseContext& context,
                JsonWriter& json) {
  json.begin_object();
  if (endpoint == Endpoint::kGenerate) {
    json.member("request_id", context.id).member("model", context.model);
    return;
  }
  const bool is_chat = endpoint == Endpoint::kChatCompletions;
  json.member("id", (is_chat ? "chatcmpl-" : "cmpl-") + context.id);
  json.member("object", !is_chat   ? "text_completion"
                        : is_chunk ? "chat.completion.chunk"
                                   : "chat.completion");
  json.member("created", context.created).member("model", context.model);
}

void write_usage(const Usage& usage, JsonWriter& json) {
  json.begin_object().member("prompt_tokens", usage.num_prompt_tokens);
  json.member("completion_tokens", usage.num_output_tokens);
  json.member("total_tokens", usage.num_prompt_tokens + usage.num_output_tokens);
  json.key("prompt_tokens_details").begin_object().member("cached_tokens", 0).end_object();
  json.key("completion_tokens_details").begin_object();
  json.member("reasoning_tokens", usage.num_reasoning_tokens).end_object();
  json.member("prompt_cache_hit_tokens", 0);
  json.member("prompt_cache_miss_tokens", usage.num_prompt_tokens).end_object();
}

int64_t num_tokens(const std::vector<Prompt>& prompts) {
  int64_t count = 0;
  for (const Prompt& prompt : prompts) count += int64_t(prompt.token_ids.size());
  return count;
}

std::string call_id(const ResponseContext& context, int64_t choice_idx, size_t call_idx) {
  return "call_" + sha256(format(context.id, ' ', choice_idx, ' ', call_idx)).substr(0, 24);
}

void write_finish(const std::string& finish_reason, const StopReason& stop_reason,
                  JsonWriter& json) {
  // A request that ran out of time was given up by the server.
  json.member("finish_reason", finish_reason == "timeout" ? "abort" : finish_reason);
  json.key("stop_reason");
  if (const auto* id = std::get_if<int32_t>(&stop_reason)) {
    json.value(*id);
  } else if (const auto* text = std::get_if<std::string>(&stop_reason)) {
    json.value(to_utf8(*text));
  } else {
    json.null();
  }
}

}  // namespace millrace::openai
