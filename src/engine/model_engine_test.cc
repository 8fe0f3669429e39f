#include "engine/model_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "engine/test_toy_model.h"

namespace millrace {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;

std::string error_of(Engine& engine, const Request& request) {
  const Result<Completion> result = engine.generate(request);
  return result.has_value() ? "accepted" : result.error().message;
}

class EngineTest : public ::testing::Test {
 protected:
  // Opened once: the toy checkpoint takes a moment to check.
  static void SetUpTestSuite() { shared_ = open(options()).release(); }
  static void TearDownTestSuite() { delete shared_; }
  static Engine& engine() { return *shared_; }
  static Engine* shared_;
};
Engine* EngineTest::shared_ = nullptr;

TEST_F(EngineTest, AnAnswerDoesNotDependOnChunksThreadsOrKernels) {
  Request request = greedy(long_prompt(), 12);
  request.sampling.temperature = 1;
  request.sampling.seed = 3;
  request.sampling.logprobs = 2;
  request.sampling.prompt_logprobs = 1;
  const Completion want = engine().generate(request).value();
  ASSERT_EQ(want.token_ids.size(), 12u);
  ASSERT_EQ(want.prompt_logprobs.size(), request.prompt_token_ids.size());
  struct Variant {
    int64_t chunk;
    int num_threads;
    std::string isa;
  };
  for (const Variant& v : {Variant{1, 1, ""}, Variant{7, 2, "ref"}, Variant{64, 3, ""}}) {
    EngineOptions changed = options();
    changed.prefill_chunk = v.chunk;
    changed.load.num_threads = v.num_threads;
    changed.load.isa = v.isa;
    const Completion got = open(changed)->generate(request).value();
    EXPECT_EQ(got.token_ids, want.token_ids) << "chunk " << v.chunk;
    for (size_t i = 0; i < want.logprobs.size(); ++i) {
      EXPECT_EQ(got.logprobs[i].token.logprob, want.logprobs[i].token.logprob);
      EXPECT_EQ(got.logprobs[i].top[1].logprob, want.logprobs[i].top[1].logprob);
    }
    EXPECT_FALSE(got.prompt_logprobs[0]);
    for (size_t i = 1; i < want.prompt_logprobs.size(); ++i) {
      EXPECT_EQ(got.prompt_logprobs[i]->token.logprob, want.prompt_logprobs[i]->token.logprob);
      EXPECT_EQ(got.prompt_logprobs[i]->token.token_id, request.prompt_token_ids[i]);
    }
  }
}

TEST_F(EngineTest, ContinuingAnAnswerGivesTheSameTokensAndLogprobs) {
  Request request = greedy(long_prompt(), 8);
  request.sampling.logprobs = 0;
  const Completion whole = engine().generate(request).value();
  Request rest = greedy(long_prompt(), 5);
  rest.sampling.logprobs = 0;
  rest.sampling.prompt_logprobs = 0;
  rest.prompt_token_ids.insert(rest.prompt_token_ids.end(), whole.token_ids.begin(),
                               whole.token_ids.begin() + 3);
  const Completion tail = engine().generate(rest).value();
  EXPECT_EQ(tail.token_ids,
            std::vector<int32_t>(whole.token_ids.begin() + 3, whole.token_ids.end()));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(tail.prompt_logprobs[45 + i]->token.logprob, whole.logprobs[i].token.logprob);
  }
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(tail.logprobs[i].token.logprob, whole.logprobs[3 + i].token.logprob);
  }
}

TEST_F(EngineTest, EventsReportThePromptThenEveryTokenThenWhyItEnded) {
  EngineOptions small = options();
  small.prefill_chunk = 20;
  const std::unique_ptr<Engine> engine = open(small);
  std::vector<int64_t> computed;
  std::vector<int32_t> tokens;
  std::vector<bool> finished;
  const Completion completion =
      engine
          ->generate(greedy(long_prompt(), 3),
                     [&](const StreamEvent& event) {
                       computed.push_back(event.num_computed_tokens);
                       tokens.push_back(event.token_id.value_or(-1));
                       finished.push_back(event.finish_reason.has_value());
                       return true;
                     })
          .value();
  const std::vector<int32_t>& ids = completion.token_ids;
  EXPECT_THAT(computed, ElementsAre(20, 40, 45, 46, 47));
  EXPECT_THAT(tokens, ElementsAre(-1, -1, ids[0], ids[1], ids[2]));
  EXPECT_THAT(finished, ElementsAre(false, false, false, false, true));
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
}

