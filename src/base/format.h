#pragma once

#include <sstream>
#include <string>

namespace millrace {

// "layer ", 7, ": found ", n  ->  one string. For messages, not for hot paths.
template <class... Parts>
std::string format(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace millrace
