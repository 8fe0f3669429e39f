#pragma once

// What whole answers and streamed ones have in common.

#include <cstdint>
#include <string>
#include <vector>

#include "chat/json_writer.h"
#include "llm/llm.h"
#include "openai/completion_response.h"

namespace millrace::openai {

// What stands in front of the choices: ids, model and the like.
void write_head(Endpoint endpoint, bool is_chunk, const ResponseContext& context, JsonWriter& json);

struct Usage {
  int64_t num_prompt_tokens = 0, num_output_tokens = 0, num_reasoning_tokens = 0;
};
void write_usage(const Usage& usage, JsonWriter& json);
int64_t num_tokens(const std::vector<Prompt>& prompts);

// A function of the response, so that it is the same however often the response is made.
std::string call_id(const ResponseContext& context, int64_t choice_idx, size_t call_idx);

// The members finish_reason and stop_reason of a choice that has ended.
void write_finish(const std::string& finish_reason, const StopReason& stop_reason,
                  JsonWriter& json);

}  // namespace millrace::openai
