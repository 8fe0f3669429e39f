#include "engine/script_player.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/test_byte_vocabulary.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using namespace test;

constexpr int64_t kMs = 1'000'000;

class ScriptPlayerTest : public ::testing::Test {
 protected:
  struct Event {
    int64_t due_ms;
    StreamEvent event;
  };

  // All events of the answer that `line` gives.
  std::vector<Event> play(std::string_view line, Request request, int64_t max_model_len = 1000) {
    const Script script = std::move(Script::parse(one_line(line), table_).value());
    request.prompt_token_ids = ids_of("prompt");
    ScriptPlayer player(script.replies()[0], request, tokens_, max_model_len);
    std::vector<Event> events;
    while (!player.has_ended()) {
      const int64_t due_ns = player.due_ns();
      events.push_back({due_ns / kMs, player.next()});
      EXPECT_EQ(player.has_ended(), events.back().event.finish_reason.has_value());
    }
    return events;
  }

  static std::vector<int32_t> tokens_of(const std::vector<Event>& events) {
    std::vector<int32_t> ids;
    for (const Event& e : events) {
      if (e.event.token_id) ids.push_back(*e.event.token_id);
    }
    return ids;
  }
  static std::vector<int64_t> due_ms(const std::vector<Event>& events) {
    std::vector<int64_t> times;
    for (const Event& e : events) times.push_back(e.due_ms);
    return times;
  }
  static Request with(SamplingParams sampling) {
    Request request;
    request.sampling = std::move(sampling);
    return request;
  }

  const TokenTable table_ = byte_table();
  const OutputTokens tokens_{table_.bytes, table_.is_control, table_.eos_token_ids};
};

TEST_F(ScriptPlayerTest, AnEndTokenFollowsTheLastPiece) {
  const std::vector<Event> events = play(R"({"pieces": [{"text": "Hello world"}]})", {});
  EXPECT_THAT(tokens_of(events), ElementsAre(kHello, kWorld, kEnd));
  const StreamEvent& last = events.back().event;
  EXPECT_EQ(last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(last.stop_reason, StopReason());
  EXPECT_EQ(last.num_settled_bytes, 11);
  EXPECT_EQ(events[0].event.num_computed_tokens, 6);
  EXPECT_EQ(last.num_computed_tokens, 8);
  EXPECT_FALSE(events[0].event.logprobs);
}

TEST_F(ScriptPlayerTest, DelaysAddUpAndAllTokensOfAPieceComeTogether) {
  constexpr std::string_view kLine =
      R"({"first_delay_ms": 100, "delay_ms": 10, "repeat": 2, "pieces": [
          {"text": "ab", "delay_ms": 1}, {"text": "c"}, {"text": "d", "delay_ms": 0}]})";
  EXPECT_THAT(due_ms(play(kLine, {})),
              ElementsAre(100, 100, 110, 110, 111, 111, 121, 121, 121));
  EXPECT_THAT(due_ms(play(R"({"delay_ms": 10, "pieces": [{"text": "a"}, {"text": "b"}]})", {})),
              ElementsAre(10, 20, 20));
}

