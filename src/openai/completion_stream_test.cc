#include "openai/completion_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "openai/test_answers.h"

namespace millrace::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kReply =
    "I think: ü.</think>Straße 🙂\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"a\" string=\"true\">é \"q\"\n</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"b\" string=\"false\">[1, 2.50]</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

// The characters of a text.
std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> found;
  for (char c : text) {
    if ((uint8_t(c) & 0xc0) != 0x80) found.emplace_back();
    found.back() += c;
  }
  return found;
}

// Every event is one line of JSON behind "data: ", and an empty line.
std::vector<JsonValue> events_of(std::string_view stream) {
  std::vector<JsonValue> events;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    if (end == stream.npos || !stream.starts_with("data: ")) {
      ADD_FAILURE() << "no event: " << stream;
      break;
    }
    const std::string_view data = stream.substr(6, end - 6);
    if (data == "[DONE]") {
      EXPECT_EQ(stream.size(), end + 2) << "nothing follows";
      break;
    }
    const Result<JsonValue> json = parse_json(data);
    if (!json.has_value()) {
      ADD_FAILURE() << json.error().message << ": " << data;
      break;
    }
    events.push_back(json.value());
    stream.remove_prefix(end + 2);
  }
  return events;
}

class Stream {
 public:
  explicit Stream(Endpoint endpoint, const std::string& fields = "", size_t num_prompts = 1)
      : request_(test_request(endpoint, fields)),
        prompts_(num_prompts, Prompt{{5, 6, 7}, std::nullopt}),
        stream_(request_, prompts_, test_context()) {}

  // The events that a step gives.
  std::vector<JsonValue> add(const AnswerEvent& event, const TestChoice& choice,
                             size_t prompt_idx = 0) {
    std::string out;
    stream_.add(prompt_idx, event, choice.answer(), out);
    EXPECT_THAT(out, ::testing::Not(HasSubstr("[DONE]")));
    std::vector<JsonValue> events = events_of(out);
    all_.insert(all_.end(), events.begin(), events.end());
    return events;
  }
  std::vector<JsonValue> finish() {
    std::string out;
    stream_.finish(out);
    EXPECT_TRUE(out.ends_with("data: [DONE]\n\n")) << out;
    return events_of(out);
  }

  const CompletionRequest& request() const { return request_; }
  const std::vector<Prompt>& prompts() const { return prompts_; }
  const std::vector<JsonValue>& all() const { return all_; }

 private:
  CompletionRequest request_;
  std::vector<Prompt> prompts_;
  CompletionStream stream_;
  std::vector<JsonValue> all_;
};

std::vector<std::string> shown(const std::vector<JsonValue>& events, std::string_view path) {
  std::vector<std::string> values;
  for (const JsonValue& event : events) values.push_back(openai::shown(event, path));
  return values;
}

std::string text_at(const JsonValue& json, std::string_view path) {
  const JsonValue* value = at(json, path);
  return value == nullptr || !value->is(JsonValue::Kind::kString) ? "" : value->text;
}

