#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "scheduler/test_engine.h"

namespace millrace {
namespace {

using testing::ElementsAre;

TEST(Scheduler, ComputesThePromptAndThenOneTokenPerStep) {
  Engine engine(small_options());
  ASSERT_TRUE(engine.arrive(7, make_request(20, 3)).ok());
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 20, 1)));
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1)));
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1)));
  engine.expect_right_output(7);
  engine.run_all();
  engine.expect_idle();
}

TEST(Scheduler, ManyRequestsSayWhatEachSaysAlone) {
  SchedulerOptions options = small_options();
  options.num_blocks = 20;
  Engine engine(options);
  for (int i = 0; i < 12; ++i) {
    Request request = make_request(1 + i * 5, 40, i);
    request.num_choices = 1 + i % 3;
    request.sampling.ignore_eos = i % 2;
    ASSERT_TRUE(engine.arrive(i, request).ok());
  }
  engine.run_all();
  for (int i = 0; i < 12; ++i) engine.expect_right_output(i);
  EXPECT_GT(engine.scheduler.stats().num_preemptions, 0);
  engine.expect_idle();
}

// --- Arrival ------------------------------------------------------------------------------------

TEST(Scheduler, RefusalsNameWhatWasFoundAndWhatWasExpected) {
  struct Case {
    std::function<void(Request&)> change;
    std::string_view message;
  };
  const Case cases[] = {
      {[](Request& r) { r.prompt_token_ids.clear(); },
       "prompt: found no tokens, expected at least one"},
      {[](Request& r) {
         r.prompt_token_ids = {1, 1000};
       },
       "prompt: found token id 1000 at position 1, expected 0 to 999"},
      {[](Request& r) { r.prompt_token_ids = {-1}; },
       "prompt: found token id -1 at position 0, expected 0 to 999"},
      {[](Request& r) { r.sampling.top_p = 0; }, "top_p: found 0, expected above 0, at most 1"},
      {[](Request& r) { r.sampling.temperature = 1; },
       "seed: found none, expected one with this temperature"},
      {[](Request& r) { r.sampling.max_tokens = 493; },
       "the maximum context length is 512 tokens, found 20 in the prompt and 493 to generate"},
      {[](Request& r) { r.sampling.max_tokens = std::numeric_limits<int64_t>::max(); },
       "the maximum context length is 512 tokens, found 20 in the prompt and 9223372036854775807 "
       "to "
       "generate"},
      {[](Request& r) { r.prompt_token_ids.resize(512), r.sampling.max_tokens.reset(); },
       "the maximum context length is 512 tokens, found 512 in the prompt and 1 to generate"},
      {[](Request& r) { r.num_choices = 0; }, "n: found 0, expected 1 to 128"},
      {[](Request& r) { r.num_choices = 129; }, "n: found 129, expected 1 to 128"},
      {[](Request& r) { r.timeout_ms = 0; }, "timeout: found 0 ms, expected a finite time above 0"},
      {[](Request& r) { r.timeout_ms = std::numeric_limits<double>::infinity(); },
       "timeout: found inf ms, expected a finite time above 0"},
  };
  Engine engine(small_options());
  for (const Case& c : cases) {
    Request request = make_request(20, 5);
    c.change(request);
    const Status status = engine.arrive(1, request);
    ASSERT_FALSE(status.ok()) << c.message;
    EXPECT_EQ(status.error().message, c.message);
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  }
  engine.expect_idle();
}

