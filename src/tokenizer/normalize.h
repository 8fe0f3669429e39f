#pragma once

// Text normalisation for the Engram token map, with the Unicode versions of unicode_tables.h.

#include <string>
#include <string_view>

namespace millrace {

enum class Normalization { kNfd, kNfkc };

std::u32string normalize(std::u32string_view text, Normalization form);

bool is_mark(char32_t c);  // Mn, Mc or Me

// Full mapping per character, without the rule for a final sigma.
void append_lower_case(char32_t c, std::u32string& out);

}  // namespace millrace
