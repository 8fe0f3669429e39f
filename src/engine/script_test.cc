#include "engine/script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/test_byte_vocabulary.h"
#include "engine/token_lookup.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using namespace test;

std::string error_of(std::string_view text, const TokenTable& table = byte_table()) {
  const Result<Script> script = Script::parse(text, table);
  return script.has_value() ? "accepted" : script.error().message;
}

ScriptReply reply_of(std::string_view line) {
  const TokenTable table = byte_table();
  Result<Script> script = Script::parse(one_line(line), table);
  if (!script.has_value()) {
    ADD_FAILURE() << script.error().message;
    return {};
  }
  return script.value().replies()[0];
}

// ---- Bytes to tokens.

TEST(TokenLookup, TakesTheLongestTokenAndLosesNoByte) {
  const TokenTable table = byte_table();
  const TokenLookup lookup(table);
  const auto encode = [&](std::string_view bytes) {
    return lookup.encode(bytes, TokenLookup::Literals::kAreTokens).value();
  };
  EXPECT_THAT(encode("Hello world"), ElementsAre(kHello, kWorld));
  EXPECT_THAT(encode("Jello"), ElementsAre('J', 'e', kLlo));
  std::string all;
  for (int i = 0; i < 3 * 256; ++i) all += char(i * 7);
  EXPECT_EQ(bytes_of(table, encode(all)), all);
  EXPECT_TRUE(encode("").empty());
}

TEST(TokenLookup, LiteralsOfAddedTokensComeFirstOrNotAtAll) {
  const TokenTable table = byte_table();
  const TokenLookup lookup(table);
  EXPECT_THAT(lookup.encode("a </think>b<end>", TokenLookup::Literals::kAreTokens).value(),
              ElementsAre('a', ' ', kEndThink, 'b', kEnd))
      << "although \" </\" is a token";
  const std::vector<int32_t> bytes =
      lookup.encode("</think>", TokenLookup::Literals::kAreBytes).value();
  EXPECT_THAT(bytes, ElementsAreArray(ids_of("</think>")));
}

TEST(TokenLookup, NamesAByteThatNoTokenStandsFor) {
  TokenTable table = byte_table();
  table.bytes[0xff].clear();
  const TokenLookup lookup(table);
  const auto ids = lookup.encode("ab\xff", TokenLookup::Literals::kAreTokens);
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().message,
            "found byte 0xff at 2, expected bytes that the tokenizer has tokens for");
}

// ---- Lines.

TEST(ScriptLine, SaysWhatComesAndWhen) {
  const ScriptReply reply = reply_of(
      R"({"key": "weather", "choice": 2, "first_delay_ms": 20, "delay_ms": 0.5, "repeat": 3,
          "ignore_limits": true, "finish_reason": "length", "pieces": [
          {"text": "Hello</think>", "delay_ms": 7}, {"base64": "4oI="}, {"ids": [300, 7]}]})");
  EXPECT_EQ(reply.key, "weather");
  EXPECT_EQ(reply.choice_idx, 2);
  EXPECT_EQ(reply.first_delay_ns, 20'000'000);
  EXPECT_EQ(reply.delay_ns, 500'000);
  EXPECT_EQ(reply.num_repeats, 3);
  EXPECT_TRUE(reply.ignore_limits);
  EXPECT_EQ(reply.finish_reason, FinishReason::kLength);
  ASSERT_EQ(reply.pieces.size(), 3u);
  EXPECT_THAT(reply.pieces[0].token_ids, ElementsAre(kHello, kEndThink));
  EXPECT_EQ(reply.pieces[0].delay_ns, 7'000'000);
  EXPECT_THAT(reply.pieces[1].token_ids, ElementsAre(0xe2, 0x82)) << "two thirds of a euro sign";
  EXPECT_FALSE(reply.pieces[1].delay_ns);
  EXPECT_THAT(reply.pieces[2].token_ids, ElementsAre(300, 7));
}

