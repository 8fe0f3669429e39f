#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace millrace {

// From bytes to tokens without a tokenizer: some tokens that have these bytes, always the same ones,
// which need not be those that the tokenizer would choose. The table must outlive it.
class TokenLookup {
 public:
  enum class Literals { kAreTokens, kAreBytes };  // literals of added tokens

  explicit TokenLookup(const TokenTable& tokens);

  // The longest token at each byte, from the first on. Names the byte that begins no token.
  Result<std::vector<int32_t>> encode(std::string_view bytes, Literals literals) const;

 private:
  // The longest ones are indentation and words: what is longer is put together.
  static constexpr size_t kMaxTokenBytes = 64;

  struct Tokens {
    std::unordered_map<std::string_view, int32_t> by_bytes;  // of equal ones, the lowest id
    std::vector<size_t> sizes;                               // that occur, longest first
    std::array<bool, 256> is_first_byte = {};

    void add(std::string_view bytes, int32_t id);
    void sort_sizes();
    // The longest one that `bytes` begins with.
    const std::pair<const std::string_view, int32_t>* find(std::string_view bytes) const;
  };

  Tokens plain_, added_;
};

}  // namespace millrace
