#pragma once

#include <string>

#include "model_config/model_config.h"

namespace millrace {

// The config.json of a complete config, in the released form: parse_model_config() reads the same
// config from it. What a ModelConfig does not hold is written as the release has it.
std::string config_json(const ModelConfig& config);

}  // namespace millrace
