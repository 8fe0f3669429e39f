#include "llm/llm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "chat/request_parser.h"
#include "sys/file.h"
#include "tokenizer/utf8.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// What nano says below was seen once and is stable: the numerics contract makes greedy text a
// function of the checkpoint.
class LlmTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.load.model_dir = MILLRACE_SOURCE_DIR "/models/nano";
    options.load.num_threads = 1;
    Result<std::unique_ptr<Llm>> llm = Llm::open(options);
    if (!llm.has_value()) FAIL() << llm.error().message;
    shared_ = llm.value().release();
  }
  static void TearDownTestSuite() { delete shared_; }
  static Llm& llm() { return *shared_; }
  static Llm* shared_;

  static Prompt chat(std::string_view json) {
    return llm().encode_chat(parse_chat_request(json).value()).value();
  }
};
Llm* LlmTest::shared_ = nullptr;

SamplingParams greedy(int64_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

constexpr std::string_view kCapital =
    R"({"messages": [{"role": "user", "content": "What is the capital of France?"}]})";
constexpr std::string_view kCapitalAtOnce =
    R"({"thinking": false, "messages": [{"role": "user", "content": "What is the capital of France?"}]})";

constexpr std::string_view kWeather = R"({"messages": [{"role": "user", "content":
    "What is the weather in Paris?"}], "tools": [{"type": "function", "function":
    {"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object",
     "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]})";

TEST_F(LlmTest, TextStartsWithTheBeginTokenOnce) {
  const int32_t bos = *llm().tokenizer().token_id("<｜begin▁of▁sentence｜>");
  const auto ids = [&](std::string_view text, SpecialTokens mode, bool add_bos) {
    return llm().encode_text(text, mode, add_bos).token_ids;
  };
  const std::vector<int32_t> bare = ids("Genesis 1", SpecialTokens::kRecognise, false);
  std::vector<int32_t> with = bare;
  with.insert(with.begin(), bos);
  EXPECT_EQ(ids("Genesis 1", SpecialTokens::kRecognise, true), with);
  const std::string_view spelled = "<｜begin▁of▁sentence｜>Genesis 1";
  EXPECT_EQ(ids(spelled, SpecialTokens::kRecognise, true), with);
  EXPECT_GT(ids(spelled, SpecialTokens::kPlainText, true).size(), with.size());
}

TEST_F(LlmTest, TextThatCannotFitIsRefusedByItsBytes) {
  const auto limit = size_t(llm().engine().max_model_len());
  EXPECT_TRUE(llm().check_length(limit).ok());
  const Status status = llm().check_length(limit * 1000);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("the maximum context length is 16384 tokens"));
  ChatRequest chat;
  chat.messages.push_back({.content = {{Part::Kind::kText, std::string(limit * 1000, 'a')}}});
  const Result<Prompt> prompt = llm().encode_chat(chat);
  ASSERT_FALSE(prompt.has_value());
  EXPECT_THAT(prompt.error().message, HasSubstr("found at least"));
}

TEST_F(LlmTest, AChatIsThoughtAboutThenAnswered) {
  const Answer answer = llm().generate({chat(kCapital), greedy(100)}).value();
  EXPECT_EQ(answer.reply.reasoning, "The user asks for the capital of France. It is Paris.");
  EXPECT_EQ(answer.reply.content, "The capital of France is Paris.");
  EXPECT_EQ(answer.text, answer.reply.reasoning + "</think>" + answer.reply.content);
  EXPECT_EQ(answer.finish_reason, "stop");
  EXPECT_EQ(answer.num_prompt_tokens, int64_t(chat(kCapital).token_ids.size()));
}

TEST_F(LlmTest, StopStringsOfAChatLeaveItsReasoningAlone) {
  SamplingParams params = greedy(100);
  params.stop = {"capital"};
  Answer answer = llm().generate({chat(kCapital), params}).value();
  EXPECT_EQ(answer.reply.reasoning, "The user asks for the capital of France. It is Paris.");
  EXPECT_EQ(answer.reply.content, "The ");
  EXPECT_EQ(answer.finish_reason, "stop");
  EXPECT_EQ(answer.completion.stop_reason, StopReason("capital"));
  answer = llm().generate({chat(kCapitalAtOnce), params}).value();
  EXPECT_EQ(answer.reply.content, "The ");
}

TEST_F(LlmTest, AToolCallComesOutAsACall) {
  const Answer answer = llm().generate({chat(kWeather), greedy(200)}).value();
  EXPECT_EQ(answer.finish_reason, "tool_calls");
  ASSERT_EQ(answer.reply.tool_calls.size(), 1u);
  EXPECT_EQ(answer.reply.tool_calls[0].name, "get_weather");
  EXPECT_THAT(answer.reply.tool_calls[0].arguments, HasSubstr("\"city\": "));
}

TEST_F(LlmTest, AStopStringInsideToolMarkupDoesNotStop) {
  SamplingParams params = greedy(200);
  params.stop = {"invoke"};
  EXPECT_EQ(llm().generate({chat(kWeather), params}).value().finish_reason, "tool_calls");
}

// Tokens outside ASCII are made likely: many of them cut characters in pieces.
TEST_F(LlmTest, EventsAreWholeCharactersAndAddUpToTheAnswer) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SamplingParams params = greedy(60);
    params.temperature = 2;
    params.seed = seed;
    params.stop = {"xyz", "\n\n\n"};
    for (int32_t id = 0; id < llm().tokenizer().vocab_size(); ++id) {
      if (uint8_t(llm().tokenizer().token_bytes(id)[0]) >= 0x80)
        params.logit_bias.push_back({id, 12});
    }
    for (const Prompt& prompt :
         {llm().encode_text("Hello", SpecialTokens::kPlainText, true), chat(kCapitalAtOnce)}) {
      std::string text;
      Reply reply;
      bool saw_replacement = false;
      const Answer answer = llm().generate({prompt, params},
                                           [&](const AnswerEvent& event) {
                                             std::string_view rest = event.text;
                                             while (!rest.empty()) {
                                               const CodePoint c = front_code_point(rest);
                                               EXPECT_NE(c.value, CodePoint::kInvalid);
                                               saw_replacement |= c.value == 0xfffd;
                                               rest.remove_prefix(c.size);
                                             }
                                             text += event.text;
                                             for (const ReplyEvent& e : event.reply) reply.add(e);
                                             return true;
                                           })
                                .value();
      EXPECT_TRUE(saw_replacement) << "seed " << seed << ": no token cut a character";
      EXPECT_EQ(text, answer.text) << "seed " << seed;
      EXPECT_EQ(reply.content, answer.reply.content) << "seed " << seed;
    }
  }
}

