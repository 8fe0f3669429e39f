#pragma once

// Tokenizers whose Engram token map is known from elsewhere. The map follows from Unicode tables of
// a certain age; for a model that was trained with it, "nearly the same map" reads other rows of
// memory and only answers a little worse, which no other check would notice.

#include <span>
#include <string_view>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace millrace {

struct PublishedTokenizer {
  size_t num_bytes;                   // of tokenizer.json
  std::string_view sha256_begin;      // of tokenizer.json
  std::string_view token_map_sha256;  // of the compressed ids as little-endian int32
};

inline constexpr PublishedTokenizer kPublishedTokenizers[] = {
    // DeepSeek-V4.1-Flash
    {6'367'257, "c90dfa01", "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"},
};

// Refuses the tokenizer of a published file whose token map is not the published one. Any other
// file passes.
Status check_published_token_map(
    std::string_view tokenizer_json, const Tokenizer& tokenizer,
    std::span<const PublishedTokenizer> published = kPublishedTokenizers);

}  // namespace millrace
