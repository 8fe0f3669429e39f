#include "engine/scripted_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "engine/test_byte_vocabulary.h"
#include "sys/file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// A folder with the toy's config.json alone: there are no weights to open.
class ScriptedEngineTest : public ::testing::Test {
 protected:
  ScriptedEngineTest() {
    std::string name = testing::TempDir() + "millrace-script-XXXXXX";
    MR_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    fs::copy_file(MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41/config.json", folder_ / "config.json");
  }
  ~ScriptedEngineTest() override { fs::remove_all(folder_); }

  EngineOptions options(const std::vector<std::string>& lines) const {
    std::string script;
    for (const std::string& line : lines) script += one_line(line) + "\n";
    EngineOptions options;
    options.load.model_dir = folder_.string();
    options.script_file = (folder_ / "script.jsonl").string();
    EXPECT_TRUE(write_file(options.script_file, script).ok());
    return options;
  }
  static std::unique_ptr<Engine> open(const EngineOptions& options) {
    Result<std::unique_ptr<Engine>> engine = Engine::open(options, byte_table());
    if (!engine.has_value()) ADD_FAILURE() << engine.error().message;
    return std::move(engine.value());
  }
  std::unique_ptr<Engine> open_script(const std::vector<std::string>& lines) const {
    return open(options(lines));
  }
  static Request ask(std::string_view prompt = "prompt") {
    Request request;
    request.prompt_token_ids = ids_of(prompt);
    request.sampling.temperature = 0;
    return request;
  }
  static std::unique_ptr<RequestStream> submit(Engine& engine, Request request = ask(),
                                               std::function<void()> on_event = {}) {
    Result<std::unique_ptr<RequestStream>> stream =
        engine.submit(std::move(request), std::move(on_event));
    if (!stream.has_value()) ADD_FAILURE() << stream.error().message;
    return std::move(stream.value());
  }
  static std::string refusal(Engine& engine, const Request& request) {
    const auto stream = engine.submit(request);
    return stream.has_value() ? "accepted" : stream.error().message;
  }
  static std::optional<FinishReason> read_to_the_end(RequestStream& stream) {
    std::optional<FinishReason> reason;
    while (const auto next = stream.next()) reason = next->event.finish_reason;
    return reason;
  }

  fs::path folder_;
};

TEST_F(ScriptedEngineTest, AnswersWithoutWeightsAndSaysWhatItIs) {
  const std::unique_ptr<Engine> engine = open_script({R"({"pieces": [{"text": "Hello"}]})"});
  const Completion completion = engine->generate(ask()).value();
  EXPECT_THAT(completion.token_ids, ElementsAre(kHello, kEnd));
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(completion.num_output_bytes, 5);
  EXPECT_EQ(engine->vocab_size(), 512);
  EXPECT_EQ(engine->max_model_len(), 4096);
  EXPECT_EQ(engine->info().numerics_id, "scripted");
  EXPECT_EQ(engine->info().isa, "scripted");
  EXPECT_EQ(engine->info().max_num_seqs, 256);
  EXPECT_EQ(engine->expert_load().num_layers, 0);
  EXPECT_FALSE(engine->health().in_place_ms);
  EXPECT_GE(engine->health().num_steps, 1);
}

TEST_F(ScriptedEngineTest, ThePromptsTextFindsItsLine) {
  const std::unique_ptr<Engine> engine = open_script({R"({"key": "Hello world", "pieces": [{"text": "a"}]})"});
  Request request = ask();
  request.prompt_token_ids = {kHello, kWorld};
  EXPECT_THAT(engine->generate(request).value().token_ids, ElementsAre('a', kEnd));
  EXPECT_EQ(refusal(*engine, ask()), "script: found none of its 1 keys in the prompt, expected one, "
                                     "or a line without a key");
}

TEST_F(ScriptedEngineTest, RefusesWhatAModelWouldAndPromptLogprobs) {
  EngineOptions small = options({R"({"pieces": [{"text": "a"}]})"});
  small.max_model_len = 10;
  const std::unique_ptr<Engine> engine = open(small);
  EXPECT_EQ(engine->max_model_len(), 10);
  Request request = ask();
  request.sampling.max_tokens = 5;
  EXPECT_EQ(refusal(*engine, request), "the maximum context length is 10 tokens, found 6 in the "
                                       "prompt and 5 to generate");
  request = ask();
  request.prompt_token_ids = {512};
  EXPECT_THAT(refusal(*engine, request), HasSubstr("found token id 512 at position 0"));
  request = ask();
  request.sampling.top_p = 0;
  EXPECT_THAT(refusal(*engine, request), HasSubstr("top_p: found 0"));
  request = ask();
  request.sampling.prompt_logprobs = 1;
  EXPECT_EQ(refusal(*engine, request), "prompt_logprobs: a script has none");
}

TEST_F(ScriptedEngineTest, EveryChoiceComesToItsEnd) {
  const std::unique_ptr<Engine> engine =
      open_script({R"({"pieces": [{"text": "ab"}]})", R"({"choice": 1, "pieces": [{"text": "c"}]})"});
  Request request = ask();
  request.num_choices = 3;
  const auto stream = submit(*engine, request);
  std::vector<std::string> said(3);
  while (const auto next = stream->next()) {
    if (next->event.token_id != kEnd) {
      said[size_t(next->choice_idx)] += char(next->event.token_id.value());
    }
  }
  EXPECT_THAT(said, ElementsAre("ab", "c", "ab"));
}

TEST_F(ScriptedEngineTest, AFaultEndsOneRequestWithItsMessage) {
  const std::unique_ptr<Engine> engine =
      open_script({R"({"key": "bad", "pieces": [{"text": "a"}], "error": {"message": "it broke"}})",
            R"({"pieces": [{"text": "fine"}]})"});
  const Result<Completion> result = engine->generate(ask("bad"));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().message, "it broke");
  EXPECT_EQ(engine->generate(ask("good")).value().num_output_bytes, 4);
}