TEST_F(LlmTest, AnAbortedAnswerKeepsWhatWasSaid) {
  int num_tokens = 0;
  const Answer answer = llm().generate({chat(kCapitalAtOnce), greedy(100)},
                                       [&](const AnswerEvent& event) {
                                         num_tokens += event.step.token_id.has_value();
                                         return num_tokens < 3;
                                       })
                            .value();
  EXPECT_EQ(answer.finish_reason, "abort");
  EXPECT_EQ(answer.completion.token_ids.size(), 3u);
  EXPECT_EQ(answer.reply.content,
            llm().tokenizer().decode(answer.completion.token_ids));
}

TEST_F(LlmTest, ASeedIsDrawnAndReportedSoThatTheAnswerCanBeRepeated) {
  SamplingParams params = greedy(20);
  params.temperature = 1;
  const Prompt prompt = llm().encode_text("Once upon a time", SpecialTokens::kPlainText, true);
  const Answer first = llm().generate({prompt, params}).value();
  const Answer other = llm().generate({prompt, params}).value();
  EXPECT_NE(first.seed, other.seed);
  params.seed = first.seed;
  const Answer again = llm().generate({prompt, params}).value();
  EXPECT_EQ(again.seed, first.seed);
  EXPECT_EQ(again.completion.token_ids, first.completion.token_ids);
}

