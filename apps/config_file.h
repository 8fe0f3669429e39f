#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

// Puts the flags of a file in the place of `serve --config FILE`: a JSON object whose keys are
// names of flags, {"port": 8001, "api-key": ["a", "b"], "log-json": true}. Flags that the command
// line gives itself, by any of their names, win over those of the file.
struct ExpandedArguments {
  std::vector<std::string> arguments;
  std::vector<std::string> files;
  // By the first name of a flag: the file that gave it.
  std::map<std::string, std::string> file_of;
};
struct FlagInfo {
  bool is_switch = false;
  std::vector<std::string> names;  // "--uds", "--unix-socket", "-u"; the first is that of messages
};
//   info_of  of a flag by any of its names, or none
Result<ExpandedArguments> expand_config(
    const std::vector<std::string>& arguments,
    const std::function<std::optional<FlagInfo>(const std::string& flag)>& info_of);

}  // namespace millrace
