#pragma once

// Compressed token ids of the Engram memory: tokens that differ only in case, accents, width or
// white space share one id, so that their n-grams share table rows.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace millrace {

struct TokenMap {
  std::vector<int32_t> compressed_ids;  // [vocab_size], by token id
  int32_t compressed_vocab_size = 0;
};

TokenMap make_token_map(const Tokenizer& tokenizer);

// What tokens with well-formed text are compared by; empty if nothing is left of it. Exposed for
// tests. Requires: `text` is UTF-8.
std::string engram_key(std::string_view text);

}  // namespace millrace
