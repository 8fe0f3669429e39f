#include "tokenizer/splitter.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "tokenizer/utf8.h"

namespace millrace {
namespace {

constexpr bool is_newline(char32_t c) { return c == '\r' || c == '\n'; }
constexpr bool is_ascii_letter(char32_t c) { return (c | 0x20) - 'a' < 26; }
bool is_letter_or_mark(CharClass c) { return c == CharClass::kLetter || c == CharClass::kMark; }
bool is_punctuation(CharClass c) { return c == CharClass::kPunctuation || c == CharClass::kSymbol; }

// What a byte can be in a word of ASCII letters: one of them, or what may stand before the first.
enum WordPart : uint8_t { kNoPart = 0, kLetterPart = 1, kPrefixPart = 2 };

constexpr auto kWordParts = [] {
  std::array<uint8_t, 256> parts{};
  for (char32_t c = 0; c < 0x80; ++c) {
    const bool is_digit = c - '0' < 10;
    parts[c] = is_ascii_letter(c) ? kLetterPart : is_digit || is_newline(c) ? kNoPart : kPrefixPart;
  }
  return parts;
}();

// How many of the 8 bytes at `text` are ASCII letters before one that is not.
size_t num_letters(const char* text) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  uint64_t bytes;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&bytes, text, 8);
  const uint64_t lower = (bytes | 0x20 * kOnes) & 0x7f * kOnes;
  // Top bits of bytes; nothing carries into the next byte.
  const uint64_t from_a = lower + (0x80 - 'a') * kOnes;
  const uint64_t after_z = lower + (0x80 - 'z' - 1) * kOnes;
  const uint64_t others = ~(from_a & ~after_z & ~bytes) & 0x80 * kOnes;
  return size_t(std::countr_zero(others)) / 8;
}

}  // namespace

// Most text is ASCII words, so these have a way of their own: the end of the piece if it is made of
// ASCII letters with what the third split lets stand before them, and if that can be seen 8 bytes
// at a time; otherwise 0.
size_t Splitter::ascii_word_end() const {
  if (rest_.size() < 2) return 0;
  const auto part = [&](size_t at) { return kWordParts[static_cast<unsigned char>(rest_[at])]; };
  if (part(0) != kLetterPart && (part(0) != kPrefixPart || part(1) != kLetterPart)) return 0;
  for (size_t end = 1; end + 8 < rest_.size();) {
    const size_t more = num_letters(rest_.data() + end);
    end += more;
    if (more == 8) continue;
    // Letters and marks beyond ASCII would belong to the word.
    return static_cast<unsigned char>(rest_[end]) < 0x80 ? end : 0;
  }
  return 0;
}

Splitter::Char Splitter::read(size_t at) const {
  if (at >= rest_.size()) return kEnd;
  const auto byte = static_cast<unsigned char>(rest_[at]);
  if (byte < 0x80) return {CharClass(kCharClasses[byte]), false, byte, 1};
  const CodePoint c = front_code_point(rest_.substr(at));
  if (c.value == CodePoint::kInvalid) return {CharClass::kOther, false, c.value, 1};
  constexpr char kLowerCase = 0x20;
  const char letter = char_class_letter(c.value);
  return {CharClass(letter & ~kLowerCase), (letter & kLowerCase) != 0, c.value, c.size};
}

Splitter::Char Splitter::at(size_t at) const {
  const Char c = read(at);
  return c.is_cjk == in_cjk_ ? c : kEnd;
}

template <class Predicate>
size_t Splitter::run_end(size_t begin, Predicate belongs) const {
  for (Char c = at(begin); belongs(c); c = at(begin)) begin += c.size;
  return begin;
}

std::string_view Splitter::next() {
  size_t end = ascii_word_end();
  if (end > 0) {
    const std::string_view piece = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return piece;
  }
  const Char first = read(0);
  in_cjk_ = first.is_cjk;
  end = first.size;
  if (first.cls == CharClass::kNumber) {
    for (int i = 1; i < 3 && at(end).cls == CharClass::kNumber; ++i) end += at(end).size;
  } else {
    end = third_split(first);
  }
  const std::string_view piece = rest_.substr(0, end);
  rest_.remove_prefix(end);
  return piece;
}

// Tries the alternatives in the pattern's order. Every run is taken whole: no alternative has a
// reason to give characters back, except white space.
size_t Splitter::third_split(Char first) const {
  const Char second = at(first.size);
  const auto letters_end = [&](size_t begin) {
    return run_end(begin, [](Char c) { return is_letter_or_mark(c.cls); });
  };
  if (is_punctuation(first.cls) && first.value < 0x80 && is_ascii_letter(second.value)) {
    return run_end(first.size, [](Char c) { return is_ascii_letter(c.value); });
  }
  if (is_letter_or_mark(first.cls)) return letters_end(first.size);
  if (is_letter_or_mark(second.cls) && !is_punctuation(first.cls) && !is_newline(first.value)) {
    return letters_end(first.size);
  }
  if (is_punctuation(first.cls) || (first.value == ' ' && is_punctuation(second.cls))) {
    const size_t end = run_end(first.size, [](Char c) { return is_punctuation(c.cls); });
    return run_end(end, [](Char c) { return is_newline(c.value); });
  }
  if (first.cls == CharClass::kSpace) return white_space(first);
  // No alternative starts here: a gap, up to where one does.
  size_t end = first.size;
  for (Char c = second; c.cls == CharClass::kOther; c = at(end)) {
    if (is_letter_or_mark(at(end + c.size).cls)) break;
    end += c.size;
  }
  return end;
}

// A run of white space ends after its last newline if it has one; at the end of the text it is
// taken whole; otherwise its last character is left to the word that follows.
size_t Splitter::white_space(Char first) const {
  size_t end = 0, last_begin = 0, after_newline = 0;
  Char c = first;
  for (; c.cls == CharClass::kSpace; c = at(end)) {
    last_begin = end;
    end += c.size;
    if (is_newline(c.value)) after_newline = end;
  }
  if (after_newline != 0) return after_newline;
  return c.cls == CharClass::kNumber || last_begin == 0 ? end : last_begin;
}

}  // namespace millrace
