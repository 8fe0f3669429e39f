#include "tokenizer/normalize.h"

#include <algorithm>
#include <span>
#include <utility>

#include "tokenizer/unicode_tables.h"

namespace millrace {
namespace {

// Hangul syllables: 19 leading consonants x 21 vowels x (27 trailing consonants or none).
constexpr char32_t kSyllables = 0xac00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11a7;
constexpr uint32_t kNumLeading = 19, kNumVowels = 21, kNumTrailing = 28;

// The range that contains c, or null.
template <class Range>
const Range* find_range(std::span<const Range> ranges, char32_t c) {
  const auto it = std::ranges::lower_bound(ranges, c, {}, &Range::last);
  return it != ranges.end() && it->first <= c ? &*it : nullptr;
}

uint8_t combining_class(char32_t c) {
  const CombiningClassRange* range = find_range(kCombiningClasses, c);
  return range != nullptr ? range->combining_class : 0;
}

void append_decomposed(char32_t c, bool compatibility, std::u32string& out) {
  if (c < 0x80) {
    out += c;
    return;
  }
  const uint32_t syllable = c - kSyllables;
  if (syllable < kNumLeading * kNumVowels * kNumTrailing) {
    out += kLeading + syllable / (kNumVowels * kNumTrailing);
    out += kVowels + syllable / kNumTrailing % kNumVowels;
    if (syllable % kNumTrailing != 0) out += kTrailing + syllable % kNumTrailing;
    return;
  }
  const auto it = std::ranges::lower_bound(kDecompositions, c, {}, &Decomposition::code_point);
  if (it == kDecompositions.end() || it->code_point != c ||
      (it->kind == Decomposition::kCompatibility && !compatibility)) {
    out += c;
    return;
  }
  for (char32_t part : kDecomposed.subspan(it->offset, it->length)) {
    append_decomposed(part, compatibility, out);
  }
}

// Sorts each run of characters that combine by their class; equal classes keep their order.
void reorder(std::u32string& text) {
  for (auto run = text.begin(); run != text.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end =
        std::find_if(run, text.end(), [](char32_t c) { return combining_class(c) == 0; });
    std::ranges::stable_sort(run, end, {}, combining_class);
    run = end;
  }
}

// The character that the pair composes to, or 0.
char32_t compose(char32_t first, char32_t second) {
  const uint32_t leading = first - kLeading, vowel = second - kVowels;
  if (leading < kNumLeading && vowel < kNumVowels) {
    return kSyllables + (leading * kNumVowels + vowel) * kNumTrailing;
  }
  const uint32_t syllable = first - kSyllables, trailing = second - kTrailing;
  if (syllable < kNumLeading * kNumVowels * kNumTrailing && syllable % kNumTrailing == 0 &&
      0 < trailing && trailing < kNumTrailing) {
    return first + trailing;
  }
  if (second < 0x80) return 0;
  const auto by_pair = [](const Composition& c) { return std::pair(c.first, c.second); };
  const auto it = std::ranges::lower_bound(kCompositions, std::pair(first, second), {}, by_pair);
  const bool found = it != kCompositions.end() && by_pair(*it) == std::pair(first, second);
  return found ? it->composed : 0;
}

// Canonical composition of decomposed text: a character joins the last starter before it unless
// one of at least its own class stands between.
std::u32string composed(std::u32string_view text) {
  std::u32string out;
  size_t starter = std::u32string::npos;
  uint8_t last_class = 0;
  for (char32_t c : text) {
    const uint8_t cc = combining_class(c);
    if (starter != std::u32string::npos) {
      const bool adjacent = starter + 1 == out.size();
      const bool blocked = !adjacent && last_class >= cc;
      const char32_t both = blocked ? 0 : compose(out[starter], c);
      if (both != 0) {
        out[starter] = both;
        continue;
      }
    }
    if (cc == 0) starter = out.size();
    last_class = cc;
    out += c;
  }
  return out;
}

}  // namespace

std::u32string normalize(std::u32string_view text, Normalization form) {
  std::u32string decomposed;
  for (char32_t c : text) append_decomposed(c, form == Normalization::kNfkc, decomposed);
  reorder(decomposed);
  return form == Normalization::kNfkc ? composed(decomposed) : decomposed;
}

bool is_mark(char32_t c) { return find_range(kMarks, c) != nullptr; }

void append_lower_case(char32_t c, std::u32string& out) {
  if (c == 0x130) {  // the one character whose lower case is two
    out += U"i\u0307";
    return;
  }
  const LowerCaseRange* range = find_range(kLowerCase, c);
  const bool has_lower = range != nullptr && (c - range->first) % range->stride == 0;
  out += has_lower ? char32_t(int32_t(c) + range->delta) : c;
}

}  // namespace millrace
