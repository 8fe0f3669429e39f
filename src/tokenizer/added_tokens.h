#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Finds the literals of added tokens in text, leftmost first and the longest of those that start
// at one place.
class AddedTokenFinder {
 public:
  struct Token {
    std::string literal;
    int32_t id;
  };
  struct Match {
    size_t begin, end;
    int32_t id;
  };

  explicit AddedTokenFinder(std::vector<Token> tokens);  // requires: no literal is empty

  // The first match that starts at or after `from`.
  std::optional<Match> find(std::string_view text, size_t from) const;

  std::optional<int32_t> id_of(std::string_view literal) const;

 private:
  std::vector<Token> tokens_;  // sorted by literal
  // Tokens whose literal starts with a byte b are tokens_[by_first_byte_[b], ..[b + 1]).
  std::array<size_t, 257> by_first_byte_{};
  std::array<bool, 256> is_first_{};  // whether there are any
};

}  // namespace millrace