TEST_F(EngineTest, WithoutTokensToGenerateOnlyThePromptIsComputed) {
  Request request = greedy(long_prompt(), 0);
  request.sampling.prompt_logprobs = 2;
  int num_finished = 0;
  const Completion completion = engine()
                                    .generate(request,
                                              [&](const StreamEvent& event) {
                                                EXPECT_FALSE(event.token_id);
                                                num_finished += event.finish_reason.has_value();
                                                return true;
                                              })
                                    .value();
  EXPECT_TRUE(completion.token_ids.empty());
  EXPECT_EQ(num_finished, 1);
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
  ASSERT_EQ(completion.prompt_logprobs.size(), 45u);
  EXPECT_EQ(completion.prompt_logprobs[44]->top.size(), 2u);
}

TEST_F(EngineTest, TheCallerEndsARequestAtAnyEvent) {
  for (int last : {0, 1, 4}) {
    int num_events = 0;
    const Completion completion =
        engine()
            .generate(greedy(long_prompt(), 9),
                      [&](const StreamEvent&) { return num_events++ < last; })
            .value();
    EXPECT_EQ(completion.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(completion.token_ids.size(), size_t(last) + 1) << "the prompt fits in one chunk";
    EXPECT_EQ(num_events, last + 1);
  }
}

TEST_F(EngineTest, EndAndStopTokensEndTheOutputAndLeaveNoBytes) {
  const std::vector<int32_t> ids = engine().generate(greedy(long_prompt(), 6)).value().token_ids;
  const int64_t before = int64_t((token_text(ids[0]) + token_text(ids[1])).size());
  ASSERT_EQ(std::count(ids.begin(), ids.begin() + 2, ids[2]), 0);

  Request stop = greedy(long_prompt(), 6);
  stop.sampling.stop_token_ids = {ids[2]};
  Completion completion = engine().generate(stop).value();
  EXPECT_EQ(completion.token_ids, std::vector<int32_t>(ids.begin(), ids.begin() + 3));
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(completion.stop_reason, StopReason(ids[2]));
  EXPECT_EQ(completion.num_output_bytes, before);

  TokenTable table = token_table();
  table.eos_token_ids = {ids[2]};
  const std::unique_ptr<Engine> ends = open(options(), std::move(table));
  Request request = greedy(long_prompt(), 6);
  EXPECT_EQ(ends->generate(request).value().token_ids, ids) << "ignore_eos";
  request.sampling.ignore_eos = false;
  completion = ends->generate(request).value();
  EXPECT_EQ(completion.token_ids.size(), 3u);
  EXPECT_EQ(completion.stop_reason, StopReason());
  EXPECT_EQ(completion.num_output_bytes, before);
  request.sampling.min_tokens = 4;
  EXPECT_GT(ends->generate(request).value().token_ids.size(), 4u);
}

TEST_F(EngineTest, AStopStringEndsTheOutputAtTheTokenThatCompletesIt) {
  const std::vector<int32_t> ids = engine().generate(greedy(long_prompt(), 6)).value().token_ids;
  const std::string text = token_text(ids[0]) + token_text(ids[1]) + token_text(ids[2]);
  // From the last character of token 1 into token 2.
  const std::string stop =
      text.substr(token_text(ids[0]).size() + token_text(ids[1]).size() - 1, 3);
  Request request = greedy(long_prompt(), 6);
  request.sampling.stop = {"never", stop};
  std::vector<int64_t> settled;
  const auto watch = [&](const StreamEvent& event) {
    if (event.token_id) settled.push_back(event.num_settled_bytes);
    return true;
  };
  Completion completion = engine().generate(request, watch).value();
  const int64_t begin = int64_t(text.find(stop));
  EXPECT_EQ(completion.token_ids, std::vector<int32_t>(ids.begin(), ids.begin() + 3));
  EXPECT_EQ(completion.stop_reason, StopReason(stop));
  EXPECT_EQ(completion.num_output_bytes, begin);
  EXPECT_EQ(settled.back(), begin);
  EXPECT_EQ(settled[1], begin) << "the bracket may be the beginning of the stop string";

  request.sampling.include_stop_str_in_output = true;
  completion = engine().generate(request).value();
  EXPECT_EQ(completion.num_output_bytes, begin + 3);

  request.sampling.min_tokens = 3;
  EXPECT_GT(engine().generate(request).value().token_ids.size(), 3u);
}

TEST_F(EngineTest, StopStringsKeepToTheirScope) {
  const std::vector<int32_t> ids = engine().generate(greedy(long_prompt(), 6)).value().token_ids;
  const auto num_tokens = [&](const StopScope& scope, const std::string& stop) {
    Request request = greedy(long_prompt(), 6);
    request.stop_scope = scope;
    request.sampling.stop = {stop};
    return engine().generate(request).value().token_ids.size();
  };
  const std::set<int32_t> distinct(ids.begin(), ids.end());
  ASSERT_EQ(distinct.size(), 6u) << "the prompt was chosen so that no token repeats";
  EXPECT_EQ(num_tokens({}, token_text(ids[1])), 2u);
  EXPECT_EQ(num_tokens({ids[1], {}}, token_text(ids[1])), 6u) << "the opening token is outside";
  EXPECT_EQ(num_tokens({ids[1], {}}, token_text(ids[2])), 3u);
  EXPECT_EQ(num_tokens({{}, ids[3]}, token_text(ids[2])), 3u);
  EXPECT_EQ(num_tokens({{}, ids[3]}, token_text(ids[3])), 6u) << "so is the closing one";
  EXPECT_EQ(num_tokens({{}, ids[3]}, token_text(ids[4])), 6u);
  EXPECT_EQ(num_tokens({ids[4], ids[3]}, token_text(ids[5])), 6u) << "a closed scope stays closed";
}

TEST_F(EngineTest, ControlTokensAreSkippedWhereTheRequestSaysSo) {
  Request request = greedy(long_prompt(), 3);
  request.sampling.logit_bias = {{kControl, 100}};
  EXPECT_EQ(engine().generate(request).value().num_output_bytes, 0);
  request.sampling.skip_special_tokens = false;
  EXPECT_EQ(engine().generate(request).value().num_output_bytes, 9);
}

TEST_F(EngineTest, RefusesRequestsThatMakeNoSenseBeforeAnyWork) {
  EngineOptions small = options();
  small.max_model_len = 50;
  const std::unique_ptr<Engine> engine = open(small);
  EXPECT_EQ(error_of(*engine, greedy({}, 1)), "prompt: found no tokens, expected at least one");
  EXPECT_EQ(error_of(*engine, greedy({1, -1}, 1)),
            "prompt: found token id -1 at position 1, expected 0 to 511");
  EXPECT_EQ(error_of(*engine, greedy({512}, 1)),
            "prompt: found token id 512 at position 0, expected 0 to 511");
  EXPECT_EQ(error_of(*engine, greedy(long_prompt(), 6)),
            "the maximum context length is 50 tokens, found 45 in the prompt and 6 to generate");
  EXPECT_EQ(error_of(*engine, greedy(long_prompt(), 5)), "accepted");
  Request request = greedy({1}, 1);
  request.sampling.top_p = 0;
  EXPECT_THAT(error_of(*engine, request), HasSubstr("top_p: found 0"));
  request = greedy({1}, 1);
  request.sampling.temperature = 1;
  EXPECT_EQ(error_of(*engine, request), "seed: found none, expected one with this temperature");
}

TEST_F(EngineTest, WithoutMaxTokensTheOutputFillsTheContext) {
  EngineOptions small = options();
  small.max_model_len = 50;
  Request request = greedy(long_prompt(), 1);
  request.sampling.max_tokens.reset();
  const Completion completion = open(small)->generate(request).value();
  EXPECT_EQ(completion.token_ids.size(), 5u);
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
}

// ---- Many requests.

std::vector<int32_t> tokens_of(RequestStream& stream) {
  std::vector<int32_t> tokens;
  while (const auto next = stream.next()) {
    if (next->event.token_id) tokens.push_back(*next->event.token_id);
  }
  return tokens;
}

TEST_F(EngineTest, RequestsOfManyThreadsAnswerAsAlone) {
  std::vector<std::vector<int32_t>> want;
  for (int i = 0; i < 12; ++i) {
    want.push_back(engine().generate(greedy(prompt_of(1 + 13 * i, i), 10)).value().token_ids);
  }
  std::vector<std::vector<int32_t>> got(want.size());
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      got[size_t(i)] = engine().generate(greedy(prompt_of(1 + 13 * i, i), 10)).value().token_ids;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, want);
}