// ---- Time.

TEST_F(ScriptedEngineTest, NothingComesBeforeItsTime) {
  const std::unique_ptr<Engine> engine = open_script(
      {R"({"first_delay_ms": 30, "delay_ms": 10, "pieces": [{"text": "ab"}, {"text": "c"}]})"});
  const Clock::time_point start = Clock::now();
  const auto stream = submit(*engine);
  EXPECT_EQ(stream->next()->event.token_id, 'a');
  EXPECT_GE(ms_since(start), 30);
  EXPECT_EQ(stream->next()->event.token_id, 'b');
  EXPECT_EQ(stream->next()->event.token_id, 'c');
  EXPECT_GE(ms_since(start), 40);
  EXPECT_EQ(read_to_the_end(*stream), FinishReason::kStop);
}

TEST_F(ScriptedEngineTest, AReaderIsToldOnceOfAllThatIsDueTogether) {
  const std::unique_ptr<Engine> engine =
      open_script({R"({"first_delay_ms": 20, "pieces": [{"text": "abcdefgh"}]})"});
  std::atomic<int> num_calls = 0;
  const auto stream = submit(*engine, ask(), [&] { ++num_calls; });
  EXPECT_EQ(read_to_the_end(*stream), FinishReason::kStop);
  engine->generate(ask()).value();  // what followed the last event has been done by now
  EXPECT_EQ(num_calls, 1);
}

TEST_F(ScriptedEngineTest, ARequestOutOfTimeEndsWithWhatItHas) {
  const std::unique_ptr<Engine> engine =
      open_script({R"({"delay_ms": 3600000, "first_delay_ms": 0, "pieces": [{"text": "a"}, {"text": "b"}]})"});
  Request request = ask();
  request.timeout_ms = 20;
  const Completion completion = engine->generate(request).value();
  EXPECT_THAT(completion.token_ids, ElementsAre('a'));
  EXPECT_EQ(completion.finish_reason, FinishReason::kTimeout);
  EXPECT_EQ(completion.num_output_bytes, 1);
}

TEST_F(ScriptedEngineTest, ACancelledRequestEndsAtOnce) {
  const std::unique_ptr<Engine> engine = open_script({R"({"delay_ms": 3600000, "pieces": [{"text": "a"}]})"});
  Request request = ask();
  request.num_choices = 2;
  const auto stream = submit(*engine, request);
  stream->cancel();
  int num_ended = 0;
  while (const auto next = stream->next()) num_ended += next->event.finish_reason == FinishReason::kAbort;
  EXPECT_EQ(num_ended, 2);
  EXPECT_EQ(engine->stats().num_running_requests, 0);
  // Dropping a stream is enough, too.
  for (int i = 0; i < 20; ++i) submit(*engine);
  while (engine->stats().num_running_requests > 0) std::this_thread::yield();
}