// The events of the choices come in any order; each choice's are what it says alone.
TEST_F(LlmTest, ControlTokensBetweenMessagesAreNoTextOfAChat) {
  SamplingParams params = greedy(6);
  params.ignore_eos = true;
  const int32_t assistant = *llm().tokenizer().token_id("<｜Assistant｜>");
  params.allowed_token_ids = {assistant};
  EXPECT_EQ(llm().generate({chat(kCapitalAtOnce), params}).value().text, "");
  params.skip_special_tokens = false;
  EXPECT_THAT(llm().generate({chat(kCapitalAtOnce), params}).value().text,
              HasSubstr("<｜Assistant｜><｜Assistant｜>"));
  params.skip_special_tokens = true;
  params.temperature = 2;
  params.seed = 1;
  params.allowed_token_ids.push_back(llm().tokenizer().encode("a", SpecialTokens::kPlainText)[0]);
  params.max_tokens = 40;
  const Answer answer = llm().generate({chat(kCapitalAtOnce), params}).value();
  size_t num_letters = 0;
  for (int32_t id : answer.completion.token_ids) num_letters += id != assistant;
  EXPECT_GT(num_letters, 0u);
  EXPECT_LT(num_letters, 40u);
  EXPECT_EQ(answer.text, std::string(num_letters, 'a'));
}

TEST_F(LlmTest, SeveralChoicesToOnePromptAreDifferentAndTheFirstIsTheOneThatComesAlone) {
  AnswerRequest request;
  request.prompt = chat(kCapitalAtOnce);
  request.sampling = greedy(20);
  request.sampling.temperature = 1.5;
  request.sampling.seed = 7;
  const Answer alone = llm().generate({request.prompt, request.sampling}).value();
  request.num_choices = 3;
  const std::unique_ptr<AnswerStream> stream = std::move(llm().submit(request).value());
  std::vector<std::string> texts(3);
  while (const AnswerEvent* event = stream->next()) texts[size_t(event->choice_idx)] += event->text;
  const std::vector<Answer> answers = stream->take_answers();
  ASSERT_EQ(answers.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(answers[i].text, texts[i]);
  EXPECT_EQ(answers[0].completion.token_ids, alone.completion.token_ids);
  EXPECT_NE(answers[1].completion.token_ids, answers[0].completion.token_ids);
  EXPECT_NE(answers[2].completion.token_ids, answers[1].completion.token_ids);
}

TEST_F(LlmTest, ACancelledStreamEndsEveryChoiceWithAbort) {
  AnswerRequest request;
  request.prompt = chat(kCapitalAtOnce);
  request.sampling = greedy(4000);
  request.sampling.ignore_eos = true;
  request.num_choices = 2;
  const std::unique_ptr<AnswerStream> stream = std::move(llm().submit(request).value());
  int num_ended = 0;
  while (const AnswerEvent* event = stream->next()) {
    if (event->step.num_computed_tokens > 20) stream->cancel();
    num_ended += event->step.finish_reason == FinishReason::kAbort;
  }
  EXPECT_EQ(num_ended, 2);
  for (const Answer& answer : stream->take_answers()) EXPECT_EQ(answer.finish_reason, "abort");
}

TEST_F(LlmTest, ManyThreadsAskAtOnce) {
  const Answer want = llm().generate({chat(kCapital), greedy(60)}).value();
  std::vector<std::thread> threads;
  std::vector<std::string> texts(8);
  for (std::string& text : texts) {
    threads.emplace_back([&] { text = llm().generate({chat(kCapital), greedy(60)}).value().text; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, want.text);
}

TEST_F(LlmTest, TokensOfTheReasoningAreCounted) {
  const Answer answer = llm().generate({chat(kCapital), greedy(100)}).value();
  const std::vector<int32_t>& ids = answer.completion.token_ids;
  const auto end = std::find(ids.begin(), ids.end(), *llm().tokenizer().token_id("</think>"));
  EXPECT_EQ(answer.num_reasoning_tokens, end - ids.begin() + 1);
  EXPECT_EQ(llm().generate({chat(kCapitalAtOnce), greedy(100)}).value().num_reasoning_tokens, 0);
}

TEST_F(LlmTest, ReadsTheModelsSamplingDefaults) {
  EXPECT_EQ(llm().default_sampling().temperature, 1.0);
  EXPECT_EQ(llm().default_sampling().top_p, 0.95);
}

TEST_F(LlmTest, RefusesWhatItCannotDo) {
  const auto error = [&](std::string_view json) {
    const Result<Prompt> prompt = llm().encode_chat(parse_chat_request(json).value());
    return prompt.has_value() ? "accepted" : prompt.error().message;
  };
  const ChatRequest image = parse_chat_request(R"({"messages": [{"role": "user", "content":
      [{"type": "image_url", "image_url": {"url": "data:x"}}]}]})").value();
  EXPECT_EQ(llm().encode_chat(image).error().message,
            "messages: found 1 images, expected text only");
  EXPECT_EQ(llm().encode_chat(image).error().code, Code::kUnimplemented);
  std::string forced(kWeather);
  forced.back() = ',';
  EXPECT_THAT(error(forced + R"("tool_choice": "required"})"),
              HasSubstr("needs thinking to be off"));
  EXPECT_EQ(error(forced + R"("tool_choice": "required", "thinking": false})"), "accepted");
}