TEST_F(ScriptPlayerTest, ManySmallDelaysDoNotDrift) {
  const std::vector<Event> events = play(
      R"({"delay_ms": 0.1, "repeat": 50000, "finish_reason": "length", "pieces": [{"text": "a"}]})",
      {}, 100'000);
  ASSERT_EQ(events.size(), 50'000u);
  EXPECT_EQ(events.back().due_ms, 5000);
}

TEST_F(ScriptPlayerTest, EndsAsTheLineSays) {
  std::vector<Event> events =
      play(R"({"finish_reason": "length", "pieces": [{"text": "ab"}]})", {});
  ASSERT_EQ(events.size(), 2u) << "the last token says so itself";
  EXPECT_EQ(events.back().event.finish_reason, FinishReason::kLength);

  events = play(R"({"finish_reason": "abort", "pieces": [{"text": "ab"}]})", {});
  ASSERT_EQ(events.size(), 3u);
  EXPECT_FALSE(events.back().event.token_id);
  EXPECT_EQ(events.back().event.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(events.back().event.num_settled_bytes, 2);

  events = play(R"({"error": {"message": "it broke", "after": 3}, "repeat": 2, "delay_ms": 5,
                    "pieces": [{"text": "a"}, {"text": "b"}]})",
                {});
  EXPECT_THAT(tokens_of(events), ElementsAre('a', 'b', 'a'));
  EXPECT_EQ(events.back().event.finish_reason, FinishReason::kError);
  EXPECT_EQ(events.back().event.error->message, "it broke");
  EXPECT_EQ(events.back().event.error->code, Code::kCorrupt);
  EXPECT_EQ(events.back().due_ms, 15);
}

TEST_F(ScriptPlayerTest, AnAnswerMayBeEmptyOrFailAtOnce) {
  EXPECT_THAT(tokens_of(play(R"({"pieces": []})", {})), ElementsAre(kEnd));
  for (const char* reason : {"length", "abort"}) {
    const std::vector<Event> events = play(
        R"({"first_delay_ms": 9, "pieces": [], "finish_reason": ")" + std::string(reason) + "\"}", {});
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].due_ms, 9);
    EXPECT_EQ(finish_reason_name(*events[0].event.finish_reason), reason);
  }
  const std::vector<Event> events =
      play(R"({"pieces": [{"text": "a"}], "error": {"message": "x", "after": 0}})", {});
  EXPECT_THAT(tokens_of(events), IsEmpty());
  EXPECT_EQ(events[0].event.finish_reason, FinishReason::kError);
}

TEST_F(ScriptPlayerTest, LimitsOfTheRequestCount) {
  SamplingParams sampling;
  sampling.max_tokens = 3;
  std::vector<Event> events = play(R"({"pieces": [{"text": "abcdef"}]})", with(sampling));
  EXPECT_THAT(tokens_of(events), ElementsAre('a', 'b', 'c'));
  EXPECT_EQ(events.back().event.finish_reason, FinishReason::kLength);

  events = play(R"({"repeat": "forever", "pieces": [{"text": "ab"}]})", {}, 11);
  EXPECT_THAT(tokens_of(events), ElementsAre('a', 'b', 'a', 'b', 'a')) << "the context is full";
  EXPECT_EQ(events.back().event.finish_reason, FinishReason::kLength);

  sampling.max_tokens = 0;
  events = play(R"({"first_delay_ms": 5, "pieces": [{"text": "a"}]})", with(sampling));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_FALSE(events[0].event.token_id);
  EXPECT_EQ(events[0].event.num_computed_tokens, 6);
  EXPECT_EQ(events[0].event.finish_reason, FinishReason::kLength);
  EXPECT_EQ(events[0].due_ms, 5);
}

TEST_F(ScriptPlayerTest, StopTokensAndStopStringsEndTheAnswer) {
  SamplingParams sampling;
  sampling.stop_token_ids = {'c'};
  std::vector<Event> events = play(R"({"pieces": [{"text": "abcd"}]})", with(sampling));
  EXPECT_THAT(tokens_of(events), ElementsAre('a', 'b', 'c'));
  EXPECT_EQ(events.back().event.stop_reason, StopReason('c'));
  EXPECT_EQ(events.back().event.num_settled_bytes, 2);

  sampling = {};
  sampling.stop = {"o w"};
  events = play(R"({"pieces": [{"text": "Hello world, again"}]})", with(sampling));
  EXPECT_THAT(tokens_of(events), ElementsAre(kHello, kWorld));
  EXPECT_EQ(events[0].event.num_settled_bytes, 4) << "the last letter may begin the stop string";
  EXPECT_EQ(events.back().event.stop_reason, StopReason("o w"));
  EXPECT_EQ(events.back().event.num_settled_bytes, 4);
}