TEST(Scheduler, OptionsThatMakeNoSenseAreRefused) {
  struct Case {
    std::function<void(SchedulerOptions&)> change;
    std::string_view message;
  };
  const Case cases[] = {
      {[](auto& o) { o.max_num_seqs = 4097; }, "max_num_seqs: found 4097, expected 1 to 4096"},
      {[](auto& o) { o.max_num_seqs = 0; }, "max_num_seqs: found 0, expected 1 to 4096"},
      {[](auto& o) { o.max_num_batched_tokens = 0; },
       "max_num_batched_tokens: found 0, expected at least 1"},
      {[](auto& o) { o.max_prefill_chunk = 0; }, "max_prefill_chunk: found 0, expected at least 1"},
      {[](auto& o) { o.min_prefill_rows = 0; }, "min_prefill_rows: found 0, expected at least 1"},
      {[](auto& o) { o.max_waiting = 0; }, "max_waiting: found 0, expected at least 1"},
      {[](auto& o) { o.max_model_len = 0; }, "max_model_len: found 0, expected at least 1"},
      {[](auto& o) { o.num_blocks = 0; }, "num_blocks: found 0, expected 1 to 2147483647"},
      {[](auto& o) { o.block_size = 0; }, "block_size: found 0, expected 1 to 1048576"},
      {[](auto& o) { o.admission_headroom_blocks = -1; },
       "admission_headroom_blocks: found -1, expected at least 0"},
      {[](auto& o) { o.max_step_ms = 0; }, "max_step_ms: found 0, expected more than 0"},
      {[](auto& o) { o.paused_grace_ms = -1; }, "paused_grace_ms: found -1, expected at least 0"},
  };
  EXPECT_TRUE(validate(small_options()).ok());
  for (const Case& c : cases) {
    SchedulerOptions options = small_options();
    c.change(options);
    const Status status = validate(options);
    ASSERT_FALSE(status.ok()) << c.message;
    EXPECT_EQ(status.error().message, c.message);
  }
}

TEST(Scheduler, TheAdvertisedLengthIsTheLengthThatFits) {
  SchedulerOptions options = small_options();
  options.max_model_len = 300;
  EXPECT_EQ(Engine(options).scheduler.max_model_len(), 300);
  options.num_blocks = 5;
  Engine engine(options);
  EXPECT_EQ(engine.scheduler.max_model_len(), 40);
  EXPECT_FALSE(engine.arrive(1, make_request(30, 11)).ok());
  ASSERT_TRUE(engine.arrive(2, make_request(30, 10)).ok());
  ASSERT_TRUE(engine.arrive(3, make_request(30, std::nullopt)).ok());
  engine.run_all();
  engine.expect_right_output(2);
  engine.expect_right_output(3);
  EXPECT_EQ(engine.choice(3).output.tokens.size(), 10u);
}

TEST(Scheduler, AFullQueueRefusesWithTheNumbers) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 2;
  options.max_waiting = 3;
  Engine engine(options);
  // Slots are free for the first two.
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine.arrive(i, make_request(5, 5)).ok());
  const Status status = engine.arrive(5, make_request(5, 5));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kExhausted);
  EXPECT_EQ(status.error().message, "queue: found 3 requests waiting, expected fewer than 3");
  engine.step();
  EXPECT_FALSE(engine.arrive(6, make_request(5, 5)).ok()) << "two run, three wait";
  engine.run_all();
  EXPECT_TRUE(engine.arrive(7, make_request(5, 5)).ok());
}

TEST(Scheduler, AKeyThatFloodsTheQueueLeavesTheDoorOpenForOthers) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  options.max_waiting = 8;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(100, make_request(5, 50)).ok());
  engine.step();  // it has the slot
  Request flood = make_request(5, 5), other = make_request(5, 5), third = make_request(5, 5);
  other.fairness_key = "other";
  third.priority = 1;  // the same key at another priority
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(engine.arrive(i, flood).ok());
  EXPECT_FALSE(engine.arrive(8, flood).ok());
  EXPECT_TRUE(engine.arrive(8, other).ok());
  const Status second = engine.arrive(9, other);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().message, "queue: found 9 requests waiting, expected fewer than 8");
  EXPECT_TRUE(engine.arrive(9, third).ok());
  third.fairness_key = "fourth";
  const Status last = engine.arrive(10, third);
  ASSERT_FALSE(last.ok());  // the reserve is bounded, too
  EXPECT_EQ(last.error().message, "queue: found 10 requests waiting, expected fewer than 10");
}

TEST(Scheduler, WhatIsCancelledCountsAsWaitingUntilItsEndIsReported) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  options.max_waiting = 2;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(100, make_request(5, 50)).ok());
  engine.step();  // it has the slot
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(engine.arrive(i, make_request(5, 5)).ok());
    engine.scheduler.on_cancel(i);
  }
  EXPECT_FALSE(engine.arrive(2, make_request(5, 5)).ok());
  engine.step();
  EXPECT_TRUE(engine.arrive(3, make_request(5, 5)).ok());
}

