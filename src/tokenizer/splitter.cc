#include "tokenizer/splitter.h"

#include "tokenizer/utf8.h"

namespace millrace {
namespace {

bool is_newline(char32_t c) { return c == '\r' || c == '\n'; }
bool is_ascii_letter(char32_t c) { return (c | 0x20) - 'a' < 26; }
bool is_letter_or_mark(CharClass c) { return c == CharClass::kLetter || c == CharClass::kMark; }
bool is_punctuation(CharClass c) { return c == CharClass::kPunctuation || c == CharClass::kSymbol; }

}  // namespace

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
  const Char first = read(0);
  in_cjk_ = first.is_cjk;
  size_t end = first.size;
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