TEST_F(ScriptPlayerTest, AnEndTokenInsideALineEndsItUnlessTheRequestIgnoresIt) {
  constexpr std::string_view kLine = R"({"pieces": [{"text": "a<end>b"}]})";
  EXPECT_THAT(tokens_of(play(kLine, {})), ElementsAre('a', kEnd));
  SamplingParams sampling;
  sampling.ignore_eos = true;
  sampling.max_tokens = 7;
  EXPECT_THAT(tokens_of(play(kLine, with(sampling))),
              ElementsAre('a', kEnd, 'b', kEnd, 'a', kEnd, 'b'))
      << "and goes on from its beginning";
  sampling.max_tokens = 4;
  EXPECT_THAT(tokens_of(play(R"({"pieces": []})", with(sampling))),
              ElementsAre(kEnd, kEnd, kEnd, kEnd));
}

TEST_F(ScriptPlayerTest, BeforeMinTokensNothingEndsIt) {
  SamplingParams sampling;
  sampling.min_tokens = 5;
  sampling.stop_token_ids = {'c'};
  EXPECT_THAT(tokens_of(play(R"({"pieces": [{"text": "ab<end>c"}]})", with(sampling))),
              ElementsAre('a', 'b', 'a', 'b', 'a', 'b', kEnd));
  EXPECT_THAT(tokens_of(play(R"({"pieces": [{"text": "c<end>"}], "repeat": 1000000})",
                             with(sampling))),
              ElementsAre(kEnd))
      << "nothing that may come";
}

TEST_F(ScriptPlayerTest, ControlTokensLeaveNoBytesUnlessTheRequestKeepsThem) {
  SamplingParams sampling;
  constexpr std::string_view kLine = R"({"pieces": [{"text": "a<user>b"}]})";
  EXPECT_EQ(play(kLine, with(sampling)).back().event.num_settled_bytes, 2);
  sampling.skip_special_tokens = false;
  EXPECT_EQ(play(kLine, with(sampling)).back().event.num_settled_bytes, 8);
}

TEST_F(ScriptPlayerTest, ALineMayIgnoreWhatTheRequestWants) {
  SamplingParams sampling;
  sampling.max_tokens = 1;
  sampling.stop = {"b"};
  sampling.stop_token_ids = {'c'};
  sampling.ignore_eos = true;
  const std::vector<Event> events =
      play(R"({"ignore_limits": true, "pieces": [{"text": "abcd"}]})", with(sampling));
  EXPECT_THAT(tokens_of(events), ElementsAre('a', 'b', 'c', 'd', kEnd));
  EXPECT_EQ(tokens_of(play(R"({"ignore_limits": true, "repeat": "forever", "pieces":
                               [{"text": "a"}]})",
                           with(sampling), 100))
                .size(),
            94u)
      << "but not the context";
}

TEST_F(ScriptPlayerTest, LogprobsAreThoseOfTheLineAndNoOthers) {
  SamplingParams sampling;
  sampling.logprobs = 2;
  constexpr std::string_view kLine =
      R"({"pieces": [{"text": "b"}, {"text": "a", "logprob": -0.5, "top_logprobs": [
          {"id": 1, "logprob": -0.25}, {"id": 2, "logprob": -0.5}, {"id": 97, "logprob": -0.5},
          {"id": 200, "logprob": -0.5}]}]})";
  const std::vector<Event> events = play(kLine, with(sampling));
  EXPECT_EQ(events[0].event.logprobs->token.logprob, -1);
  EXPECT_EQ(events[0].event.logprobs->token.rank, 1);
  EXPECT_THAT(events[0].event.logprobs->top, IsEmpty());
  const TokenLogprobs& given = *events[1].event.logprobs;
  EXPECT_EQ(given.token.token_id, 'a');
  EXPECT_EQ(given.token.logprob, -0.5f);
  EXPECT_EQ(given.token.rank, 3);
  ASSERT_EQ(given.top.size(), 2u);
  EXPECT_EQ(given.top[1].token_id, 2);
  EXPECT_EQ(given.top[1].rank, 2);
  sampling.logprobs = -1;
  EXPECT_EQ(play(kLine, with(sampling))[1].event.logprobs->top.size(), 4u);
  sampling.logprobs = 0;
  EXPECT_THAT(play(kLine, with(sampling))[1].event.logprobs->top, IsEmpty());
}

}  // namespace
}  // namespace millrace
