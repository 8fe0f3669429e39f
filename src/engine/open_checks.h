#pragma once

// What every engine looks at before it opens.

#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "model_config/model_config.h"

namespace millrace {

Status validate(const EngineOptions& options);

// Whether the length that was asked for is one of the checkpoint's.
Status check_max_model_len(const EngineOptions& options, const ModelConfig& config);

// Every id of the vocabulary gets an entry, also those that the tokenizer does not know.
Status complete(const ModelConfig& config, TokenTable& tokens);

}  // namespace millrace