TEST(ScriptLine, WithoutMoreIsAnAnswerAtOnceThatStops) {
  const ScriptReply reply = reply_of(R"({"pieces": [{"text": "Hello"}]})");
  EXPECT_EQ(reply.key, "");
  EXPECT_FALSE(reply.choice_idx);
  EXPECT_FALSE(reply.first_delay_ns);
  EXPECT_EQ(reply.delay_ns, 0);
  EXPECT_EQ(reply.num_repeats, 1);
  EXPECT_EQ(reply.finish_reason, FinishReason::kStop);
  EXPECT_FALSE(reply.ignore_limits);
  EXPECT_FALSE(reply_of(R"({"pieces": [{"text": "a"}], "repeat": "forever"})").num_repeats);
}

TEST(ScriptLine, MayFail) {
  ScriptReply reply = reply_of(
      R"({"pieces": [{"text": "a"}, {"text": "b"}], "error": {"message": "it broke", "after": 1}})");
  EXPECT_EQ(reply.finish_reason, FinishReason::kError);
  EXPECT_EQ(reply.error_message, "it broke");
  EXPECT_EQ(reply.error_after, 1);
  reply = reply_of(R"({"pieces": [], "finish_reason": "error", "error": {"message": "at once"}})");
  EXPECT_FALSE(reply.error_after);
}

TEST(ScriptLine, GivesLogprobs) {
  const ScriptReply reply = reply_of(
      R"({"pieces": [{"text": "a", "logprob": -0.5, "top_logprobs": [{"text": "Hello",
          "logprob": -0.25}, {"id": 97, "logprob": -0.5}]}]})");
  EXPECT_EQ(reply.pieces[0].logprob, -0.5f);
  ASSERT_EQ(reply.pieces[0].top.size(), 2u);
  EXPECT_EQ(reply.pieces[0].top[0].token_id, kHello);
  EXPECT_EQ(reply.pieces[0].top[1].logprob, -0.5f);
}