TEST(LlmOpen, NamesTheFileThatIsMissingOrWrong) {
  EngineOptions options;
  options.load.model_dir = MILLRACE_SOURCE_DIR "/tests";
  const auto llm = Llm::open(options);
  ASSERT_FALSE(llm.has_value());
  EXPECT_THAT(llm.error().message, HasSubstr("/tests/tokenizer.json"));
}

TEST(LlmOpen, AScriptAnswersWhereThereAreNoWeights) {
  std::string name = testing::TempDir() + "millrace-llm-XXXXXX";
  MR_CHECK(::mkdtemp(name.data()) != nullptr);
  const fs::path folder = name;
  for (const char* file : {"config.json", "tokenizer.json"}) {
    fs::copy_file(fs::path(MILLRACE_SOURCE_DIR "/models/nano") / file, folder / file);
  }
  ASSERT_TRUE(
      write_file(folder / "script.jsonl",
                 R"({"key": "weather", "pieces": [{"text": "Hm.</think>Let me see.\n\n)"
                 R"(<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n)"
                 R"(<｜DSML｜ parameter name=\"city\" string=\"true\">Paris)"
                 R"(</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"}]})"
                 "\n"
                 R"({"pieces": [{"text": "</think>"}, {"base64": "4oI="}, {"base64": "rCE="}]})")
          .ok());
  EngineOptions options;
  options.load.model_dir = folder.string();
  options.script_file = (folder / "script.jsonl").string();
  const auto opened = Llm::open(options);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  Llm& llm = *opened.value();
  const auto answer = [&](std::string_view json) {
    AnswerRequest request;
    request.prompt = llm.encode_chat(parse_chat_request(json).value()).value();
    return llm.generate(std::move(request)).value();
  };
  const Answer call = answer(kWeather);
  EXPECT_EQ(call.reply.reasoning, "Hm.");
  EXPECT_EQ(call.reply.content, "Let me see.");
  ASSERT_EQ(call.reply.tool_calls.size(), 1u);
  EXPECT_EQ(call.reply.tool_calls[0].arguments, R"({"city": "Paris"})");
  EXPECT_EQ(call.finish_reason, "tool_calls");
  EXPECT_GT(call.num_reasoning_tokens, 0);
  EXPECT_EQ(answer(kCapital).reply.content, "\u20ac!") << "a character in two pieces";
  fs::remove_all(folder);
}

// The toy with one file changed.
class OtherToy {
 public:
  OtherToy() {
    std::string name = testing::TempDir() + "millrace-llm-XXXXXX";
    MR_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    for (const fs::directory_entry& file : fs::directory_iterator(kToy)) {
      fs::create_symlink(file.path(), folder_ / file.path().filename());
    }
  }
  ~OtherToy() { fs::remove_all(folder_); }
  OtherToy(const OtherToy&) = delete;
  OtherToy& operator=(const OtherToy&) = delete;