// --- Steps --------------------------------------------------------------------------------------

TEST(Scheduler, APromptIsComputedInChunksAndAsksForATokenAtItsEnd) {
  SchedulerOptions options = small_options();
  options.max_prefill_chunk = 16;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(40, 2)).ok());
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 16, 0)));
  EXPECT_EQ(engine.choice(0).num_computed_tokens, 16);  // progress is reported
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 16, 0)));
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 8, 1)));
  EXPECT_EQ(engine.choice(0).num_events, 3);
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1)));
  engine.expect_right_output(0);
}

TEST(Scheduler, AStepWithoutDecodingSharesTheTokenLimitInOrder) {
  Engine engine(small_options());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.arrive(i, make_request(30, 5)).ok());
  EXPECT_THAT(engine.step(),
              ElementsAre(std::tuple(0, 30, 1), std::tuple(1, 30, 1), std::tuple(2, 4, 0)));
}

TEST(Scheduler, DecodingAndPrefillShareAStep) {
  Engine engine(small_options());
  ASSERT_TRUE(engine.arrive(0, make_request(10, 9)).ok());
  engine.step();
  ASSERT_TRUE(engine.arrive(1, make_request(50, 9)).ok());
  // 10 rows took 20 ms: nothing larger is tried than twice as much.
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1), std::tuple(1, 19, 0)));
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1), std::tuple(1, 31, 1)));
}

TEST(Scheduler, WhileAnythingDecodesPrefillStaysWithinTheTime) {
  SchedulerOptions options = small_options();
  options.max_step_ms = 40;  // 10 + 1 per row: 30 rows
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(64, 200)).ok());
  engine.step();
  engine.step();
  ASSERT_TRUE(engine.arrive(1, make_request(200, 5)).ok());
  Engine::Rows rows;
  for (int i = 0; i < 6; ++i) rows = engine.step();
  EXPECT_THAT(rows, ElementsAre(std::tuple(0, 1, 1), std::tuple(1, 29, 0)));
}

TEST(Scheduler, WhenDecodingAloneTakesTooLongEverythingDecodesAndPromptsStillProgress) {
  SchedulerOptions options = small_options();
  options.max_step_ms = 5;  // less than any step takes
  options.min_prefill_rows = 3;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(8, 50)).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(8, 50)).ok());
  engine.step();
  ASSERT_TRUE(engine.arrive(2, make_request(10, 50)).ok());
  for (int rows : {3, 3, 3}) {
    EXPECT_THAT(engine.step(),
                ElementsAre(std::tuple(0, 1, 1), std::tuple(1, 1, 1), std::tuple(2, rows, 0)));
  }
  EXPECT_THAT(engine.step(),
              ElementsAre(std::tuple(0, 1, 1), std::tuple(1, 1, 1), std::tuple(2, 1, 1)));
}

TEST(Scheduler, APromptWithoutTokensToGenerateEndsWhenItIsComputed) {
  Engine engine(small_options());
  Request request = make_request(20, 0);
  request.num_choices = 2;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 20, 0)));
  engine.expect_right_output(0);
  EXPECT_EQ(engine.choice(0, 1).output.finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine.choice(0).num_computed_tokens, 20);
  engine.run_all();
  engine.expect_idle();
}

// --- Admission ----------------------------------------------------------------------------------

TEST(Scheduler, AdmitsByExactNeedAndKeepsHeadroomForThoseThatRun) {
  SchedulerOptions options = small_options();
  options.num_blocks = 10;
  options.admission_headroom_blocks = 1;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(40, 8)).ok());  // 5 blocks
  ASSERT_TRUE(engine.arrive(1, make_request(32, 8)).ok());  // 4 blocks: 1 stays free
  engine.step();
  EXPECT_EQ(engine.scheduler.stats().num_running_requests, 2);
  EXPECT_EQ(engine.scheduler.stats().num_free_blocks, 1);

  Engine crowded(options);
  ASSERT_TRUE(crowded.arrive(0, make_request(40, 8)).ok());
  ASSERT_TRUE(crowded.arrive(1, make_request(33, 8)).ok());  // 5 blocks: none would stay free
  crowded.step();
  EXPECT_EQ(crowded.scheduler.stats().num_running_requests, 1);

  Engine alone(options);
  ASSERT_TRUE(alone.arrive(0, make_request(79, 1)).ok());  // all 10 blocks
  alone.step();
  EXPECT_EQ(alone.scheduler.stats().num_free_blocks, 0);
}

