#pragma once

#include <string>
#include <string_view>

namespace millrace {

// The text that prompts are cut from where nobody names another: documentation and headers of this
// repository, as they were when the program was built. In a file that the build makes.
std::string_view built_in_corpus();

}  // namespace millrace
