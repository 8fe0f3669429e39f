#include "tokenizer/token_map.h"

#include <unordered_map>

#include "base/check.h"
#include "tokenizer/normalize.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode_tables.h"
#include "tokenizer/utf8.h"

namespace millrace {
namespace {

bool is_white_space(char32_t c) { return CharClass(char_class_letter(c)) == CharClass::kSpace; }
bool is_blank(char32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    const CodePoint c = front_code_point(text);
    MR_CHECK(c.value != CodePoint::kInvalid);
    out += c.value;
    text.remove_prefix(c.size);
  }
  return out;
}

// Stands for a text that is one space while white space is stripped from the others. Outside that
// case it is an ordinary character, and becomes a space as well.
constexpr char32_t kLoneSpace = 0xe000;

}  // namespace

std::string engram_key(std::string_view text) {
  const std::u32string nfkc = normalize(to_code_points(text), Normalization::kNfkc);
  std::u32string folded;
  for (char32_t c : normalize(nfkc, Normalization::kNfd)) {
    if (!is_mark(c)) append_lower_case(c, folded);
  }
  std::u32string spaced;  // every run of blanks is one space
  for (char32_t c : folded) {
    if (!is_blank(c)) {
      spaced += c;
    } else if (spaced.empty() || spaced.back() != ' ') {
      spaced += ' ';
    }
  }
  if (spaced == U" ") spaced = kLoneSpace;
  size_t begin = 0, end = spaced.size();
  while (begin < end && is_white_space(spaced[begin])) ++begin;
  while (begin < end && is_white_space(spaced[end - 1])) --end;
  std::string key;
  for (char32_t c : spaced.substr(begin, end - begin)) append_utf8(c == kLoneSpace ? ' ' : c, key);
  return key;
}

TokenMap make_token_map(const Tokenizer& tokenizer) {
  TokenMap map;
  std::unordered_map<std::string, int32_t> seen;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string text = tokenizer.decode({{id}});
    std::string key;
    if (text.find("\xef\xbf\xbd") != text.npos && !tokenizer.is_added(id)) {
      // Not text on its own: the spelling in the vocabulary.
      for (char byte : tokenizer.token_bytes(id)) {
        append_utf8(byte_level_character(static_cast<unsigned char>(byte)), key);
      }
    } else {
      key = engram_key(text);
      if (key.empty()) key = text;
    }
    const auto [it, is_new] = seen.emplace(std::move(key), map.compressed_vocab_size);
    if (is_new) ++map.compressed_vocab_size;
    map.compressed_ids.push_back(it->second);
  }
  return map;
}

}  // namespace millrace
