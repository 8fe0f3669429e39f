#pragma once

// The files that a command's flags name.

#include <initializer_list>
#include <string>

#include "base/status.h"

namespace millrace {

// Whether writing one would write the other: the same regular file by another name, through links,
// or two names of what is not there yet.
bool is_same_file(const std::string& a, const std::string& b);

struct NamedFile {
  const char* flag;
  std::string path;  // empty: not given; "-": stdin of an input, stdout of an output
};

// Refuses an output that is also an input or another output: one would destroy the other.
Status check_apart(std::initializer_list<NamedFile> inputs,
                   std::initializer_list<NamedFile> outputs);

}  // namespace millrace
