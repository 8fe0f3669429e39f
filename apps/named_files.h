#pragma once

// The files that a command's flags name.

#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

// Whether writing one would write the other: the same regular file by another name, through links,
// or two names of what is not there yet.
bool is_same_file(const std::string& a, const std::string& b);

struct NamedFile {
  const char* flag;
  // Empty: not given. "-": stdin of an input, stdout of an output; flags that take neither refuse
  // it (check_file() in flag_groups.h).
  std::string path;
};

// Refuses an output that is also an input or another output: one would destroy the other.
Status check_apart(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs);

}  // namespace millrace