TEST_F(EngineTest, ChoicesShareThePromptAndDrawTheirOwnTokens) {
  Request request = greedy(long_prompt(), 8);
  request.sampling.temperature = 1;
  request.sampling.seed = 5;
  std::vector<std::vector<int32_t>> want;
  for (int32_t c = 0; c < 4; ++c) {
    request.choice_idx = c;
    want.push_back(engine().generate(request).value().token_ids);
  }
  request.choice_idx = 0;
  request.num_choices = 4;
  const auto stream = std::move(engine().submit(request).value());
  std::vector<std::vector<int32_t>> got(4);
  while (const auto next = stream->next()) {
    if (next->event.token_id) got[size_t(next->choice_idx)].push_back(*next->event.token_id);
  }
  EXPECT_EQ(got, want);
  EXPECT_NE(got[0], got[1]);
}

TEST_F(EngineTest, ACancelledRequestEndsAndItsPlaceIsFree) {
  const auto stream = std::move(engine().submit(greedy(long_prompt(), 400)).value());
  ASSERT_TRUE(stream->next());
  stream->cancel();
  std::optional<FinishReason> reason;
  while (const auto next = stream->next()) reason = next->event.finish_reason;
  EXPECT_EQ(reason, FinishReason::kAbort);
  EXPECT_TRUE(stream->is_finished());
  // Dropping a stream is enough, too.
  for (int i = 0; i < 20; ++i) (void)engine().submit(greedy(long_prompt(), 400)).value();
  EXPECT_EQ(engine().generate(greedy(long_prompt(), 3)).value().token_ids.size(), 3u);
}