// What a client knows of a choice in the end.
struct Said {
  std::string reasoning, content, finish_reason, stop_reason;
  std::vector<std::pair<std::string, std::string>> calls;
  std::vector<std::string> call_ids, tokens;
  bool operator==(const Said&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Said& said) {
  out << said.reasoning << " | " << said.content << " | " << said.finish_reason << " | "
      << said.stop_reason;
  for (const auto& [name, arguments] : said.calls) out << " | " << name << arguments;
  for (const std::string& token : said.tokens) out << " | " << token;
  return out;
}

void add_tokens(const JsonValue& json, std::string_view path, Said& said) {
  const JsonValue* tokens = at(json, path);
  if (tokens == nullptr || !tokens->is(JsonValue::Kind::kArray)) return;
  for (const JsonValue& token : tokens->items) said.tokens.push_back(openai::shown(token, "token"));
}

// Adds up a chat's only choice, and holds every chunk to the rules.
Said add_up(const std::vector<JsonValue>& events) {
  Said said;
  for (size_t i = 0; i < events.size(); ++i) {
    const JsonValue& event = events[i];
    const JsonValue& delta = *at(event, "choices.0.delta");
    EXPECT_EQ(said.finish_reason, "") << "nothing follows the finish reason";
    if (i == 0) {
      EXPECT_EQ(openai::shown(delta, ""), R"({"role": "assistant", "content": ""})");
      continue;
    }
    said.finish_reason = text_at(event, "choices.0.finish_reason");
    said.stop_reason = openai::shown(event, "choices.0.stop_reason");
    const std::string reasoning = text_at(delta, "reasoning"), content = text_at(delta, "content");
    const JsonValue* call = at(delta, "tool_calls.0");
    const int num_kinds = !reasoning.empty() + !content.empty() + (call != nullptr);
    EXPECT_TRUE(num_kinds == 1 || (num_kinds == 0 && !said.finish_reason.empty()))
        << openai::shown(event, "");
    EXPECT_EQ(text_at(delta, "reasoning_content"), reasoning);
    EXPECT_EQ(openai::shown(delta, "role"), "absent");
    said.reasoning += reasoning;
    said.content += content;
    if (call != nullptr) {
      if (call->find("id") != nullptr) {
        EXPECT_EQ(openai::shown(*call, "index"), std::to_string(said.calls.size()));
        EXPECT_EQ(openai::shown(*call, "type"), "\"function\"");
        EXPECT_EQ(text_at(*call, "function.arguments"), "");
        said.call_ids.push_back(text_at(*call, "id"));
        said.calls.emplace_back(text_at(*call, "function.name"), "");
      } else {
        EXPECT_EQ(openai::shown(*call, "index"), std::to_string(said.calls.size() - 1));
        EXPECT_NE(text_at(*call, "function.arguments"), "");
        said.calls.back().second += text_at(*call, "function.arguments");
      }
    }
    add_tokens(event, "choices.0.logprobs.content", said);
  }
  return said;
}

// The same of a body.
Said read_body(const std::string& body) {
  const JsonValue json = parse_json(body).value();
  const JsonValue& message = *at(json, "choices.0.message");
  Said said;
  said.reasoning = text_at(message, "reasoning");
  said.content = text_at(message, "content");
  said.finish_reason = text_at(json, "choices.0.finish_reason");
  said.stop_reason = openai::shown(json, "choices.0.stop_reason");
  for (const JsonValue& call : at(message, "tool_calls")->items) {
    said.call_ids.push_back(text_at(call, "id"));
    said.calls.emplace_back(text_at(call, "function.name"), text_at(call, "function.arguments"));
  }
  add_tokens(json, "choices.0.logprobs.content", said);
  return said;
}

// A chat's reply in these pieces, one step each: streamed it says what the whole answer says.
void expect_stream_is_the_answer(const std::vector<std::string>& pieces, FinishReason reason,
                                 const std::string& fields) {
  Stream stream(Endpoint::kChatCompletions, fields);
  TestChoice choice(ReplyStart::kReasoning);
  choice.has_logprobs = stream.request().sampling.params.logprobs.has_value();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int32_t token_id = int32_t(100 + i);
    stream.add(i + 1 < pieces.size() ? choice.step(token_id, pieces[i])
                                     : choice.end(token_id, pieces[i], reason),
               choice);
  }
  const Said said = add_up(stream.all());
  const Said whole = read_body(
      completion_body(stream.request(), stream.prompts(), {{choice.answer()}}, test_context()));
  EXPECT_EQ(said, whole) << "pieces: " << ::testing::PrintToString(pieces);
  EXPECT_EQ(said.tokens.size(), choice.has_logprobs ? pieces.size() : 0);
}

TEST(CompletionStream, AddsUpToTheAnswerWhereverTheTextIsCut) {
  for (const char* fields : {"", R"("include_reasoning": false)", R"("logprobs": true)",
                             R"("logprobs": true, "include_reasoning": false)"}) {
    const std::vector<std::string> all = characters(kReply);
    expect_stream_is_the_answer({std::string(kReply)}, FinishReason::kStop, fields);
    expect_stream_is_the_answer(all, FinishReason::kStop, fields);
    size_t cut = 0;
    for (const std::string& character : all) {
      cut += character.size();
      expect_stream_is_the_answer(
          {std::string(kReply.substr(0, cut)), std::string(kReply.substr(cut))},
          FinishReason::kStop, fields);
      // The engine stopped here.
      expect_stream_is_the_answer({"", std::string(kReply.substr(0, cut)), ""},
                                  FinishReason::kLength, fields);
    }
  }
}