TEST(Scheduler, NobodyOvertakesTheFirstThatWaits) {
  SchedulerOptions options = small_options();
  options.num_blocks = 10;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(40, 8)).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(48, 8)).ok());  // finds no room
  ASSERT_TRUE(engine.arrive(2, make_request(8, 8)).ok());   // would
  while (engine.choice(0).output.tokens.size() < 8) {
    for (const auto& [id, rows, samples] : engine.step()) EXPECT_EQ(id, 0);
  }
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(1, 48, 1), std::tuple(2, 8, 1)));
}

TEST(Scheduler, SequencesBeyondTheLimitWaitInOrder) {
  Engine engine(small_options());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(engine.arrive(i, make_request(4, 3 + i % 4)).ok());
  std::vector<SequenceId> order;
  while (engine.scheduler.has_work()) {
    for (const auto& [id, rows, samples] : engine.step()) {
      if (rows > 1) order.push_back(id);
    }
    EXPECT_LE(engine.scheduler.stats().num_running_requests, 4);
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

// --- Preemption ---------------------------------------------------------------------------------

TEST(Scheduler, PreemptsTheLowestPriorityAndThenTheNewestWhenBlocksRunOut) {
  SchedulerOptions options = small_options();
  options.num_blocks = 6;
  options.admission_headroom_blocks = 0;
  Engine engine(options);
  for (int i = 0; i < 3; ++i) {
    Request request = make_request(9, 30, i);
    request.priority = i == 1 ? 1 : 0;
    ASSERT_TRUE(engine.arrive(i, request).ok());
    engine.step();
  }
  // All blocks are taken: the next that needs one takes those of 1, which is of lower priority.
  while (engine.scheduler.stats().num_preemptions == 0) engine.step();
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1), std::tuple(2, 1, 1)));
  // And then those of 2, which is newer than 0.
  while (engine.scheduler.stats().num_preemptions == 1) engine.step();
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1)));
  engine.run_all();
  for (int i = 0; i < 3; ++i) engine.expect_right_output(i);
  engine.expect_idle();
}

TEST(Scheduler, WhatIsPreemptedIsComputedAnewAndRepeatsNoEvent) {
  SchedulerOptions options = small_options();
  options.num_blocks = 4;
  options.admission_headroom_blocks = 0;
  options.max_prefill_chunk = 4;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(8, 16, 1)).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(8, 16, 2)).ok());
  engine.run_all();
  EXPECT_GT(engine.scheduler.stats().num_preemptions, 0);
  EXPECT_GT(engine.scheduler.stats().num_recomputed_rows, 8);
  for (int i = 0; i < 2; ++i) {
    engine.expect_right_output(i);
    EXPECT_EQ(engine.choice(i).num_events, 1 + 16);  // the first chunk, and each token
  }
  engine.expect_idle();
}

TEST(Scheduler, CountsEachPromptOnceAndEachTokenOfTheOutput) {
  SchedulerOptions options = small_options();
  options.num_blocks = 4;
  options.admission_headroom_blocks = 0;
  options.max_prefill_chunk = 4;
  Engine engine(options);
  EXPECT_EQ(engine.scheduler.stats().block_size, options.block_size);
  Request request = make_request(8, 16, 1);
  request.num_choices = 2;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(8, 5, 2)).ok());
  engine.step(/*abandon=*/true);
  EXPECT_EQ(engine.scheduler.stats().num_prompt_tokens, 0);
  engine.step();
  EXPECT_EQ(engine.scheduler.stats().num_prompt_tokens, 8) << "a chunk of each";
  engine.run_all();
  const SchedulerStats stats = engine.scheduler.stats();
  EXPECT_GT(stats.num_recomputed_rows, 0);
  EXPECT_EQ(stats.num_prompt_tokens, 8 + 8);
  int64_t num_output_tokens = 0;
  for (const auto& [key, choice] : engine.recorder.choices) {
    num_output_tokens += int64_t(choice.output.tokens.size());
  }
  EXPECT_EQ(stats.num_output_tokens, num_output_tokens);
  EXPECT_GT(num_output_tokens, 3);
}

