#pragma once

#include <string>
#include <string_view>

namespace millrace {

// The digest in hexadecimal. For recognising files, not for hot paths.
std::string sha256(std::string_view bytes);

}  // namespace millrace
