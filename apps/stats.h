#pragma once

#include <cstdint>
#include <string>

#include "llm/llm.h"

namespace millrace {

double prefill_tokens_per_s(const Answer& answer);
double decode_tokens_per_s(const Answer& answer);  // the first token comes with the prompt

// One line for people on what bringing experts has cost since the start; empty: they are mapped.
std::string expert_stats_line(const EngineInfo& info, const ExpertReads& reads);
double hit_rate(const ExpertReads& reads);

// One line for people: tokens, speeds, why it ended, the seed.
std::string stats_line(const Answer& answer);

}  // namespace millrace