TEST_F(EngineTest, AReaderThatFallsBehindMakesOnlyItsOwnRequestRest) {
  const std::vector<int32_t> want =
      engine().generate(greedy(long_prompt(), 450)).value().token_ids;
  const auto slow = std::move(engine().submit(greedy(long_prompt(), 450)).value());
  while (engine().stats().num_paused_requests == 0) {
    EXPECT_EQ(engine().generate(greedy({1, 2, 3}, 5)).value().token_ids.size(), 5u);
  }
  EXPECT_EQ(tokens_of(*slow), want);
  EXPECT_EQ(engine().generate(greedy({1}, 1)).value().token_ids.size(), 1u);
  EXPECT_EQ(engine().stats().num_paused_requests, 0);
}

TEST_F(EngineTest, OneRequestTooManyIsRefusedAtOnce) {
  EngineOptions small = options();
  small.max_num_seqs = 1;
  small.max_waiting = 2;
  const std::unique_ptr<Engine> engine = open(small);
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(std::move(engine->submit(greedy(long_prompt(), 400)).value()));
  }
  const auto refused = engine->submit(greedy(long_prompt(), 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("found 3 requests open"));
  streams.clear();
}

TEST_F(EngineTest, ARequestOutOfTimeEndsWithWhatItHas) {
  Request request = greedy(long_prompt(), 460);
  request.timeout_ms = 1e-3;
  const auto stream = std::move(engine().submit(request).value());
  std::optional<FinishReason> reason;
  while (const auto next = stream->next()) reason = next->event.finish_reason;
  EXPECT_EQ(reason, FinishReason::kTimeout);
}