TEST(ScriptLine, IsRefusedByFieldWithWhatWasFoundAndExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {"7", "line 1: found 7, expected an object"},
      {"{", "line 1: found incomplete JSON at byte 1, expected JSON"},
      {R"({"pieces": [], "pieces": []})", "line 1: pieces: found again at byte "},
      {R"({"pices": []})", "line 1: found \"pices\", expected one of key, choice, pieces, "},
      {"{}", "line 1: pieces: found nothing, expected a list of up to 65536 pieces"},
      {R"({"pieces": {}})", "pieces: found {}, expected a list"},
      {R"({"pieces": [1]})", "pieces[0]: found 1, expected an object"},
      {R"({"pieces": [{}]})", "pieces[0]: found 0 of them, expected one of text, base64, ids"},
      {R"({"pieces": [{"text": "a", "ids": [1]}]})", "pieces[0]: found 2 of them, "},
      {R"({"pieces": [{"text": "a", "txt": 1}]})", "pieces[0]: found \"txt\", expected one of text"},
      {R"({"pieces": [{"text": ""}]})", "pieces[0].text: found \"\", expected a string of 1 to "},
      {R"({"pieces": [{"text": "a"}, {"base64": "4oI"}]})", "pieces[1].base64: found \"4oI\", "},
      {R"({"pieces": [{"base64": "4o=="}]})", "expected base64 with its padding"},
      {R"({"pieces": [{"base64": "===="}]})", "expected base64 with its padding"},
      {R"({"pieces": [{"base64": "4oI=4oI="}]})", "expected base64 with its padding"},
      {R"({"pieces": [{"ids": []}]})", "pieces[0].ids: found [], expected a list of token ids"},
      {R"({"pieces": [{"ids": [1, 512]}]})",
       "pieces[0].ids[1]: found 512, expected an integer from 0 to 511"},
      {R"({"pieces": [{"ids": [1.5]}]})", "pieces[0].ids[0]: found 1.5, expected an integer"},
      {R"({"pieces": [{"text": "a", "delay_ms": -1}]})",
       "pieces[0].delay_ms: found -1, expected milliseconds from 0 to 3600000"},
      {R"({"pieces": [], "delay_ms": "1"})", "line 1: delay_ms: found \"1\", expected milliseconds"},
      {R"({"pieces": [], "first_delay_ms": 1e9})", "first_delay_ms: found 1e"},
      {R"({"pieces": [], "key": ""})", "key: found \"\", expected a string of 1 to 4096 bytes"},
      {R"({"pieces": [], "choice": 128})", "choice: found 128, expected an integer from 0 to 127"},
      {R"({"pieces": [], "repeat": 0})",
       "repeat: found 0, expected an integer from 1 to 1000000, or \"forever\""},
      {R"({"pieces": [], "repeat": "forever"})", "pieces: found [], expected some to repeat"},
      {R"({"pieces": [], "ignore_limits": 1})", "ignore_limits: found 1, expected true or false"},
      {R"({"pieces": [], "finish_reason": "tool_calls"})",
       "finish_reason: found \"tool_calls\", expected \"stop\", \"length\", \"abort\" or \"error\""},
      {R"({"pieces": [], "finish_reason": "timeout"})", "finish_reason: found \"timeout\""},
      {R"({"pieces": [], "finish_reason": "error"})",
       "error: found nothing, expected one with finish_reason \"error\""},
      {R"({"pieces": [], "finish_reason": "stop", "error": {"message": "x"}})",
       "finish_reason: found \"stop\", expected \"error\" beside an error"},
      {R"({"pieces": [], "error": {}})", "error.message: found nothing, expected a string"},
      {R"({"pieces": [], "error": {"message": "x", "after": 1}})",
       "error.after: found 1, expected an integer from 0 to 0"},
      {R"({"pieces": [{"text": "a", "logprob": 0.5}]})",
       "pieces[0].logprob: found 0.5, expected a log-probability from -9999 to 0"},
      {R"({"pieces": [{"text": "a", "top_logprobs": []}]})",
       "pieces[0].logprob: found nothing, expected one beside top_logprobs"},
      {R"({"pieces": [{"text": "a", "logprob": -1, "top_logprobs": [{"id": 1}]}]})",
       "pieces[0].top_logprobs[0].logprob: found nothing, expected a log-probability"},
      {R"({"pieces": [{"text": "a", "logprob": -1, "top_logprobs": [{"text": "ab", "logprob": -1}]}]})",
       "pieces[0].top_logprobs[0].text: found \"ab\", expected the text of one token"},
      {"\n \n{\"pieces\": []}\n{\"pieces\": 5}", "line 4: pieces: found 5, "},
      {"", "found no line, expected at least one reply"},
  };
  for (const auto& [text, want] : cases) EXPECT_THAT(error_of(text), HasSubstr(want)) << text;
  EXPECT_THAT(error_of(R"({"pieces": [{"text": "a", "logprob": -1, "top_logprobs": [)"
                       R"({"id": 1, "logprob": -2}, {"id": 2, "logprob": -1}]}]})"),
              HasSubstr("top_logprobs[1].logprob: found -1, expected none above the one before it"));
  EXPECT_THAT(error_of(R"({"pieces": [{"text": "a", "logprob": -1, "top_logprobs": [)"
                       R"({"id": 1, "logprob": -2}, {"id": 1, "logprob": -2}]}]})"),
              HasSubstr("top_logprobs[1]: found token 1 again, expected others"));
}

TEST(ScriptLine, NeedsAVocabularyThatHasItsBytes) {
  TokenTable table = byte_table();
  table.bytes['!'].clear();
  EXPECT_EQ(error_of("\n{\"pieces\": [{\"text\": \"a\"}, {\"text\": \"oh!\"}]}", table),
            "line 2: pieces[1].text: found byte 0x21 at 2, expected bytes that the tokenizer has "
            "tokens for");
}

