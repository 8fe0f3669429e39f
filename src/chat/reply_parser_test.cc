#include "chat/reply_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "chat/strict_parser.h"
#include "chat/test_reply_definition.h"

namespace millrace {
namespace {

using Kind = ReplyEvent::Kind;

const std::string kCall =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"city\" string=\"true\">Paris</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"n\" string=\"false\">2</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>";

std::string written(const std::vector<ReplyEvent>& events) {
  constexpr std::string_view kNames[] = {"reasoning", "content", "call", "arguments"};
  std::string out;
  for (const ReplyEvent& event : events) {
    out += kNames[size_t(event.kind)];
    if (event.call_idx >= 0) out += std::to_string(event.call_idx);
    out += "[" + event.text + "]\n";
  }
  return out;
}

// Events with adjacent deltas merged, one a line.
std::string events_of(const ReplyParserOptions& options,
                      const std::vector<std::string_view>& pieces) {
  ReplyParser parser(options);
  std::vector<ReplyEvent> merged;
  const auto take = [&](const std::vector<ReplyEvent>& events) {
    for (const ReplyEvent& event : events) {
      if (!merged.empty() && event.kind != Kind::kToolCall && merged.back().kind == event.kind &&
          merged.back().call_idx == event.call_idx) {
        merged.back().text += event.text;
      } else {
        merged.push_back(event);
      }
    }
  };
  for (const std::string_view piece : pieces) take(parser.feed(piece));
  take(parser.finish());
  return written(merged) + parser.finish_reason("stop") + " " +
         std::to_string(parser.num_invalid_bytes());
}

std::string content_of(const ReplyParserOptions& options, std::string_view text) {
  ReplyParser parser(options);
  Reply reply;
  for (const ReplyEvent& event : parser.feed(text)) reply.add(event);
  for (const ReplyEvent& event : parser.finish()) reply.add(event);
  EXPECT_EQ(reply.reasoning, "");
  return reply.content;
}

TEST(ReplyParser, NamesACallBeforeItsArguments) {
  EXPECT_EQ(events_of({.start = ReplyStart::kReasoning}, {"hm\n</think>\n\nYes.", kCall, "\n x"}),
            "reasoning[hm]\ncontent[Yes.]\ncall0[f]\narguments0[{\"city\": \"Paris\", \"n\": 2}]\n"
            "tool_calls 3");
}

TEST(ReplyParser, SendsTextAsSoonAsItCannotBeMarkup) {
  ReplyParser parser({});
  const auto fed = [&](std::string_view bytes) {
    std::string text;
    for (const ReplyEvent& event : parser.feed(bytes)) text += event.text;
    return text;
  };
  EXPECT_EQ(fed("a"), "a");
  EXPECT_EQ(fed("b\n"), "b");
  EXPECT_EQ(fed("\n<"), "");
  EXPECT_EQ(fed("p>"), "\n\n<p>");
  EXPECT_EQ(fed("x</｜DSML"), "x</｜DSML");
  EXPECT_EQ(fed("y<｜DS"), "y");
  EXPECT_EQ(fed("ML"), "");
  EXPECT_EQ(fed("X"), "<｜DSMLX");
}

TEST(ReplyParser, LeavesAnUnfinishedCallUnfinished) {
  const std::string whole = kCall;
  const auto arguments_after = [&](std::string_view last) {
    const size_t end = whole.find(last) + last.size();
    ReplyParser parser({});
    Reply reply;
    for (const ReplyEvent& event : parser.feed(whole.substr(0, end))) reply.add(event);
    for (const ReplyEvent& event : parser.finish()) reply.add(event);
    EXPECT_EQ(parser.finish_reason("length"), "length");
    EXPECT_FALSE(parser.is_complete());
    return reply.tool_calls.at(0).arguments;
  };
  EXPECT_EQ(arguments_after("name=\"f"), "");
  EXPECT_EQ(arguments_after("name=\"f\">"), "");
  EXPECT_EQ(arguments_after("parameter name=\""), "{\"");
  EXPECT_EQ(arguments_after("name=\"ci"), "{\"ci");
  EXPECT_EQ(arguments_after("string=\"tr"), "{\"city");
  EXPECT_EQ(arguments_after("string=\"true\">"), "{\"city\": \"");
  EXPECT_EQ(arguments_after("Par"), "{\"city\": \"Par");
  EXPECT_EQ(arguments_after("Paris</｜"), "{\"city\": \"Paris</｜");
  EXPECT_EQ(arguments_after("Paris</｜DSML｜"), "{\"city\": \"Paris\"");
}

TEST(ReplyParser, StopsAtTheMatchThatEndsFirst) {
  ReplyParserOptions options{.stop = {"", "abcd", "bc", "xx"}};
  ReplyParser parser(options);
  Reply reply;
  for (const ReplyEvent& event : parser.feed("1ab2abcde")) reply.add(event);
  EXPECT_EQ(reply.content, "1ab2a");
  EXPECT_EQ(parser.matched_stop(), "bc");
  EXPECT_TRUE(parser.is_complete());
  EXPECT_EQ(parser.finish_reason("length"), "stop");

  EXPECT_EQ(content_of({.stop = {"bcd", "abcd"}}, "1abcd"), "1");  // end together: the longest
  EXPECT_EQ(content_of({.stop = {"aab"}}, "aaaab"), "aa");         // overlapping beginnings
  EXPECT_EQ(content_of({.stop = {"ababac"}}, "abababac!"), "ab");
}

TEST(ReplyParser, DropsLeadingNewlinesBeforeItLooksForStopStrings) {
  EXPECT_EQ(content_of({.stop = {"\n\n"}}, "\n\nAnswer\n\nmore"), "Answer");
  EXPECT_EQ(content_of({.start = ReplyStart::kContentContinued, .stop = {"\n\n"}}, "\n\nmore"), "");
}

TEST(ReplyParser, CountsANewlineAfterAFailedMatchAsNewlineBeforeTheTag) {
  EXPECT_EQ(events_of({.start = ReplyStart::kReasoning}, {"a<\n</think>b"}),
            "reasoning[a<]\ncontent[b]\nstop 0");
  EXPECT_EQ(events_of({.start = ReplyStart::kReasoning}, {"a\n<</think>b"}),
            "reasoning[a\n<]\ncontent[b]\nstop 0");
  EXPECT_EQ(events_of({.start = ReplyStart::kReasoning}, {"a\n<\n</think>b"}),
            "reasoning[a\n<]\ncontent[b]\nstop 0");
}

TEST(ReplyParser, WritesOneBlankForEachRunOfTextAroundJson) {
  const auto json = [](std::string_view text) {
    return content_of({.json_output = true}, text);
  };
  EXPECT_EQ(json("```json\n{\"a\": 1}\n```"), "{\"a\": 1}");
  EXPECT_EQ(json("Sure! ```\n[1]\n```\nDone {}"), " [1] ");
  EXPECT_EQ(json("a ``{\"x\": \"```\"}"), " {\"x\": \"```\"}");
  EXPECT_EQ(json("no json ``"), " ");
  EXPECT_EQ(json("{}\n``"), "{}\n``");
  EXPECT_EQ(json("x{}" + kCall), " {}");
  EXPECT_EQ(content_of({.start = ReplyStart::kContentContinued, .json_output = true}, "a\": 1}"),
            "a\": 1}");
}

TEST(ReplyParser, PassesManyNewlinesWithoutDelay) {
  const std::string flood(200000, '\n');
  EXPECT_EQ(content_of({}, "a" + flood + "b").size(), flood.size() + 2);
  EXPECT_EQ(content_of({}, "a" + flood + "<｜DSML｜"), "a");
}

// Text drawn from pieces that make states change, cut at random, against the text fed whole and
// against the definition.
TEST(ReplyParser, GivesTheEventsOfItsDefinitionForEveryCut) {
  const std::string_view fragments[] = {
      "\n", "\n\n", "<", "</think>", "<｜DSML｜", " calls>\n", "</｜DSML｜", "</｜DSML｜ calls>",
      " invoke name=\"", "\">", " parameter name=\"", "\" string=\"true\">",
      "\" string=\"false\">", "a", "STOP", "ST", "{", "[", "```json\n", "```\n", "\n```",
      "\xE6\x95\xB0", "\"", "invoke", "\\",
  };
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](size_t count) { return size_t(random() % count); };
    std::string text;
    for (size_t n = pick(25); n > 0; --n) text += fragments[pick(std::size(fragments))];
    ReplyParserOptions options;
    options.start = ReplyStart(pick(5));
    if (pick(2) == 1) options.stop = {"STOP", "TO\n", "\n\nS", ""};
    options.parse_tools = pick(4) > 0;
    options.json_output = pick(3) == 0;