TEST(CompletionStream, TheRoleComesOnceAndNotBeforeTheFirstText) {
  Stream stream(Endpoint::kChatCompletions);
  TestChoice choice(ReplyStart::kReasoning);
  EXPECT_THAT(stream.add(choice.progress(), choice), ElementsAre());
  EXPECT_THAT(stream.add(choice.step(9, ""), choice), ElementsAre());
  EXPECT_THAT(shown(stream.add(choice.step(9, "Hm"), choice), "choices.0.delta"),
              ElementsAre(R"({"role": "assistant", "content": ""})",
                          R"({"reasoning_content": "Hm", "reasoning": "Hm"})"));
  EXPECT_THAT(shown(stream.add(choice.step(9, "m"), choice), "choices.0.delta"),
              ElementsAre(R"({"reasoning_content": "m", "reasoning": "m"})"));
}

TEST(CompletionStream, AStepThatSettlesNothingGivesNoChunkAndItsTokenComesWithTheNext) {
  Stream stream(Endpoint::kChatCompletions, R"("logprobs": true, "return_token_ids": true)");
  TestChoice choice(ReplyStart::kContent);
  choice.has_logprobs = true;
  EXPECT_THAT(stream.add(choice.step(300, ""), choice), ElementsAre());
  const std::vector<JsonValue> events = stream.add(choice.step(301, "ab"), choice);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(openai::shown(events[0], "prompt_token_ids"), "[5, 6, 7]");
  EXPECT_EQ(openai::shown(events[1], "choices.0.token_ids"), "[300, 301]");
  EXPECT_EQ(at(events[1], "choices.0.logprobs.content")->items.size(), 2u);
}

TEST(CompletionStream, TheFirstChunkOfAChoiceAloneHasThePromptsIds) {
  Stream stream(Endpoint::kCompletions, R"("return_token_ids": true)");
  TestChoice choice(std::nullopt);
  stream.add(choice.step(300, "a"), choice);
  stream.add(choice.end(301, "b", FinishReason::kStop), choice);
  EXPECT_THAT(shown(stream.all(), "choices.0.token_ids"), ElementsAre("[300]", "[301]"));
  ASSERT_EQ(stream.all().size(), 2u);
  EXPECT_EQ(openai::shown(stream.all()[0], "choices.0.prompt_token_ids"), "[5, 6, 7]");
  EXPECT_EQ(at(stream.all()[1], "choices.0.prompt_token_ids"), nullptr);
}

TEST(CompletionStream, ReasoningAndAnswerOfOneStepAreTwoChunks) {
  Stream stream(Endpoint::kChatCompletions);
  TestChoice choice(ReplyStart::kReasoning);
  EXPECT_THAT(shown(stream.add(choice.end(9, "So.</think>Yes.", FinishReason::kStop), choice),
                    "choices.0.delta"),
              ElementsAre(HasSubstr("role"), R"({"reasoning_content": "So.", "reasoning": "So."})",
                          R"({"content": "Yes."})"));
  EXPECT_THAT(shown(stream.all(), "choices.0.finish_reason"),
              ElementsAre("null", "null", "\"stop\""));
}