TEST(Scheduler, WhoIsPausedLosesItsBlocksFirstAndNobodyMissesTheStep) {
  SchedulerOptions options = small_options();
  options.num_blocks = 6;
  options.admission_headroom_blocks = 0;
  Engine engine(options);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.arrive(i, make_request(9, 30, i)).ok());
  engine.step();
  engine.scheduler.set_paused(0, true, engine.now_ms);
  while (engine.scheduler.stats().num_preemptions == 0) {
    EXPECT_THAT(engine.step(), ElementsAre(std::tuple(1, 1, 1), std::tuple(2, 1, 1)));
  }
  EXPECT_EQ(engine.scheduler.stats().num_waiting_sequences, 1);
  engine.scheduler.set_paused(0, false, engine.now_ms);
  engine.run_all();
  for (int i = 0; i < 3; ++i) engine.expect_right_output(i);
}

// Keeps the machine full of requests of a better priority. The prompt takes longer to compute than
// the others leave its blocks alone.
TEST(Scheduler, WhoIsPreemptedOftenIsProtectedFromThenOn) {
  SchedulerOptions options = small_options();
  options.num_blocks = 8;
  options.admission_headroom_blocks = 0;
  options.max_waiting = 4;
  options.max_prefill_chunk = 1;
  Engine engine(options);
  Request victim = make_request(44, 4);
  victim.priority = 2;
  ASSERT_TRUE(engine.arrive(0, victim).ok());
  RequestHandle next = 1;
  for (int step = 0; step < 3000 && !engine.choice(0).output.finish_reason; ++step) {
    const Request request = make_request(2, 12, int32_t(next));
    if (engine.arrive(next, request).ok()) ++next;
    engine.step();
  }
  engine.expect_right_output(0);
  EXPECT_GE(engine.scheduler.stats().num_preemptions, kMaxPreemptions);
}

// --- Several choices ----------------------------------------------------------------------------

TEST(Scheduler, ChoicesShareThePromptsWholeBlocksAndCopyTheRest) {
  Engine engine(small_options());
  Request request = make_request(20, 5);  // two whole blocks and a half
  request.num_choices = 3;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 20, 3)));
  EXPECT_EQ(engine.scheduler.stats().num_free_blocks, 64 - 3 - 2);
  const StepPlan& plan = engine.plan();
  ASSERT_EQ(plan.state_copies.size(), 2u);
  ASSERT_EQ(plan.block_copies.size(), 2u);
  ASSERT_EQ(plan.rows.size(), 3u);
  EXPECT_EQ(plan.rows[0].block_table[1], plan.rows[2].block_table[1]);
  EXPECT_NE(plan.rows[0].block_table[2], plan.rows[2].block_table[2]);
  EXPECT_EQ(plan.block_copies[1].from, plan.rows[0].block_table[2]);
  EXPECT_EQ(plan.block_copies[1].to, plan.rows[2].block_table[2]);
  engine.commit(plan);
  engine.run_all();
  engine.expect_right_output(0);
}

TEST(Scheduler, ChoicesWithoutASlotWaitAndComputeThePromptThemselves) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 2;
  Engine engine(options);
  Request request = make_request(20, 6);
  request.num_choices = 5;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  engine.step();
  EXPECT_EQ(engine.scheduler.stats().num_waiting_sequences, 3);
  engine.run_all();
  engine.expect_right_output(0);
  engine.expect_idle();
}