  void replace(const char* file, std::string_view content) {
    fs::remove(folder_ / file);
    ASSERT_TRUE(write_file(folder_ / file, content).ok());
  }

  // The toy's file with one thing put differently.
  static std::string with(const char* file, std::string_view before, std::string_view after) {
    std::string text = read_file(std::string(kToy) + "/" + file).value();
    const size_t at = text.find(before);
    MR_CHECK(at != text.npos);
    return text.replace(at, before.size(), after);
  }

  std::string open_message() const {
    EngineOptions options;
    options.load.model_dir = folder_.string();
    const auto llm = Llm::open(options);
    return llm.has_value() ? "accepted" : llm.error().message;
  }

  static constexpr const char* kToy = MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41";

 private:
  fs::path folder_;
};

TEST(LlmOpen, RefusesATokenizerThatDoesNotFitTheConfig) {
  OtherToy toy;
  EXPECT_EQ(toy.open_message(), "accepted");
  toy.replace("config.json", toy.with("config.json", "\"engram_compressed_vocab_size\": 459",
                                      "\"engram_compressed_vocab_size\": 458"));
  EXPECT_THAT(toy.open_message(), HasSubstr("tokenizer.json: found 459 compressed token ids, "
                                            "expected engram_compressed_vocab_size 458"));
  toy.replace("config.json", toy.with("config.json", "\"image_token_id\": 504,", ""));
  toy.replace("tokenizer.json",
              read_file(MILLRACE_SOURCE_DIR "/models/nano/tokenizer.json").value());
  EXPECT_THAT(toy.open_message(),
              HasSubstr("tokenizer.json: found 4096 tokens, expected vocab_size 512"));
}

TEST(LlmOpen, RefusesAGenerationConfigByFileAndKey) {
  OtherToy toy;
  toy.replace("generation_config.json", R"({"eos_token_id": [1, 512]})");
  EXPECT_THAT(toy.open_message(), HasSubstr("/generation_config.json: eos_token_id[1]: found 512, "
                                            "expected a token id from 0 to 511"));
  toy.replace("generation_config.json", R"({"top_p": 2})");
  EXPECT_THAT(toy.open_message(), HasSubstr("/generation_config.json: top_p: found 2, expected "));
}

TEST(LlmOpen, RefusesControlTokensThatAreNotTheTokenizers) {
  OtherToy toy;
  const auto message = [&](std::string_view before, std::string_view after) {
    toy.replace("config.json", toy.with("config.json", before, after));
    return toy.open_message();
  };
  EXPECT_THAT(message("\"bos_token_id\": 0", "\"bos_token_id\": 3"),
              HasSubstr("/config.json: bos_token_id: found 3, expected 0, which is "
                        "<｜begin▁of▁sentence｜> in tokenizer.json"));
  EXPECT_THAT(message("\"eos_token_id\": 1", "\"eos_token_id\": 2"),
              HasSubstr("/config.json: eos_token_id: found 2, expected 1, which is "));
  EXPECT_THAT(message("\"image_token_id\": 504", "\"image_token_id\": 505"),
              HasSubstr("/config.json: image_token_id: found 505, expected 504, which is "));
  EXPECT_THAT(
      message("\"image_token_id\": 504", "\"image_token_id\": 512"),
      HasSubstr("/config.json: image_token_id: found 512, expected an integer from 0 to 511"));
  EXPECT_EQ(message("\"image_token_id\": 504,", ""), "accepted");
  // A tokenizer that has no such token cannot contradict.
  toy.replace("config.json", toy.with("config.json", "\"eos_token_id\": 1", "\"eos_token_id\": 3"));
  toy.replace("tokenizer.json", toy.with("tokenizer.json", "<｜end▁of▁sentence｜>", "<other>"));
  EXPECT_THAT(toy.open_message(), testing::Not(HasSubstr("eos_token_id")));
}

}  // namespace
}  // namespace millrace
