#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "request/sampling_params.h"

namespace millrace {

// What a checkpoint's generation_config.json recommends.
struct GenerationConfig {
  SamplingParams sampling;             // defaults where the file says nothing
  std::vector<int32_t> eos_token_ids;  // empty: config.json decides
};

// Reads temperature, top_k, top_p, min_p, repetition_penalty and eos_token_id (a number or a list);
// other keys are ignored. Messages name the key, what was found and what was expected.
Result<GenerationConfig> parse_generation_config(std::string_view json, int64_t vocab_size);

}  // namespace millrace