TEST(Scheduler, AnAbandonedStepHasMadeItsCopiesAndNothingElse) {
  Engine engine(small_options());
  Request request = make_request(20, 5);
  request.num_choices = 3;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  engine.step(/*abandon=*/true);
  EXPECT_EQ(engine.choice(0).num_events, 0);
  engine.step();
  const Engine::Rows rows = engine.step(/*abandon=*/true);
  EXPECT_EQ(rows.size(), 3u);
  EXPECT_EQ(engine.step(), rows);
  engine.run_all();
  engine.expect_right_output(0);
  EXPECT_EQ(engine.scheduler.stats().num_abandoned_steps, 2);
}

// --- Cancels, deadlines, pauses -----------------------------------------------------------------

TEST(Scheduler, ACancelledRequestEndsAtTheNextCommitWhereverItIs) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(20, 50)).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(20, 50)).ok());
  engine.step();
  engine.step();
  engine.scheduler.on_cancel(1);  // waits
  engine.step();
  EXPECT_EQ(engine.choice(1).output.finish_reason, FinishReason::kAbort);
  engine.scheduler.on_cancel(0);  // decodes
  engine.scheduler.on_cancel(0);
  engine.scheduler.on_cancel(99);
  const StepPlan& plan = engine.plan();
  EXPECT_TRUE(plan.rows.empty());
  EXPECT_THAT(plan.finished, ElementsAre(0));  // 1 was never started
  engine.commit(plan);
  EXPECT_EQ(engine.choice(0).output.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(engine.choice(0).output.tokens.size(), 3u);
  engine.expect_idle();
}

TEST(Scheduler, ARequestCancelledDuringAStepGetsNoTokenOfIt) {
  Engine engine(small_options());
  ASSERT_TRUE(engine.arrive(0, make_request(20, 50)).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(20, 50)).ok());
  engine.step();
  const StepPlan& plan = engine.plan();
  engine.scheduler.on_cancel(0);
  engine.scheduler.check_invariants();
  EXPECT_FALSE(engine.scheduler.is_moot(engine.now_ms));
  EXPECT_TRUE(engine.arrive(2, make_request(5, 5)).ok());
  engine.commit(plan);
  EXPECT_EQ(engine.choice(0).output.tokens.size(), 1u);
  EXPECT_EQ(engine.choice(0).output.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(engine.choice(1).output.tokens.size(), 2u);
}

TEST(Scheduler, AStepThatHelpsNobodyIsMoot) {
  Engine engine(small_options());
  Request in_a_hurry = make_request(20, 50);
  in_a_hurry.timeout_ms = 1000;
  ASSERT_TRUE(engine.arrive(0, in_a_hurry).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(20, 50)).ok());
  const StepPlan& plan = engine.plan();
  EXPECT_FALSE(engine.scheduler.is_moot(1000));
  engine.scheduler.on_cancel(1);
  EXPECT_FALSE(engine.scheduler.is_moot(999));
  EXPECT_TRUE(engine.scheduler.is_moot(1000));
  engine.now_ms = 1000;
  engine.commit(plan, /*abandon=*/true);
  engine.run_all();
  EXPECT_EQ(engine.choice(0).output.finish_reason, FinishReason::kTimeout);
  engine.expect_idle();
}

TEST(Scheduler, ARequestEndsWhenItsTimeIsOver) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  Engine engine(options);
  Request request = make_request(5, 100);
  request.timeout_ms = 100;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  ASSERT_TRUE(engine.arrive(1, request).ok());
  EXPECT_EQ(engine.scheduler.next_deadline_ms(), 100);
  engine.run_all();
  EXPECT_GE(engine.now_ms, 100);
  EXPECT_LT(engine.now_ms, 120);
  EXPECT_EQ(engine.choice(0).output.finish_reason, FinishReason::kTimeout);
  EXPECT_EQ(engine.choice(0).output.tokens.size(), 9u);  // 15 ms, then 11 ms each
  EXPECT_EQ(engine.choice(1).output.finish_reason, FinishReason::kTimeout);
  EXPECT_EQ(engine.scheduler.next_deadline_ms(), std::nullopt);
  engine.expect_idle();
}