TEST_F(EngineTest, NextGivesUpWhenTheTimeIsOver) {
  EngineOptions small = options();
  small.max_num_seqs = 1;
  const std::unique_ptr<Engine> engine = open(small);
  const auto first = std::move(engine->submit(greedy(long_prompt(), 460)).value());
  const auto second = std::move(engine->submit(greedy(long_prompt(), 1)).value());
  EXPECT_FALSE(second->next(std::chrono::milliseconds(1)));
  EXPECT_FALSE(second->is_finished());
}

TEST_F(EngineTest, TellsWhatRunsItAndWhereItIs) {
  const EngineInfo& info = engine().info();
  EXPECT_THAT(info.numerics_id, HasSubstr("reference-"));
  EXPECT_EQ(info.num_threads, 1);
  EXPECT_GT(info.kv_bytes, 0);
  const int64_t before = engine().health().num_steps;
  (void)engine().generate(greedy(long_prompt(), 3)).value();
  EXPECT_GE(engine().health().num_steps, before + 3);
}

TEST_F(EngineTest, CountsWhereTheTimeOfStepsWent) {
  const EngineCounters before = engine().counters();
  (void)engine().generate(greedy(long_prompt(), 10)).value();
  const EngineCounters after = engine().counters();
  EXPECT_GE(after.num_steps - before.num_steps, 10);
  EXPECT_GE(after.num_rows - before.num_rows, 45 + 9);
  EXPECT_GT(after.region_ns, before.region_ns);
  EXPECT_GT(after.outside_ns(), before.outside_ns());
  EXPECT_LE(after.plan_ns + after.commit_ns + after.region_ns, after.step_ns);
}

TEST_F(EngineTest, CountsStepsByTheirRows) {
  const std::unique_ptr<Engine> engine = open(options());
  (void)engine->generate(greedy(long_prompt(), 10)).value();
  const EngineCounters counters = engine->counters();
  int64_t num_steps = 0, num_rows_at_least = 0;
  for (size_t i = 0; i < counters.num_steps_by_rows.size(); ++i) {
    num_steps += counters.num_steps_by_rows[i];
    num_rows_at_least += counters.num_steps_by_rows[i] * (i == 0 ? 1 : kStepRows[i - 1] + 1);
  }
  EXPECT_EQ(num_steps, counters.num_steps);
  EXPECT_LE(num_rows_at_least, counters.num_rows);
  EXPECT_GE(counters.num_steps_by_rows[0], 9) << "one row a step while it decodes";
}

TEST_F(EngineTest, CountsWhatRequestsBroughtAndTook) {
  const std::unique_ptr<Engine> engine = open(options());
  const SchedulerStats before = engine->stats();
  EXPECT_GT(before.num_blocks, 0) << "also before the first step";
  EXPECT_EQ(before.num_free_blocks, before.num_blocks);
  EXPECT_EQ(before.block_size, 128);
  (void)engine->generate(greedy(long_prompt(), 10)).value();
  const SchedulerStats after = engine->stats();
  EXPECT_EQ(after.num_prompt_tokens, 45);
  EXPECT_EQ(after.num_output_tokens, 10);
}

TEST_F(EngineTest, WhoTakesTheLastEventWithoutBeingToldFindsItsStepsCounted) {
  const std::unique_ptr<Engine> engine = open(options());
  for (int64_t i = 1; i <= 100; ++i) {
    const auto stream = std::move(engine->submit(greedy({1}, 1)).value());
    while (!stream->is_finished()) (void)stream->next(std::chrono::milliseconds(0));
    const SchedulerStats stats = engine->stats();
    EXPECT_EQ(stats.num_output_tokens, i);
    EXPECT_EQ(stats.num_running_requests, 0);
    EXPECT_EQ(engine->counters().num_steps, i);
  }
}

