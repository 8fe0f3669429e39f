#pragma once

// The pre-tokenizer: cuts text into the pieces inside which BPE merges.
//
// It equals these three splits in sequence, each applied to all pieces of the one before, and each
// keeping its matches and the gaps between them as separate pieces:
//   1. \p{N}{1,3}
//   2. [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+
//   3. [ASCII punctuation][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//      | ?[\p{P}\p{S}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
// The first two can be decided from one code point, so one scan does the work of all three: the
// third split sees the text end wherever a number begins, and wherever ideographs and kana meet
// other characters. Numbers match nothing in it and stay as they are. Time is linear.
//
// A byte that is not part of well-formed UTF-8 counts as a code point of class kOther.

#include <string_view>

#include "tokenizer/unicode_tables.h"

namespace millrace {

class Splitter {
 public:
  explicit Splitter(std::string_view text) : rest_(text) {}

  // The next piece; empty at the end.
  std::string_view next();

 private:
  struct Char {
    CharClass cls;
    bool is_cjk;  // an ideograph or kana of the second split
    char32_t value;
    size_t size;
  };

  // Where the third split's text ends. It has the class of numbers, which end that text too.
  static constexpr Char kEnd{CharClass::kNumber, false, 0, 0};

  size_t ascii_word_end() const;
  Char read(size_t at) const;  // the character at rest_[at]
  Char at(size_t at) const;    // the same as the second and third split see it
  // The end of the run of characters from `begin` that satisfy `belongs`.
  template <class Predicate>
  size_t run_end(size_t begin, Predicate belongs) const;
  size_t third_split(Char first) const;
  size_t white_space(Char first) const;

  std::string_view rest_;
  bool in_cjk_ = false;  // which side of the second split the piece is on
};

}  // namespace millrace
