#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {

AddedTokenFinder::AddedTokenFinder(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, {}, &Token::literal);
  for (const Token& t : tokens_) {
    MR_CHECK(!t.literal.empty());
    ++by_first_byte_[static_cast<unsigned char>(t.literal[0]) + 1];
    is_first_[static_cast<unsigned char>(t.literal[0])] = true;
  }
  for (size_t b = 0; b < 256; ++b) by_first_byte_[b + 1] += by_first_byte_[b];
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                              size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    const auto first_byte = static_cast<unsigned char>(text[begin]);
    if (!is_first_[first_byte]) continue;
    size_t low = by_first_byte_[first_byte], high = by_first_byte_[first_byte + 1];
    std::optional<Match> longest;
    // [low, high) are the tokens that agree with the text so far; in sorted order the one that
    // ends here, if any, is the first of them.
    for (size_t length = 1; low < high; ++length) {
      if (tokens_[low].literal.size() == length) {
        longest = Match{begin, begin + length, tokens_[low++].id};
      }
      if (begin + length == text.size()) break;
      const auto at_length = [length](const Token& t) {
        return static_cast<unsigned char>(t.literal[length]);
      };
      const auto next_byte = static_cast<unsigned char>(text[begin + length]);
      const auto begin_it = tokens_.begin() + low, end_it = tokens_.begin() + high;
      low = std::ranges::lower_bound(begin_it, end_it, next_byte, {}, at_length) - tokens_.begin();
      high = std::ranges::upper_bound(begin_it, end_it, next_byte, {}, at_length) - tokens_.begin();
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

std::optional<int32_t> AddedTokenFinder::id_of(std::string_view literal) const {
  const auto it = std::ranges::lower_bound(tokens_, literal, {}, &Token::literal);
  if (it == tokens_.end() || it->literal != literal) return std::nullopt;
  return it->id;
}

}  // namespace millrace