// "ab" is a stop string and the output so far may begin it.
TEST(Scheduler, WhatAStopStringHeldBackIsSettledByTheEnd) {
  Engine engine(small_options());
  Request request = make_request(5, 100);
  const Output output = expected_output(request, 0, 100, engine.vocabulary.tokens());
  const std::string first = engine.vocabulary.bytes[size_t(output.tokens[0])];
  request.sampling.stop = {first + "!"};
  ASSERT_TRUE(engine.arrive(0, request).ok());
  engine.step();
  EXPECT_EQ(engine.choice(0).output.num_settled_bytes, 0);
  engine.scheduler.on_cancel(0);
  engine.step();
  EXPECT_EQ(engine.choice(0).output.num_settled_bytes, 1);
}

TEST(Scheduler, APausedRequestIsInNoPlanAndGoesOnWhereItWas) {
  Engine engine(small_options());
  ASSERT_TRUE(engine.arrive(0, make_request(20, 6)).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(100, 3)).ok());
  engine.step();
  engine.scheduler.set_paused(0, true, engine.now_ms);
  engine.scheduler.set_paused(1, true, engine.now_ms);
  EXPECT_FALSE(engine.scheduler.has_work());
  EXPECT_TRUE(engine.step().empty());
  EXPECT_EQ(engine.scheduler.stats().num_paused_requests, 2);
  engine.scheduler.set_paused(0, false, engine.now_ms);
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(0, 1, 1)));
  engine.scheduler.set_paused(1, false, engine.now_ms);
  engine.run_all();
  engine.expect_right_output(0);
  engine.expect_right_output(1);
  EXPECT_EQ(engine.scheduler.stats().num_preemptions, 0);
  engine.expect_idle();
}

TEST(Scheduler, APausedRequestGivesWayToThoseThatWaitWhenItsGraceIsOver) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  options.paused_grace_ms = 500;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(20, 6)).ok());
  engine.step();
  const double paused_ms = engine.now_ms;
  engine.scheduler.set_paused(0, true, paused_ms);
  ASSERT_TRUE(engine.arrive(1, make_request(20, 6)).ok());
  EXPECT_TRUE(engine.step().empty());
  EXPECT_FALSE(engine.scheduler.has_work());
  EXPECT_EQ(engine.scheduler.next_deadline_ms(), paused_ms + 500);
  engine.now_ms = paused_ms + 500;
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(1, 20, 1)));
  engine.scheduler.set_paused(0, false, engine.now_ms);
  engine.run_all();
  engine.expect_right_output(0);
  engine.expect_right_output(1);
}

// --- Failures and log-probabilities -------------------------------------------------------------

TEST(Scheduler, LogitsThatAreNotFiniteEndOnlyTheirSequence) {
  Engine engine(small_options());
  engine.executor.sample_fails = [](SequenceId id, int64_t position) {
    return id == 1 && position == 22;
  };
  Request request = make_request(20, 5);
  request.num_choices = 2;  // ids 0 and 1
  ASSERT_TRUE(engine.arrive(0, request).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(10, 5)).ok());
  engine.run_all();
  EXPECT_EQ(engine.choice(0, 0).output.finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine.choice(0, 1).output.finish_reason, FinishReason::kError);
  EXPECT_EQ(engine.choice(0, 1).output.tokens.size(), 2u);
  ASSERT_TRUE(engine.choice(0, 1).error);
  EXPECT_EQ(engine.choice(0, 1).error->message, "logits: found inf");
  engine.expect_right_output(1);
  engine.expect_idle();
}

TEST(Scheduler, RowsThatFailEndAllChoicesThatStandOnThem) {
  Engine engine(small_options());
  engine.executor.rows_fail = [](const PlannedRows& rows) { return rows.sequence_id == 0; };
  Request request = make_request(20, 5);
  request.num_choices = 3;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  ASSERT_TRUE(engine.arrive(1, make_request(10, 5)).ok());
  engine.run_all();
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(engine.choice(0, k).output.finish_reason, FinishReason::kError);
    EXPECT_EQ(engine.choice(0, k).error->message, "logits: found nan");
  }
  engine.expect_right_output(1);
  engine.expect_idle();
}

