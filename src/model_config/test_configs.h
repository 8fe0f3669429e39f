#pragma once

// Configurations of tests: read from the tree.

#include <fstream>
#include <sstream>
#include <string>

#include "model_config/model_config.h"

namespace millrace::test {

// `path` is from the root of the tree.
inline std::string read_text(const std::string& path) {
  std::ifstream in(MILLRACE_SOURCE_DIR "/" + path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline ModelConfig read_config(const std::string& path) {
  return parse_model_config(read_text(path)).value();
}

inline ModelConfig released_config() {
  return read_config("tests/golden/config-v4.1-flash.json");
}

}  // namespace millrace::test