    std::vector<std::string_view> bytes;
    std::vector<std::string_view> pieces;
    const std::string_view all = text;
    for (size_t i = 0; i < all.size(); ++i) bytes.push_back(all.substr(i, 1));
    for (size_t i = 0; i < all.size();) {
      pieces.push_back(all.substr(i, 1 + pick(6)));
      i += pieces.back().size();
    }
    const std::string want = events_of(options, {all});
    const ReplyDefinition definition(options, text);
    const bool has_calls = want.find("call0") != want.npos;
    ASSERT_EQ(written(definition.events()) + (has_calls && !definition.matched_stop() ? "tool_calls "
                                                                                     : "stop ") +
                  std::to_string(definition.num_invalid_bytes()),
              want)
        << "seed=" << seed << " text=" << text;
    ASSERT_EQ(events_of(options, bytes), want) << "seed=" << seed << " text=" << text;
    ASSERT_EQ(events_of(options, pieces), want) << "seed=" << seed << " text=" << text;
  }
}

TEST(StrictParser, NeedsTheEndOfSentenceUnlessCallsCameLast) {
  EXPECT_FALSE(parse_reply_strictly("Hello.", false).has_value());
  EXPECT_EQ(parse_reply_strictly("Hello.<｜end▁of▁sentence｜>", false).value().content, "Hello.");
  EXPECT_FALSE(parse_reply_strictly("a<｜end▁of▁sentence｜>b", false).has_value());
  const Result<Reply> reply = parse_reply_strictly("Hi" + kCall, false);
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_EQ(reply.value().content, "Hi");
  EXPECT_EQ(reply.value().tool_calls.at(0).arguments, "{\"city\": \"Paris\", \"n\": 2}");
  EXPECT_TRUE(parse_reply_strictly("\n\n<｜DSML｜ calls>\n</｜DSML｜ calls>", false)
                  .value()
                  .tool_calls.empty());
}

TEST(StrictParser, RefusesACallBeforeTheEndOfReasoning) {
  EXPECT_FALSE(parse_reply_strictly("r" + kCall + "</think><｜end▁of▁sentence｜>", true).has_value());
  EXPECT_TRUE(parse_reply_strictly("r</think>" + kCall, true).has_value());
  EXPECT_FALSE(parse_reply_strictly("｜DSML｜</think>x<｜end▁of▁sentence｜>", true).has_value());
}

}  // namespace
}  // namespace millrace
