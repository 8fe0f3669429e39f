#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <random>

#include "tokenizer/test_files.h"

namespace millrace {

std::string read_test_file(std::string_view path) {
  std::ifstream file(format(MILLRACE_SOURCE_DIR, '/', path), std::ios::binary);
  EXPECT_TRUE(file) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<OfficialAnswer> nano_answers() {
  const auto numbers = [](std::string_view field, int base, size_t width) {
    std::vector<int32_t> out;
    while (!field.empty()) {
      const size_t end = std::min(width != 0 ? width : field.find(' '), field.size());
      out.push_back(0);
      std::from_chars(field.data(), field.data() + end, out.back(), base);
      field.remove_prefix(std::min(end + (width == 0), field.size()));
    }
    return out;
  };
  std::vector<OfficialAnswer> answers;
  const std::string file = read_test_file("tests/golden/tokenizer/nano.txt");
  for (std::string_view rest = file; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    std::string_view fields[4];
    for (std::string_view& field : fields) {
      field = line.substr(0, line.find('|'));
      line.remove_prefix(std::min(field.size() + 1, line.size()));
    }
    OfficialAnswer answer;
    for (int32_t byte : numbers(fields[0], 16, 2)) answer.text += char(byte);
    answer.piece_sizes = numbers(fields[1], 10, 0);
    answer.ids = numbers(fields[2], 10, 0);
    answer.plain_ids = numbers(fields[3], 10, 0);
    answers.push_back(std::move(answer));
  }
  return answers;
}

namespace {

using testing::ElementsAre;
using enum SpecialTokens;

// Bytes are 0-255; "ab" is 256; then added tokens that are prefixes of each other and overlap.
Tokenizer small_tokenizer() {
  TestTokenizerJson file;
  file.vocab = R"("ab": 256)";
  file.merges = R"(["a b"])";
  using T = TestTokenizerJson;
  file.added_tokens = format('[', T::added(257, "<s>"), ',', T::added(258, "<s>>"), ',',
                             T::added(259, ">x<"), ',', T::added(260, "a<s", true, false), ']');
  return must_parse(file.text());
}

std::string bytes_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (int32_t id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

TEST(Tokenizer, GivesTheIdsOfTheOfficialLibrary) {
  const Tokenizer nano = nano_tokenizer();
  const std::vector<OfficialAnswer> answers = nano_answers();
  ASSERT_GT(answers.size(), 300u);
  for (const OfficialAnswer& answer : answers) {
    EXPECT_EQ(nano.encode(answer.text, kRecognise), answer.ids) << answer.text;
    EXPECT_EQ(nano.encode(answer.text, kPlainText), answer.plain_ids) << answer.text;
  }
}

TEST(Tokenizer, AddedTokensAreCutOutLeftmostLongest) {
  const Tokenizer t = small_tokenizer();
  EXPECT_THAT(t.encode("ab<s>ab", kRecognise), ElementsAre(256, 257, 256));
  EXPECT_THAT(t.encode("<s>>x<s>", kRecognise), ElementsAre(258, 'x', 257));
  EXPECT_THAT(t.encode("<s>x<s>", kRecognise), ElementsAre(257, 'x', 257));
  EXPECT_THAT(t.encode(">x<s>", kRecognise), ElementsAre(259, 's', '>'));
  EXPECT_THAT(t.encode("<<s", kRecognise), ElementsAre('<', '<', 's'));
}

TEST(Tokenizer, NormalizedAddedTokensAreLookedForInWhatTheOthersLeave) {
  const Tokenizer t = small_tokenizer();
  EXPECT_THAT(t.encode("a<s", kRecognise), ElementsAre(260));
  EXPECT_THAT(t.encode("a<s>a<s", kRecognise), ElementsAre('a', 257, 260));
}

TEST(Tokenizer, TextDoesNotMergeAcrossAnAddedToken) {
  const Tokenizer t = small_tokenizer();
  EXPECT_THAT(t.encode("a<s>b", kRecognise), ElementsAre('a', 257, 'b'));
}

TEST(Tokenizer, PlainTextNeverBecomesAnAddedToken) {
  const Tokenizer t = small_tokenizer();
  EXPECT_THAT(t.encode("<s>ab", kPlainText), ElementsAre('<', 's', '>', 256));
}

TEST(Tokenizer, PlainTextNeverBecomesAnAddedTokenThatMergesSpell) {
  TestTokenizerJson file;
  file.vocab = R"("<s": 256, "<s>": 257, "<s>x": 258)";
  file.merges = R"(["< s", "<s >", "<s> x"])";
  file.added_tokens = '[' + TestTokenizerJson::added(257, "<s>") + ']';
  const Tokenizer t = must_parse(file.text());
  EXPECT_THAT(t.encode("<s>x", kRecognise), ElementsAre(257, 'x'));
  // The split puts "<s" and ">x" apart; the scan of merges must not help either.
  EXPECT_THAT(t.encode("<s>x", kPlainText), ElementsAre(256, '>', 'x'));

  file = {};
  file.vocab = R"("aa": 256, "aab": 257, "aabc": 258)";
  file.merges = R"(["a a", "aa b", "aab c"])";
  file.added_tokens = '[' + TestTokenizerJson::added(257, "aab") + ']';
  const Tokenizer letters = must_parse(file.text());
  EXPECT_THAT(letters.encode("aabc", kRecognise), ElementsAre(257, 'c'));
  EXPECT_THAT(letters.encode("aabc", kPlainText), ElementsAre(256, 'b', 'c'));
}

TEST(Tokenizer, OnlyTrustedSegmentsHoldAddedTokens) {
  const Tokenizer t = small_tokenizer();
  const auto encode = [&](std::vector<TextSegment> segments) { return t.encode(segments); };
  EXPECT_THAT(encode({{"<s>", true}, {"<s>", false}}), ElementsAre(257, '<', 's', '>'));
  // Neither a seam with untrusted text nor the text behind it may complete one.
  EXPECT_THAT(encode({{"<s", true}, {">", false}}), ElementsAre('<', 's', '>'));
  EXPECT_THAT(encode({{"<s>", true}, {">", false}}), ElementsAre(257, '>'));
  // Two trusted segments are one text.
  EXPECT_THAT(encode({{"<s", true}, {">", true}, {">", false}}), ElementsAre(257, '>'));
}

// The added tokens of the release, in their spelling; ranges that differ in a number by some.
std::vector<std::string> release_literals() {
  std::vector<std::string> literals;
  for (const char* name :
       {"begin▁of▁sentence", "end▁of▁sentence", "▁pad▁", "place▁holder▁no▁0", "place▁holder▁no▁1",
        "place▁holder▁no▁10", "place▁holder▁no▁798", "System", "fim▁hole", "fim▁begin", "fim▁end",
        "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin",
        "tool▁call▁end", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin",
        "tool▁output▁end", "tool▁sep", "begin▁of▁repo▁name", "end▁of▁repo▁name",
        "begin▁of▁file▁name", "end▁of▁file▁name", "begin▁of▁file", "end▁of▁file",
        "place▁holder▁for▁copy", "place▁holder▁for▁pointer▁replace", "begin▁sys", "end▁sys",
        "latest_reminder", "action", "query", "authority", "domain", "task", "political", "entity",
        "title", "safety", "answer", "search", "search▁begin", "search▁end", "extracted_url",
        "read_url", "end_of_query", "rl_image_pad", "rl_image_start", "deepseek_image", "/polygon",
        "polygon", "/point", "point", "/box", "box", "/ref", "ref"}) {
    literals.push_back(format("<｜", name, "｜>"));
  }
  for (const char* literal : {"<|EOT|>", "<think>", "</think>", "｜DSML｜", "<dsml:", "</dsml:",
                              "<|place_holder_mm_span_0021|>", "<|place_holder_mm_span_0442|>"}) {
    literals.emplace_back(literal);
  }
  return literals;
}

TEST(Tokenizer, NoAddedTokenOfTheReleaseComesFromUntrustedText) {
  const std::vector<std::string> literals = release_literals();
  TestTokenizerJson file;
  file.added_tokens.clear();
  for (size_t i = 0; i < literals.size(); ++i) {
    file.added_tokens += (i == 0 ? "[" : ", ") +
                         TestTokenizerJson::added(int32_t(256 + i), literals[i], i % 5 == 4);
  }
  file.added_tokens += ']';
  const Tokenizer t = must_parse(file.text());
  const auto num_added = [&](std::vector<TextSegment> segments) {
    return std::ranges::count_if(t.encode(segments), [&](int32_t id) { return t.is_added(id); });
  };
  for (const std::string& literal : literals) {
    const std::string_view whole = literal;
    ASSERT_THAT(t.encode(whole, kRecognise), ElementsAre(*t.token_id(whole))) << literal;
    EXPECT_EQ(num_added({{whole, false}}), 0) << literal;
    EXPECT_EQ(num_added({{whole, true}, {whole, false}, {whole, true}}), 2) << literal;
    // A part of it trusted, before, behind or between: the encoder's text and a client's together.
    for (size_t cut = 1; cut < whole.size(); ++cut) {
      const std::string_view head = whole.substr(0, cut), tail = whole.substr(cut);
      EXPECT_EQ(num_added({{head, false}, {tail, false}}), 0) << literal << " at " << cut;
      EXPECT_EQ(num_added({{head, true}, {tail, false}}), 0) << literal << " at " << cut;
      EXPECT_EQ(num_added({{head, false}, {tail, true}}), 0) << literal << " at " << cut;
      EXPECT_EQ(num_added({{head, true}, {"", false}, {tail, true}}), 1) << "one trusted text";
      EXPECT_EQ(num_added({{head, true}, {"x", false}, {tail, true}}), 0)
          << literal << " at " << cut;
    }
  }
}

TEST(Tokenizer, SeamsBetweenSegmentsDoNotCutText) {
  const Tokenizer nano = nano_tokenizer();
  std::mt19937 random(3);
  for (const OfficialAnswer& answer : nano_answers()) {
    // Untrusted everywhere but in a random part: as the library would, if no token is in there.
    if (answer.ids != answer.plain_ids) continue;
    const size_t a = random() % (answer.text.size() + 1);
    const size_t b = a + random() % (answer.text.size() - a + 1);
    const std::string_view text = answer.text;
    const TextSegment segments[] = {
        {text.substr(0, a), false}, {text.substr(a, b - a), true}, {text.substr(b), false}};
    EXPECT_EQ(nano.encode(segments), answer.ids) << answer.text << " at " << a << ", " << b;
  }
}

TEST(Tokenizer, AppendsWithAScratchThatIsKept) {
  const Tokenizer nano = nano_tokenizer();
  Tokenizer::Scratch scratch;
  std::vector<int32_t> ids, expected;
  for (const OfficialAnswer& answer : nano_answers()) {
    nano.encode(answer.text, kRecognise, scratch, ids);
    expected.insert(expected.end(), answer.ids.begin(), answer.ids.end());
  }
  EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, AnyBytesComeBackFromTheirIds) {
  const Tokenizer nano = nano_tokenizer();
  std::mt19937 random(4);
  for (int i = 0; i < 500; ++i) {
    std::string bytes;
    for (size_t n = random() % 100; n > 0; --n) bytes += char(random());
    EXPECT_EQ(bytes_of(nano, nano.encode(bytes, kPlainText)), bytes);
    EXPECT_EQ(bytes_of(nano, nano.encode(bytes, kRecognise)), bytes);
  }
}

TEST(Tokenizer, DecodesWholeTextOnceAndAddedTokensAsTheirLiterals) {
  const Tokenizer nano = nano_tokenizer();
  const std::string text = "<｜User｜>日本語 café 👩‍💻</think>";
  const std::vector<int32_t> ids = nano.encode(text, kRecognise);
  EXPECT_EQ(nano.decode(ids), text);
  EXPECT_EQ(nano.decode(std::span(ids).first(2)).substr(0, 12), "<｜User｜>");
  const Tokenizer t = small_tokenizer();
  EXPECT_EQ(t.decode({{0xe4, 0xb8, 257, 0xad}}), "\ufffd<s>\ufffd");
  EXPECT_EQ(t.decode({}), "");
}

TEST(Tokenizer, KnowsItsAddedAndSpecialTokens) {
  const Tokenizer t = small_tokenizer();
  EXPECT_EQ(t.vocab_size(), 261);
  EXPECT_EQ(t.token_id("<s>>"), 258);
  EXPECT_EQ(t.token_id("a<s"), 260);
  EXPECT_EQ(t.token_id("ab"), std::nullopt) << "an ordinary token";
  EXPECT_EQ(t.token_id("<s"), std::nullopt);
  EXPECT_FALSE(t.is_added(256));
  EXPECT_TRUE(t.is_added(260));
  EXPECT_FALSE(t.is_special(260));
  EXPECT_TRUE(t.is_special(257));
  EXPECT_EQ(t.token_bytes(256), "ab");
  EXPECT_EQ(t.token_bytes(0x0a), "\n");
}

TEST(Tokenizer, NanoHasTheControlTokensOfTheRelease) {
  const Tokenizer nano = nano_tokenizer();
  EXPECT_EQ(nano.vocab_size(), 4096);
  EXPECT_EQ(nano.token_id("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(nano.token_id("<｜end▁of▁sentence｜>"), 1);
  EXPECT_EQ(nano.token_id("<｜▁pad▁｜>"), 2);
  EXPECT_EQ(nano.token_id("<think>"), 4092);
  EXPECT_EQ(nano.token_id("<｜System｜>"), 4095);
}

TEST(Tokenizer, MillionsOfEqualCharactersTakeLinearTime) {
  // With anything quadratic this test would run for hours. What is not linear is the heap of a
  // piece, and it holds a window at most.
  const Tokenizer nano = nano_tokenizer();
  for (const std::string unit :
       {"a", " ", "7", "!", "\n", "\x01", "ab", "e\u0301", "\u4e2d", "\xff",
        "\U0001f468\u200d\U0001f469\u200d", "<\uff5cU"}) {
    std::string text;
    while (text.size() < 2'000'000) text += unit;
    Tokenizer::Scratch scratch;
    std::vector<int32_t> ids;
    nano.encode(text, kRecognise, scratch, ids);
    EXPECT_EQ(bytes_of(nano, ids), text);
    EXPECT_LE(scratch.longest_merged(), 4096u) << unit;
  }
}

TEST(TokenizerDeathTest, AnIdOutsideTheVocabularyIsTheCallersMistake) {
  const Tokenizer t = small_tokenizer();
  EXPECT_DEATH((void)t.token_bytes(261), "id < vocab_size");
  EXPECT_DEATH((void)t.token_bytes(-1), "id >= 0");
}

}  // namespace
}  // namespace millrace