TEST(ScriptLine, HasLimits) {
  EXPECT_THAT(error_of(std::string(kMaxScriptLineBytes + 1, '{')), HasSubstr("line 1: found 1048577 "));
  std::string pieces = R"({"pieces": [)";
  for (size_t i = 0; i <= kMaxScriptPieces; ++i) pieces += i == 0 ? "1" : ",1";
  EXPECT_THAT(error_of(pieces + "]}"), HasSubstr("expected a list of up to 65536 pieces"));
  std::string lines;
  for (size_t i = 0; i <= kMaxScriptLines; ++i) lines += "{\"pieces\":[]}\n";
  EXPECT_EQ(error_of(lines), "line 65537: found another reply, expected at most 65536");
  EXPECT_THAT(error_of(R"({"pieces": [[[[[[[[[[1]]]]]]]]]]})"), HasSubstr("of at most 8 levels"));
}

// ---- Who answers what.

class ScriptChoice : public ::testing::Test {
 protected:
  void open(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    script_.emplace(std::move(Script::parse(text, table_).value()));
  }
  // What each choice says: its one piece's text.
  std::vector<std::string> ask(std::string_view prompt, int32_t num_choices = 1, int32_t first = 0) {
    const Result<Script::Group*> group = script_->find(prompt, first, num_choices);
    if (!group.has_value()) return {group.error().message};
    std::vector<std::string> said;
    for (const ScriptReply* reply : script_->choose(*group.value(), first, num_choices)) {
      said.push_back(bytes_of(table_, reply->pieces[0].token_ids));
    }
    return said;
  }

  const TokenTable table_ = byte_table();
  std::optional<Script> script_;
};

TEST_F(ScriptChoice, LinesWithoutKeyTakeTurns) {
  open({R"({"pieces": [{"text": "one"}]})", R"({"pieces": [{"text": "two"}]})"});
  EXPECT_THAT(ask("x"), ElementsAre("one"));
  EXPECT_THAT(ask("y"), ElementsAre("two"));
  EXPECT_THAT(ask("x"), ElementsAre("one"));
}

TEST_F(ScriptChoice, TheLongestKeyInThePromptWinsAndItsLinesTakeTurns) {
  open({R"({"pieces": [{"text": "any"}]})", R"({"key": "rain", "pieces": [{"text": "wet"}]})",
        R"({"key": "rain in Spain", "pieces": [{"text": "plain"}]})",
        R"({"key": "rain", "pieces": [{"text": "wetter"}]})"});
  EXPECT_THAT(ask("the rain in Spain"), ElementsAre("plain"));
  EXPECT_THAT(ask("the rain"), ElementsAre("wet"));
  EXPECT_THAT(ask("the sun"), ElementsAre("any"));
  EXPECT_THAT(ask("more rain"), ElementsAre("wetter"));
  EXPECT_THAT(ask("the rain"), ElementsAre("wet"));
}

TEST_F(ScriptChoice, APromptThatNothingAnswersIsNamed) {
  open({R"({"key": "rain", "pieces": [{"text": "wet"}]})",
        R"({"key": "sun", "pieces": [{"text": "dry"}]})"});
  EXPECT_THAT(ask("snow"), ElementsAre("script: found none of its 2 keys in the prompt, expected "
                                       "one, or a line without a key"));
}

TEST_F(ScriptChoice, ChoicesSayTheSameUnlessALineIsTheirs) {
  open({R"({"pieces": [{"text": "all"}]})", R"({"choice": 1, "pieces": [{"text": "second"}]})",
        R"({"pieces": [{"text": "next"}]})"});
  EXPECT_THAT(ask("x", 3), ElementsAre("all", "second", "all"));
  EXPECT_THAT(ask("x", 3), ElementsAre("next", "second", "next"));
  EXPECT_THAT(ask("x", 2, 1), ElementsAre("second", "all")) << "choices 1 and 2";
  open({R"({"choice": 0, "pieces": [{"text": "first"}]})"});
  EXPECT_THAT(ask("x", 2), ElementsAre("script: found no line of this prompt's for choice 1, "
                                       "expected one, or one without a choice"));
}

}  // namespace
}  // namespace millrace
