#include "tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "tokenizer/test_files.h"
#include "tokenizer/utf8.h"

namespace millrace {
namespace {

TEST(Utf8Stream, ReplacesEachLongestPrefixOfASequenceOnce) {
  const struct {
    const char* bytes;
    const char* text;
  } cases[] = {
      {"a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80", "a\u00e9\u4e2d\U0001f600"},
      {"\xff\x80", "\ufffd\ufffd"},                      // never starts a sequence
      {"\xc0\xaf", "\ufffd\ufffd"},                      // overlong
      {"\xe0\x80\xaf", "\ufffd\ufffd\ufffd"},            // overlong
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},            // surrogate
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},  // above U+10FFFF
      {"\xf0\x9f\x98z", "\ufffdz"},                      // cut short by a letter
      {"\xf0\x9f\xf0\x9f\x98\x80", "\ufffd\U0001f600"},  // cut short by a sequence
      {"\xe4\xb8", "\ufffd"},                            // cut short by the end
      {"\xe4\xb8\xe4", "\ufffd\ufffd"},
  };
  for (const auto& c : cases) EXPECT_EQ(to_utf8(c.bytes), c.text);
}

TEST(Utf8Stream, HoldsBackOnlyWhatMayStillBecomeACharacter) {
  std::string text;
  Utf8Stream stream;
  stream.push("a\xe4\xb8", text);
  EXPECT_EQ(text, "a");
  stream.push("\xad", text);
  EXPECT_EQ(text, "a\u4e2d");
  stream.push("\xe4z", text);
  EXPECT_EQ(text, "a\u4e2d\ufffdz");
  stream.push("\xf0", text);
  stream.finish(text);
  stream.finish(text);
  EXPECT_EQ(text, "a\u4e2d\ufffdz\ufffd");
}

TEST(Utf8Stream, AnySplitGivesTheTextOfTheWhole) {
  const std::string_view parts[] = {"a", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
                                    "\xed\xa0"};
  std::mt19937 random(5);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes;
    for (size_t n = random() % 8; n > 0; --n) {
      const std::string_view part = parts[random() % std::size(parts)];
      bytes += random() % 2 ? part : part.substr(0, random() % (part.size() + 1));
      if (random() % 8 == 0) bytes += char(random());
    }
    const std::string expected = to_utf8(bytes);
    std::string text;
    Utf8Stream stream;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(1 + random() % 4, bytes.size() - at);
      stream.push(std::string_view(bytes).substr(at, size), text);
      at += size;
      // What is out so far is final and well-formed.
      ASSERT_EQ(expected.compare(0, text.size(), text), 0);
      for (std::string_view rest = text; !rest.empty();) {
        const CodePoint c = front_code_point(rest);
        ASSERT_NE(c.value, CodePoint::kInvalid);
        rest.remove_prefix(c.size);
      }
    }
    stream.finish(text);
    ASSERT_EQ(text, expected);
  }
}

TEST(Detokenizer, TokenByTokenGivesTheDecodedText) {
  const Tokenizer nano = nano_tokenizer();
  std::mt19937 random(6);
  for (int i = 0; i < 300; ++i) {
    std::vector<int32_t> ids;
    for (int n = 0; n < 30; ++n) ids.push_back(int32_t(random() % (i % 2 ? 259 : 4096)));
    std::string text;
    Detokenizer detokenizer(nano);
    for (int32_t id : ids) detokenizer.push(id, text);
    detokenizer.finish(text);
    EXPECT_EQ(text, nano.decode(ids));
  }
}

}  // namespace
}  // namespace millrace
