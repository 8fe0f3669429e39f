#pragma once

#include <string>

namespace millrace {

// printf, appended: for tables, whose columns format() cannot align.
__attribute__((format(printf, 2, 3))) void append_printf(std::string& out, const char* form, ...);

}  // namespace millrace
