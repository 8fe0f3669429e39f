#pragma once

// The sampling fields of a Chat Completions request, as if they had been flags.

#include <string>
#include <vector>

#include "base/status.h"
#include "chat/json.h"
#include "commands.h"

namespace millrace {

// Takes from `request`, an object, what the flags left out, under the names of the OpenAI API and
// of vLLM. Errors name the field. Returns warnings of fields that do less than they say.
Result<std::vector<std::string>> add_request_sampling(const JsonValue& request,
                                                      GenerateOptions& options);

}  // namespace millrace
