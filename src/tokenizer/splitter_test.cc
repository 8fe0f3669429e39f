#include "tokenizer/splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tokenizer/test_files.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> pieces;
  Splitter splitter(text);
  for (auto piece = splitter.next(); !piece.empty(); piece = splitter.next()) {
    pieces.emplace_back(piece);
  }
  return pieces;
}

TEST(Splitter, WordsTakeOneSpaceOrOtherCharacterInFront) {
  EXPECT_THAT(split("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(split("\tx\u00a0y\u200bz"), ElementsAre("\tx", "\u00a0y", "\u200bz"));
  EXPECT_THAT(split("\nx"), ElementsAre("\n", "x"));
  EXPECT_THAT(split("e\u0301te\u0301 \u0301x"), ElementsAre("e\u0301te\u0301", " \u0301x"));
}

TEST(Splitter, AsciiPunctuationJoinsAsciiLettersOnly) {
  EXPECT_THAT(split("don't .foo_bar"), ElementsAre("don", "'t", " .", "foo", "_bar"));
  EXPECT_THAT(split(".\u00e9t\u00e9"), ElementsAre(".", "\u00e9t\u00e9"));
  EXPECT_THAT(split("'te\u0301"), ElementsAre("'te", "\u0301"));
}

TEST(Splitter, PunctuationRunsTakeASpaceInFrontAndNewlinesBehind) {
  EXPECT_THAT(split("x !?\r\n\n y"), ElementsAre("x", " !?\r\n\n", " y"));
  EXPECT_THAT(split("\t!"), ElementsAre("\t", "!"));
  EXPECT_THAT(split("..foo"), ElementsAre("..", "foo"));
}

TEST(Splitter, NumbersComeInThreesFromTheLeft) {
  EXPECT_THAT(split("a1234567b"), ElementsAre("a", "123", "456", "7", "b"));
  EXPECT_THAT(split("\u0661\u00bd\u2167\u096a"), ElementsAre("\u0661\u00bd\u2167", "\u096a"));
}

TEST(Splitter, WhiteSpaceLeavesItsLastCharacterToTheNextWord) {
  EXPECT_THAT(split("x   y"), ElementsAre("x", "  ", " y"));
  EXPECT_THAT(split("x \t !"), ElementsAre("x", " \t", " !"));
  EXPECT_THAT(split("x   "), ElementsAre("x", "   "));
}

TEST(Splitter, WhiteSpaceIsTakenWholeBeforeNumbersAndIdeographs) {
  EXPECT_THAT(split("x   1"), ElementsAre("x", "   ", "1"));
  EXPECT_THAT(split("x   \u4e00"), ElementsAre("x", "   ", "\u4e00"));
}

TEST(Splitter, WhiteSpaceEndsAfterItsLastNewline) {
  EXPECT_THAT(split("x \n\r\n  y"), ElementsAre("x", " \n\r\n", " ", " y"));
  EXPECT_THAT(split("\n \n1"), ElementsAre("\n \n", "1"));
  // Only CR and LF are newlines.
  EXPECT_THAT(split("x\u2028\u2028y"), ElementsAre("x", "\u2028", "\u2028y"));
}

TEST(Splitter, IdeographsAndKanaAreApartFromOtherLetters) {
  EXPECT_THAT(split("a\u4e2d\u30c6\u30ady"), ElementsAre("a", "\u4e2d\u30c6\u30ad", "y"));
  EXPECT_THAT(split("\u9fa5\u9fa6"), ElementsAre("\u9fa5", "\u9fa6"));
  EXPECT_THAT(split("\u3400\uac00x"), ElementsAre("\u3400\uac00x"));
}

TEST(Splitter, TheThirdSplitAlsoCutsIdeographsAndKana) {
  EXPECT_THAT(split("\u30ab\u30fb\u30ad"), ElementsAre("\u30ab", "\u30fb", "\u30ad"));
  EXPECT_THAT(split("\u30d5\u309b"), ElementsAre("\u30d5", "\u309b"));
  EXPECT_THAT(split("\u30d5\u3099"), ElementsAre("\u30d5\u3099"));
  // Space and ASCII are outside, so they do not join.
  EXPECT_THAT(split(" \u30fb\n"), ElementsAre(" ", "\u30fb", "\n"));
}

TEST(Splitter, CharactersThatNothingMatchesAreGaps) {
  EXPECT_THAT(split("\x01\x02"
                    "a\x03"),
              ElementsAre("\x01",
                          "\x02"
                          "a",
                          "\x03"));
  EXPECT_THAT(split("\u200d\u200d!"), ElementsAre("\u200d\u200d", "!"));
}

TEST(Splitter, BytesThatAreNotUtf8AreCharactersWithoutClass) {
  EXPECT_THAT(split("\xff\xfe!\xe4\xb8"), ElementsAre("\xff\xfe", "!", "\xe4\xb8"));
  EXPECT_THAT(split("\xc3\x28"), ElementsAre("\xc3", "("));
}

TEST(Splitter, CutsLikeTheOfficialLibrary) {
  const std::vector<OfficialAnswer> answers = nano_answers();
  ASSERT_GT(answers.size(), 300u);
  for (const OfficialAnswer& answer : answers) {
    std::vector<int32_t> sizes;
    for (const std::string& piece : split(answer.text)) sizes.push_back(int32_t(piece.size()));
    EXPECT_THAT(sizes, ElementsAreArray(answer.piece_sizes)) << answer.text;
  }
}

TEST(Splitter, PiecesOfAnyBytesAreTheText) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n)
      text += char(random() % 3 ? random() : " \n1a.\xe3"[random() % 6]);
    std::string joined;
    for (const std::string& piece : split(text)) joined += piece;
    ASSERT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace millrace