// ---- Many requests.

TEST_F(ScriptedEngineTest, AReaderThatFallsBehindMakesOnlyItsOwnRequestRest) {
  EngineOptions one = options({R"({"key": "long", "repeat": 480, "pieces": [{"text": "a"}]})",
                               R"({"pieces": [{"text": "b"}]})"});
  const std::unique_ptr<Engine> engine = open(one);
  const auto slow = submit(*engine, ask("long"));
  while (engine->stats().num_paused_requests == 0) std::this_thread::yield();
  EXPECT_THAT(engine->generate(ask()).value().token_ids, ElementsAre('b', kEnd));
  size_t num_tokens = 0;
  while (const auto next = slow->next()) num_tokens += next->event.token_id == 'a';
  EXPECT_EQ(num_tokens, 480u);
  EXPECT_EQ(engine->stats().num_paused_requests, 0);
}

TEST_F(ScriptedEngineTest, WhatRestedKeepsItsPaceAfterwards) {
  const std::unique_ptr<Engine> engine = open_script(
      {R"({"repeat": 2, "finish_reason": "length", "pieces": [{"text": ")" + std::string(200, 'a') +
       R"("}, {"text": "b", "delay_ms": 25}]})"});
  const Clock::time_point start = Clock::now();
  const auto stream = submit(*engine);
  while (engine->stats().num_paused_requests == 0) std::this_thread::yield();
  // By now the last piece would have been due.
  while (ms_since(start) < 60) std::this_thread::yield();
  const Clock::time_point begin_of_reading = Clock::now();
  int num_read = 0;
  while (stream->next()) ++num_read;
  EXPECT_EQ(num_read, 402);
  EXPECT_GE(ms_since(begin_of_reading), 25);
}

TEST_F(ScriptedEngineTest, AnEndlessLineHoldsUpNobody) {
  const std::unique_ptr<Engine> engine =
      open_script({R"({"key": "endless", "repeat": "forever", "pieces": [{"text": "a"}]})",
            R"({"pieces": [{"text": "b"}]})"});
  const auto endless = submit(*engine, ask("endless"));
  std::thread reader([&] { EXPECT_EQ(read_to_the_end(*endless), FinishReason::kLength); });
  for (int i = 0; i < 10; ++i) EXPECT_EQ(engine->generate(ask()).value().num_output_bytes, 1);
  reader.join();
}

TEST_F(ScriptedEngineTest, OthersWaitInTheirOrderAndOneTooManyIsRefused) {
  EngineOptions small = options({R"({"delay_ms": 3600000, "pieces": [{"text": "a"}]})"});
  small.max_num_seqs = 2;
  small.max_waiting = 2;
  const std::unique_ptr<Engine> engine = open(small);
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(submit(*engine));
  SchedulerStats stats = engine->stats();
  EXPECT_EQ(stats.num_running_requests, 2);
  EXPECT_EQ(stats.num_prefilling_sequences, 2) << "they wait for their first token";
  EXPECT_EQ(stats.num_waiting_requests, 2);
  EXPECT_EQ(stats.num_waiting_sequences, 2);
  const auto refused = engine->submit(ask());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_EQ(refused.error().message, "queue: found 2 requests waiting, expected fewer than 2");
  streams[3]->cancel();
  EXPECT_EQ(read_to_the_end(*streams[3]), FinishReason::kAbort);
  EXPECT_EQ(engine->stats().num_waiting_requests, 1);
  streams[0]->cancel();
  EXPECT_EQ(read_to_the_end(*streams[0]), FinishReason::kAbort);
  stats = engine->stats();
  EXPECT_EQ(stats.num_running_requests, 2) << "the third has its place";
  EXPECT_EQ(stats.num_waiting_requests, 0);
  EXPECT_EQ(stats.num_finished_requests, 2);
}

TEST_F(ScriptedEngineTest, MoreChoicesThanPlacesRunAlone) {
  EngineOptions small = options({R"({"pieces": [{"text": "a"}]})"});
  small.max_num_seqs = 2;
  const std::unique_ptr<Engine> engine = open(small);
  Request request = ask();
  request.num_choices = 5;
  const auto stream = submit(*engine, request);
  int num_ended = 0;
  while (const auto next = stream->next()) num_ended += next->event.finish_reason.has_value();
  EXPECT_EQ(num_ended, 5);
}

