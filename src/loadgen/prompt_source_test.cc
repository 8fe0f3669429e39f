#include "loadgen/prompt_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "loadgen/corpus.h"

namespace millrace {
namespace {

PlannedRequest planned(std::vector<PromptPart> parts) {
  PlannedRequest request;
  request.prompt = std::move(parts);
  return request;
}

std::vector<int32_t> numbers(int32_t count) {
  std::vector<int32_t> list;
  for (int32_t i = 0; i < count; ++i) list.push_back(i);
  return list;
}

TEST(PromptSource, APromptHasExactlyItsTokens) {
  const PromptSource source = PromptSource::of_tokens(numbers(1000), 1);
  for (const int64_t count : {1, 15, 16, 17, 271, 272, 273, 5000}) {
    EXPECT_EQ(int64_t(source.tokens(planned({{7, count}})).size()), count);
  }
  EXPECT_EQ(source.tokens(planned({{7, 10}, {8, 20}})).size(), 30u);
}

TEST(PromptSource, EqualKeysGiveEqualTokensAndOtherKeysDifferFromTheBeginning) {
  const PromptSource source = PromptSource::of_tokens(numbers(100'000), 1);
  std::set<std::vector<int32_t>> beginnings;
  for (uint64_t key = 0; key < 300; ++key) {
    const std::vector<int32_t> tokens = source.tokens(planned({{key, 100}}));
    EXPECT_EQ(tokens, source.tokens(planned({{key, 100}})));
    beginnings.insert({tokens.begin(), tokens.begin() + 32});
  }
  EXPECT_EQ(beginnings.size(), 300u);
  EXPECT_NE(source.tokens(planned({{7, 100}})),
            PromptSource::of_tokens(numbers(100'000), 2).tokens(planned({{7, 100}})));
}

TEST(PromptSource, ALongerPartBeginsLikeAShorterOneOfItsKey) {
  const PromptSource source = PromptSource::of_tokens(numbers(1000), 1);
  const std::vector<int32_t> shorter = source.tokens(planned({{7, 300}}));
  const std::vector<int32_t> longer = source.tokens(planned({{7, 900}}));
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
}

TEST(PromptSource, SlicesAreTextOfTheCorpusInARow) {
  const PromptSource source = PromptSource::of_tokens(numbers(1000), 1);
  const std::vector<int32_t> tokens = source.tokens(planned({{7, 272}}));
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (i == 16) continue;  // the second slice begins
    EXPECT_EQ(tokens[i], (tokens[i - 1] + 1) % 1000) << i;
  }
}

TEST(PromptSource, RandomTokensAreThoseOfTheVocabulary) {
  const PromptSource source = PromptSource::of_random_tokens({3, 5, 9}, 1);
  const std::vector<int32_t> tokens = source.tokens(planned({{7, 1000}}));
  EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()), (std::set<int32_t>{3, 5, 9}));
}

TEST(PromptSource, TextIsCutBetweenCharacters) {
  std::string corpus;
  for (int i = 0; i < 50; ++i) corpus += "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8D";  // 1 to 4 bytes
  const PromptSource source = PromptSource::of_text(corpus, 3.5, 1);
  for (uint64_t key = 0; key < 100; ++key) {
    const std::string text = source.text(planned({{key, 40}}));
    EXPECT_NEAR(double(text.size()), 140, 10);
    // As many characters begin as their first bytes say there are.
    size_t at = 0;
    while (at < text.size()) {
      const uint8_t first = uint8_t(text[at]);
      const size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
      ASSERT_NE(first & 0xC0, 0x80) << "key " << key << " at " << at;
      for (size_t i = 1; i < length; ++i) {
        ASSERT_LT(at + i, text.size()) << "key " << key;
        ASSERT_EQ(uint8_t(text[at + i]) & 0xC0, 0x80) << "key " << key << " at " << at;
      }
      at += length;
    }
  }
}

TEST(Corpus, IsLongEnoughForPromptsToDiffer) {
  EXPECT_GT(built_in_corpus().size(), 200'000u);
  EXPECT_NE(built_in_corpus().find("Millrace"), std::string_view::npos);
}

}  // namespace
}  // namespace millrace
