#include "eval/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>

#include "base/format.h"

namespace millrace {
namespace {

const Tokenizer& nano() {
  static const Tokenizer tokenizer = [] {
    std::ifstream file(MILLRACE_SOURCE_DIR "/models/nano/tokenizer.json", std::ios::binary);
    const std::string json(std::istreambuf_iterator<char>(file), {});
    return std::move(Tokenizer::parse(json).value());
  }();
  return tokenizer;
}

std::string judged_text(const EvalCase& made) {
  const auto begin = made.token_ids.begin();
  return nano().decode(std::vector<int32_t>(begin + made.judged_begin, begin + made.judged_end));
}

std::vector<int32_t> numbers(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

TEST(TextWindows, JudgeEveryTokenOnceWithAllTheContextThatFits) {
  for (const std::optional<int32_t> bos : {std::optional<int32_t>(), std::optional<int32_t>(0)}) {
    for (const int32_t size : {2, 7, 8, 9, 10, 23, 24, 25}) {
      for (const int64_t stride : {1, 3, 7}) {
        SCOPED_TRACE(format("bos ", bos.has_value(), ", ", size, " tokens, stride ", stride));
        const std::vector<int32_t> text = numbers(size);
        std::map<int32_t, int> judged;
        int64_t num_bytes = 0;
        for (const EvalCase& window : text_windows(nano(), text, bos, 8, stride)) {
          ASSERT_LE(window.token_ids.size(), 8u);
          ASSERT_GE(window.judged_begin, 1);
          ASSERT_EQ(window.judged_end, int64_t(window.token_ids.size()));
          if (bos) {
            EXPECT_EQ(window.token_ids[0], *bos);
          }
          const bool is_first = judged.empty();
          EXPECT_LE(window.judged_end - window.judged_begin, is_first ? 8 : stride);
          // A window that is not full begins where the text does.
          if (window.token_ids.size() < 8) {
            EXPECT_EQ(window.token_ids[bos ? 1 : 0], 100);
          }
          for (int64_t i = window.judged_begin; i < window.judged_end; ++i) {
            ++judged[window.token_ids[size_t(i)]];
          }
          num_bytes += window.num_judged_bytes;
        }
        std::map<int32_t, int> want;
        int64_t want_bytes = 0;
        for (size_t i = bos ? 0 : 1; i < text.size(); ++i) {
          want[text[i]] = 1;
          want_bytes += int64_t(nano().token_bytes(text[i]).size());
        }
        EXPECT_EQ(judged, want);
        EXPECT_EQ(num_bytes, want_bytes);
      }
    }
  }
}

TEST(Needle, TheFactStandsBehindItsShareOfTheFillerAndTheReplySaysItsValue) {
  for (const int depth : {0, 25, 50, 100}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(format("seed ", seed, ", depth ", depth));
      Random random(seed);
      const EvalText text = needle_text(random, nano(), EvalForm::kChat, 400, depth / 100.0);
      const std::string value =
          text.reply.substr(text.judged_begin, text.judged_end - text.judged_begin);
      EXPECT_EQ(value.size(), 4u);
      const size_t at = text.prompt.find(text.reply);
      ASSERT_NE(at, std::string::npos);
      EXPECT_EQ(text.prompt.find(value, at + text.reply.size()), std::string::npos);
      const std::string subject = text.reply.substr(0, text.judged_begin - 4);  // "... is"
      EXPECT_EQ(text.prompt.find(subject), text.prompt.rfind(subject));
      // Sentences before it and all, without the facts.
      const auto count = [](std::string_view part) {
        int sentences = 0;
        for (size_t i = 0; i < part.size(); ++i) sentences += part[i] == '.';
        for (size_t i = 0; (i = part.find("The code of", i)) != part.npos; ++i) --sentences;
        return sentences;
      };
      const int all = count(text.prompt);
      EXPECT_GT(all, 20);
      EXPECT_NEAR(count(std::string_view(text.prompt).substr(0, at)), depth / 100.0 * all, 0.5);
    }
  }
}

TEST(Needle, TheFillerHasAtMostSoManyTokensAndHardlyFewer) {
  const auto num_tokens = [](int64_t num_filler_tokens) {
    Random random(1);
    const EvalText text = needle_text(random, nano(), EvalForm::kPlain, num_filler_tokens, 0.5);
    return int64_t(nano().encode(text.prompt, SpecialTokens::kPlainText).size());
  };
  const int64_t bare = num_tokens(0);
  for (const int64_t most : {10, 100, 1000}) {
    EXPECT_LE(num_tokens(most), bare + most);
    EXPECT_GT(num_tokens(most), bare + most - 40);
  }
}

TEST(Cases, AreAFunctionOfTheSeed) {
  const auto make = [](uint64_t seed) {
    Random random(seed);
    const EvalText needle = needle_text(random, nano(), EvalForm::kChat, 50, 0.5);
    return needle.prompt + needle.reply + copy_text(random, EvalForm::kChat, 10).prompt;
  };
  EXPECT_EQ(make(7), make(7));
  EXPECT_NE(make(7), make(8));
}

TEST(Copy, TheReplyRepeatsTheItemsOfThePrompt) {
  for (const EvalForm form : {EvalForm::kChat, EvalForm::kPlain}) {
    Random random(3);
    const EvalText text = copy_text(random, form, 12);
    const std::string items =
        text.reply.substr(text.judged_begin, text.judged_end - text.judged_begin);
    EXPECT_NE(text.prompt.find(items), std::string::npos);
    EXPECT_EQ(std::count(items.begin(), items.end(), ' '), 11);
    // In both forms the end is judged: by the end token, or by that of the line.
    EXPECT_EQ(text.judges_end, items.back() != '\n');
  }
}

TEST(MakeCase, JudgesTheTokensThatHoldTheBytesAndTheEnd) {
  const std::string text = "The code of the red door is 1234.";
  const size_t begin = text.find("1234");
  EvalCase made = make_case(nano(), {0}, text, begin, begin + 4, std::nullopt);
  EXPECT_EQ(judged_text(made), "1234");
  EXPECT_EQ(made.num_judged_bytes, 4);
  EXPECT_EQ(made.token_ids[0], 0);
  made = make_case(nano(), {0}, text, begin, text.size(), std::nullopt);
  EXPECT_EQ(judged_text(made), "1234.");
  // A byte in the middle of a token judges the whole token.
  const size_t door = text.find("door");
  made = make_case(nano(), {0}, text, door + 1, door + 2, std::nullopt);
  EXPECT_THAT(judged_text(made), ::testing::HasSubstr("o"));
  EXPECT_EQ(made.judged_end, made.judged_begin + 1);
  made = make_case(nano(), {0}, text, 0, text.size(), 1);
  EXPECT_EQ(made.judged_begin, 1);
  EXPECT_EQ(made.judged_end, int64_t(made.token_ids.size()));
  EXPECT_EQ(made.token_ids.back(), 1);
}

}  // namespace
}  // namespace millrace