TEST_F(ScriptedEngineTest, CountsWhatRequestsBroughtAndTook) {
  const std::unique_ptr<Engine> engine = open_script({R"({"pieces": [{"text": "abc"}]})"});
  Request request = ask();
  request.num_choices = 2;
  EXPECT_EQ(read_to_the_end(*submit(*engine, request)), FinishReason::kStop);
  const SchedulerStats stats = engine->stats();
  EXPECT_EQ(stats.num_prompt_tokens, 6);
  EXPECT_EQ(stats.num_output_tokens, 2 * 4);
  EXPECT_EQ(stats.num_finished_requests, 1);
  EXPECT_EQ(stats.num_steps, 1);
}

TEST_F(ScriptedEngineTest, TwoThousandStreamsAllComeToTheirEnd) {
  EngineOptions large = options({R"({"delay_ms": 2, "repeat": 20, "pieces": [{"text": "a"}]})"});
  large.max_num_seqs = 2048;
  const std::unique_ptr<Engine> engine = open(large);
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int i = 0; i < 2048; ++i) streams.push_back(submit(*engine));
  for (const auto& stream : streams) {
    int num_tokens = 0;
    while (const auto next = stream->next()) num_tokens += next->event.token_id == 'a';
    EXPECT_EQ(num_tokens, 20);
  }
  EXPECT_EQ(engine->stats().num_finished_requests, 2048);
}

TEST_F(ScriptedEngineTest, ThreadsSubmitCancelAndReadAtOnce) {
  EngineOptions small = options({R"({"delay_ms": 0.2, "repeat": 10, "pieces": [{"text": "a"}]})",
                                 R"({"repeat": 300, "pieces": [{"text": "b"}]})"});
  small.max_num_seqs = 3;
  const std::unique_ptr<Engine> engine = open(small);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        Request request = ask();
        request.num_choices = 1 + (t + i) % 3;
        if (i % 5 == 0) request.timeout_ms = 1;
        const auto stream = submit(*engine, request);
        if (i % 3 == 0) (void)stream->next(std::chrono::milliseconds(1));
        if (i % 3 == 1) stream->cancel();
        if (i % 3 != 0) {
          int num_ended = 0;
          while (const auto next = stream->next()) num_ended += next->event.finish_reason.has_value();
          EXPECT_EQ(num_ended, request.num_choices);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (engine->stats().num_finished_requests < 6 * 30) std::this_thread::yield();
  EXPECT_EQ(engine->stats().num_running_requests, 0);
  EXPECT_EQ(engine->stats().num_waiting_requests, 0);
}

// ---- Opening.

TEST_F(ScriptedEngineTest, NamesTheFileAndLineThatIsWrong) {
  const auto error = [](const EngineOptions& options, TokenTable table = byte_table()) {
    const auto engine = Engine::open(options, std::move(table));
    return engine.has_value() ? "accepted" : engine.error().message;
  };
  EngineOptions changed = options({R"({"pieces": []})", R"({"pieces": 1})"});
  EXPECT_EQ(error(changed), changed.script_file +
                                ": line 2: pieces: found 1, expected a list of up to 65536 pieces");
  changed = options({R"({"pieces": []})"});
  EXPECT_EQ(error(changed), "accepted");
  changed.max_model_len = 4097;
  EXPECT_THAT(error(changed), HasSubstr("max_model_len: found 4097, expected 1 to 4096"));
  changed.max_model_len.reset();
  changed.record_file = "run.jsonl";
  EXPECT_EQ(error(changed), "record_file: found run.jsonl, expected none: a script is not recorded");
  changed.record_file.clear();
  changed.max_waiting = 0;
  EXPECT_EQ(error(changed), "max_waiting: found 0, expected at least 1");
  changed.max_waiting = 1;
  changed.max_num_seqs = 0;
  EXPECT_EQ(error(changed), "max_num_seqs: found 0, expected 1 to 4096");
  changed.max_num_seqs = 1;
  changed.script_file = "/nowhere.jsonl";
  EXPECT_THAT(error(changed), HasSubstr("/nowhere.jsonl"));
  changed.load.model_dir = "/nowhere";
  EXPECT_THAT(error(changed), HasSubstr("/nowhere/config.json"));
  changed = options({R"({"pieces": []})"});
  TokenTable table = byte_table();
  table.bytes.resize(513);
  EXPECT_THAT(error(changed, table), HasSubstr("tokenizer: found 513 tokens"));
}

}  // namespace
}  // namespace millrace
