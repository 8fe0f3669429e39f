#pragma once

// Unicode data of the tokenizer. The official tokenizer mixes three Unicode versions, and equal
// token ids need the same mixture: character classes are those of 16.0, marks and normalisation
// those of 9.0, lower case that of 17.0. tools/unicode/generate_tables.py writes the tables.

#include <cstdint>
#include <span>

namespace millrace {

// What the split patterns can tell apart. White_Space is disjoint from the categories.
enum class CharClass : char {
  kLetter = 'L',
  kMark = 'M',
  kNumber = 'N',
  kPunctuation = 'P',
  kSymbol = 'S',
  kSpace = 'W',
  kOther = 'O',
};

// Two stages: block of 256 code points, then code point. The letter of a CharClass, in lower case
// for U+4E00-9FA5, U+3040-309F and U+30A0-30FF, the second split pattern's ideographs and kana;
// none of these is a number or a space. Block 0 comes first in kCharClasses.
extern const uint8_t kCharClassBlocks[0x110000 / 256];
extern const char kCharClasses[];

inline char char_class_letter(char32_t code_point) {
  return kCharClasses[kCharClassBlocks[code_point >> 8] * 256 + (code_point & 255)];
}

// One step of decomposition: kDecomposed[offset, offset + length). Hangul syllables are not
// listed, they follow from arithmetic.
struct Decomposition {
  enum Kind : uint8_t { kCanonical, kCompatibility };
  char32_t code_point;
  uint16_t offset;
  uint8_t length;
  Kind kind;
};

// Canonical composition of a pair.
struct Composition {
  char32_t first, second, composed;
};

struct CodePointRange {
  char32_t first, last;
};

struct CombiningClassRange {
  char32_t first, last;
  uint8_t combining_class;
};

// first, first + stride, ... last each become code point + delta.
struct LowerCaseRange {
  char32_t first, last;
  uint8_t stride;
  int32_t delta;
};

// Sorted by code point, or by the pair; ranges are disjoint.
extern const std::span<const Decomposition> kDecompositions;
extern const std::span<const char32_t> kDecomposed;
extern const std::span<const Composition> kCompositions;
extern const std::span<const CombiningClassRange> kCombiningClasses;  // class 0 not listed
extern const std::span<const CodePointRange> kMarks;                  // Mn, Mc and Me
extern const std::span<const LowerCaseRange> kLowerCase;              // without U+0130

}  // namespace millrace
