#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

// Puts the flags of a file in the place of `serve --config FILE`: a JSON object whose keys are names of
// flags, {"port": 8001, "api-key": ["a", "b"], "log-json": true}. Flags that the command line gives
// itself win over those of the file.
Result<std::vector<std::string>> expand_config(const std::vector<std::string>& arguments);

}  // namespace millrace