TEST(CompletionStream, ArgumentsAreSentAsTheyCome) {
  Stream stream(Endpoint::kChatCompletions);
  TestChoice choice(ReplyStart::kContent);
  const auto calls = [&](std::string_view text) {
    return shown(stream.add(choice.step(9, text), choice), "choices.0.delta.tool_calls.0.function");
  };
  EXPECT_THAT(calls("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"),
              ElementsAre("absent", R"({"name": "f", "arguments": ""})"));
  EXPECT_THAT(calls("<｜DSML｜ parameter name=\"a\" string=\"true\">Par"),
              ElementsAre(R"({"arguments": "{\"a\": \"Par"})"));
  EXPECT_THAT(calls("is"), ElementsAre(R"({"arguments": "is"})"));
}

TEST(CompletionStream, EveryChoiceHasOneRoleOneFinishReasonAndItsIndex) {
  Stream stream(Endpoint::kChatCompletions, R"("n": 2)");
  TestChoice first(ReplyStart::kContent, 0), second(ReplyStart::kContent, 1);
  stream.add(second.step(9, "b"), second);
  stream.add(first.step(9, "a"), first);
  stream.add(first.end(9, "", FinishReason::kLength), first);
  stream.add(second.end(9, "c", FinishReason::kStop, StopReason("d")), second);
  EXPECT_THAT(shown(stream.all(), "choices.0.index"), ElementsAre("1", "1", "0", "0", "0", "1"));
  EXPECT_THAT(shown(stream.all(), "choices.0.delta.content"),
              ElementsAre(R"("")", R"("b")", R"("")", R"("a")", "absent", R"("c")"));
  EXPECT_THAT(shown(stream.all(), "choices.0.finish_reason"),
              ElementsAre("null", "null", "null", "null", R"("length")", R"("stop")"));
  EXPECT_EQ(openai::shown(stream.all().back(), "choices.0.stop_reason"), R"("d")");
  EXPECT_EQ(openai::shown(stream.all()[4], "choices.0.delta"), "{}");
}

TEST(CompletionStream, AnAnswerOfNothingIsARoleAndAFinishReason) {
  Stream stream(Endpoint::kChatCompletions);
  TestChoice choice(ReplyStart::kContent);
  EXPECT_THAT(shown(stream.add(choice.end(1, "", FinishReason::kStop), choice), "choices.0.delta"),
              ElementsAre(R"({"role": "assistant", "content": ""})", "{}"));
  Stream aborted(Endpoint::kChatCompletions);
  TestChoice late(ReplyStart::kReasoning);
  aborted.add(late.give_up(FinishReason::kTimeout), late);
  EXPECT_EQ(openai::shown(aborted.all().back(), "choices.0.finish_reason"), R"("abort")");
}

TEST(CompletionStream, UsageComesOnceBehindAllChoicesIfAskedFor) {
  const auto play = [](Stream& stream) {
    TestChoice choice(ReplyStart::kReasoning);
    choice.last_reasoning_token = 10;
    stream.add(choice.step(9, "a"), choice);
    stream.add(choice.step(10, "</think>"), choice);
    stream.add(choice.end(11, "b", FinishReason::kStop), choice);
  };
  Stream silent(Endpoint::kChatCompletions);
  play(silent);
  EXPECT_THAT(shown(silent.all(), "usage"), ElementsAre("absent", "absent", "absent"));
  EXPECT_THAT(silent.finish(), ElementsAre());

  Stream asked(Endpoint::kChatCompletions,
               R"("stream": true, "stream_options": {"include_usage": true})");
  play(asked);
  EXPECT_THAT(shown(asked.all(), "usage"), ElementsAre("null", "null", "null"));
  const std::vector<JsonValue> last = asked.finish();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(openai::shown(last[0], "choices"), "[]");
  EXPECT_EQ(openai::shown(last[0], "usage.prompt_tokens"), "3");
  EXPECT_EQ(openai::shown(last[0], "usage.completion_tokens"), "3");
  EXPECT_EQ(openai::shown(last[0], "usage.total_tokens"), "6");
  EXPECT_EQ(openai::shown(last[0], "usage.completion_tokens_details.reasoning_tokens"), "2");
}

TEST(CompletionStream, RunningUsageStandsInEveryChunk) {
  Stream stream(
      Endpoint::kChatCompletions,
      R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})");
  TestChoice choice(ReplyStart::kContent);
  stream.add(choice.step(9, "a"), choice);
  stream.add(choice.step(9, ""), choice);
  stream.add(choice.end(9, "b", FinishReason::kStop), choice);
  EXPECT_THAT(shown(stream.all(), "usage.completion_tokens"), ElementsAre("1", "1", "3"));
  EXPECT_THAT(shown(stream.finish(), "usage.completion_tokens"), ElementsAre("3"));
}

TEST(CompletionStream, AFaultIsAnErrorAndThenTheEnd) {
  std::string out;
  CompletionStream::fail(api_error({Code::kCorrupt, "a \"fault\"\n"}), out);
  EXPECT_EQ(out,
            "data: "
            R"({"error": {"message": "a \"fault\"\n", "type": "server_error", )"
            R"("param": null, "code": null}})"
            "\n\ndata: [DONE]\n\n");
}