TEST_F(EngineTest, CountsTheTokensThatEachExpertIsGiven) {
  constexpr int64_t kExpertsPerToken = 2;
  EngineOptions whole = options();
  whole.exact_replay = false;
  std::unique_ptr<Engine> engine = open(whole);
  const auto sums = [&] {
    const ExpertLoad load = engine->expert_load();
    std::vector<int64_t> sums(size_t(load.num_layers), 0);
    EXPECT_EQ(int64_t(load.num_tokens.size()), load.num_layers * load.num_experts);
    for (size_t i = 0; i < load.num_tokens.size(); ++i) {
      sums[i / size_t(load.num_experts)] += load.num_tokens[i];
    }
    return sums;
  };
  ASSERT_GT(sums().size(), 1u);
  EXPECT_THAT(sums(), Each(0));
  (void)engine->generate(greedy(long_prompt(), 4)).value();  // its last token is not computed
  EXPECT_THAT(sums(), Each((45 + 3) * kExpertsPerToken));

  // Of a prompt, the last layer is given the last token only.
  engine = open(options());
  (void)engine->generate(greedy(long_prompt(), 4)).value();
  EXPECT_EQ(sums().front(), (45 + 3) * kExpertsPerToken);
  EXPECT_EQ(sums().back(), (1 + 3) * kExpertsPerToken);
}

TEST_F(EngineTest, ItsWatchdogWarnsOfAStepThatTakesTooLong) {
  std::promise<std::string> warned;
  std::atomic<bool> has_warned = false;
  EngineOptions watched = options();
  watched.watchdog_seconds = 1e-9;  // any step does
  watched.on_warning = [&](const std::string& warning) {
    if (!has_warned.exchange(true)) warned.set_value(warning);
  };
  const std::unique_ptr<Engine> engine = open(watched);
  while (!has_warned) (void)engine->generate(greedy(long_prompt(), 10)).value();
  EXPECT_THAT(warned.get_future().get(), HasSubstr(" rows has been "));
}

TEST(EngineOpen, RefusesOptionsThatMakeNoSense) {
  const auto error = [](const EngineOptions& options, TokenTable table) {
    const auto engine = Engine::open(options, std::move(table));
    return engine.has_value() ? "accepted" : engine.error().message;
  };
  EngineOptions changed = options();
  changed.load.model_dir = kGolden + "nowhere";
  EXPECT_THAT(error(changed, token_table()), HasSubstr("nowhere/config.json"));
  changed = options();
  changed.load.isa = "PDP11";
  EXPECT_THAT(error(changed, token_table()),
              HasSubstr("kernel table: found \"PDP11\", expected one of"));
  changed = options();
  changed.prefill_chunk = 0;
  EXPECT_EQ(error(changed, token_table()), "chunk: found 0, expected at least 1");
  changed = options();
  changed.watchdog_seconds = 0;
  EXPECT_EQ(error(changed, token_table()), "watchdog_seconds: found 0, expected more than 0");
  changed = options();
  changed.load.num_threads = 2000;
  EXPECT_EQ(error(changed, token_table()),
            "threads: found 2000, expected 1 to 1024, or 0 for the default");
  changed = options();
  changed.max_model_len = int64_t(1) << 40;
  EXPECT_THAT(error(changed, token_table()), HasSubstr("max_model_len: found 1099511627776"));
  TokenTable table = token_table();
  table.compressed_ids.pop_back();
  EXPECT_THAT(error(options(), table), HasSubstr("found 511 tokens, expected vocab_size 512"));
  table = token_table();
  table.bytes.resize(513);
  EXPECT_EQ(error(options(), table),
            "tokenizer: found 513 tokens, expected at most vocab_size, 512");
  table = token_table();
  table.eos_token_ids = {512};
  EXPECT_EQ(error(options(), table), "eos_token_id: found 512, expected 0 to 511");
}

}  // namespace
}  // namespace millrace