TEST(Scheduler, PromptLogprobsComeOnceInOrderWhateverTheChunks) {
  SchedulerOptions options = small_options();
  options.max_prefill_chunk = 7;
  Engine engine(options);
  Request request = make_request(20, 5);
  request.sampling.prompt_logprobs = 0;
  request.num_choices = 2;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  engine.run_all();
  const std::vector<TokenLogprobs>& found = engine.choice(0).prompt_logprobs;
  ASSERT_EQ(found.size(), 19u);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].token.token_id, request.prompt_token_ids[i + 1]);
  }
  EXPECT_TRUE(engine.choice(0, 1).prompt_logprobs.empty());
}

// --- Fair shares --------------------------------------------------------------------------------

// Keeps ten requests of each kind in the scheduler and counts the rows that each kind gets.
std::map<std::string, int64_t> served_tokens(const std::vector<Request>& kinds, int num_steps) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 16;
  options.max_waiting = int64_t(kinds.size()) * 10;
  options.min_prefill_rows = 1;
  Engine engine(options);
  std::map<std::string, int64_t> served;
  std::map<SequenceId, std::string> keys;
  std::map<std::string, int> num_live;
  RequestHandle next = 0;
  for (int step = 0; step < num_steps; ++step) {
    for (const Request& kind : kinds) {
      while (num_live[kind.fairness_key] < 10) {
        EXPECT_TRUE(engine.arrive(next, kind).ok());
        ++num_live[kind.fairness_key];
        keys[next++] = kind.fairness_key;  // of one choice: its sequence id
      }
    }
    for (const auto& [id, rows, samples] : engine.step()) served[keys[id]] += rows;
    for (auto it = keys.begin(); it != keys.end();) {
      if (engine.choice(it->first).output.finish_reason) {
        --num_live[it->second];
        it = keys.erase(it);
      } else {
        ++it;
      }
    }
  }
  return served;
}

TEST(Scheduler, KeysGetEqualSharesWhateverTheSizeOfTheirRequests) {
  Request large = make_request(300, 1), small = make_request(10, 1);
  large.fairness_key = "large";
  small.fairness_key = "small";
  std::map<std::string, int64_t> served = served_tokens({large, small}, 2000);
  EXPECT_NEAR(double(served["large"]) / double(served["small"]), 1, 0.05);
}

TEST(Scheduler, PrioritiesAreServedInTheRatioOfTheirWeightsAndNobodyStarves) {
  std::vector<Request> kinds;
  for (int priority = -1; priority <= 1; ++priority) {
    Request kind = make_request(40, 1);
    kind.fairness_key = std::string("p") + char('1' + priority);
    kind.priority = priority;
    kinds.push_back(kind);
  }
  std::map<std::string, int64_t> served = served_tokens(kinds, 4000);
  EXPECT_NEAR(double(served["p0"]) / double(served["p1"]), kPriorityWeight, 0.2);
  EXPECT_NEAR(double(served["p1"]) / double(served["p2"]), kPriorityWeight, 0.3);
}

TEST(Scheduler, PrioritiesBeyondTheRangeCountAsItsEnds) {
  Engine engine(small_options());
  Request request = make_request(40, 5);
  request.priority = 1000;
  ASSERT_TRUE(engine.arrive(0, request).ok());
  request.priority = -1000;
  ASSERT_TRUE(engine.arrive(1, request).ok());
  EXPECT_THAT(engine.step(), ElementsAre(std::tuple(1, 40, 1), std::tuple(0, 24, 0)));
}

// Every newcomer has a key of its own, and there are more of them than can be served.
TEST(Scheduler, NewKeysDoNotStarveAnOldOne) {
  SchedulerOptions options = small_options();
  options.max_waiting = 64;
  Engine engine(options);
  Request old = make_request(60, 1);
  old.fairness_key = "old";
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(engine.arrive(i, old).ok());
  RequestHandle next = 10;
  int step = 0;
  while (!engine.choice(9).output.finish_reason && step++ < 2000) {
    Request request = make_request(60, 1);
    request.fairness_key = std::to_string(next);
    if (engine.arrive(next, request).ok()) ++next;
    engine.step();
  }
  EXPECT_TRUE(engine.choice(9).output.finish_reason.has_value());
}

}  // namespace
}  // namespace millrace