TEST(CompletionStream, EveryChunkSaysWhoseItIs) {
  Stream stream(Endpoint::kChatCompletions,
                R"("stream": true, "stream_options": {"include_usage": true})");
  TestChoice choice(ReplyStart::kContent);
  stream.add(choice.end(9, "line\nbreaks \"and\" quotes\n\n", FinishReason::kStop), choice);
  std::vector<JsonValue> events = stream.all();
  events.push_back(stream.finish().front());
  for (const JsonValue& event : events) {
    EXPECT_EQ(openai::shown(event, "id"), R"("chatcmpl-7")");
    EXPECT_EQ(openai::shown(event, "object"), R"("chat.completion.chunk")");
    EXPECT_EQ(openai::shown(event, "created"), "1790000000");
    EXPECT_EQ(openai::shown(event, "model"), R"("m")");
    EXPECT_EQ(openai::shown(event, "error"), "absent") << "clients take any for a failure";
  }
}

TEST(CompletionStream, TextsOfSeveralPromptsAreNumberedPromptByPrompt) {
  Stream stream(Endpoint::kCompletions, R"("n": 2)", /*num_prompts=*/2);
  TestChoice choice(std::nullopt, 1);
  EXPECT_THAT(stream.add(choice.step(9, ""), choice, 1), ElementsAre());
  EXPECT_THAT(shown(stream.add(choice.step(9, "ab"), choice, 1), "choices.0.index"),
              ElementsAre("3"));
  stream.add(choice.end(9, "", FinishReason::kLength), choice, 1);
  EXPECT_THAT(shown(stream.all(), "choices.0.text"), ElementsAre(R"("ab")", R"("")"));
  EXPECT_THAT(shown(stream.all(), "choices.0.finish_reason"), ElementsAre("null", R"("length")"));
  EXPECT_EQ(openai::shown(stream.all()[0], "object"), R"("text_completion")");
  EXPECT_EQ(openai::shown(stream.all()[0], "id"), R"("cmpl-7")");
}

TEST(CompletionStream, AnEchoStandsOnceInFrontOfTheText) {
  Stream stream(Endpoint::kCompletions, R"("echo": true)");
  TestChoice choice(std::nullopt);
  const std::string prompt = test_tokenizer().decode(std::vector<int32_t>{5, 6, 7});
  stream.add(choice.step(9, "a"), choice);
  stream.add(choice.end(9, "b", FinishReason::kStop), choice);
  EXPECT_EQ(text_at(stream.all()[0], "choices.0.text"), prompt + "a");
  EXPECT_EQ(text_at(stream.all()[1], "choices.0.text"), "b");
}

TEST(CompletionStream, OffsetsOfTextGoOnFromChunkToChunk) {
  Stream stream(Endpoint::kCompletions, R"("logprobs": 1)");
  TestChoice choice(std::nullopt);
  choice.has_logprobs = true;
  const std::vector<int32_t> ids =
      test_tokenizer().encode("one two three", SpecialTokens::kPlainText);
  std::vector<std::string> offsets;
  size_t length = 0;
  for (int32_t id : ids) {
    const std::string text = test_tokenizer().decode({&id, 1});
    const std::vector<JsonValue> events = stream.add(choice.step(id, text), choice);
    EXPECT_THAT(shown(events, "choices.0.logprobs.text_offset"),
                ElementsAre("[" + std::to_string(length) + "]"));
    length += text.size();
  }
  EXPECT_EQ(length, std::string_view("one two three").size());
}

TEST(CompletionStream, GeneratedTokensAreSeenOneByOne) {
  Stream stream(Endpoint::kGenerate, R"("return_token_ids": true)");
  TestChoice choice(std::nullopt);
  stream.add(choice.step(300, ""), choice);
  stream.add(choice.step(301, "ab"), choice);
  stream.add(choice.end(1, "", FinishReason::kStop), choice);
  EXPECT_THAT(shown(stream.all(), "choices.0.token_ids"), ElementsAre("[300]", "[301]", "[1]"));
  EXPECT_THAT(shown(stream.all(), "choices.0.finish_reason"),
              ElementsAre("null", "null", R"("stop")"));
  EXPECT_THAT(shown(stream.all(), "request_id"), ElementsAre(R"("7")", R"("7")", R"("7")"));
}

}  // namespace
}  // namespace millrace::openai
