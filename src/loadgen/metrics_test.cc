#include "loadgen/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;

// An answer of one token per event: sent, its first text, and then one every `gap_ms`.
RequestRecord answer(int64_t id, int64_t send_ms, int64_t ttft_ms, int64_t gap_ms, int64_t tokens) {
  RequestRecord record;
  record.id = id;
  record.scheduled_ns = record.ready_ns = record.send_ns = send_ms * kMs;
  for (int64_t i = 0; i < tokens; ++i) {
    record.chunks.push_back({(send_ms + ttft_ms + i * gap_ms) * kMs, 1});
  }
  record.visible_ns = record.chunks.front().at_ns;
  record.done_ns = record.chunks.back().at_ns + kMs;
  record.planned_prompt_tokens = 100;
  record.planned_output_tokens = tokens;
  record.prompt_tokens = 100;
  record.cached_tokens = 25;
  record.output_tokens = tokens;
  record.http_status = 200;
  record.finish_reason = "length";
  return record;
}

RequestRecord failure(int64_t id, const std::string& error) {
  RequestRecord record;
  record.id = id;
  record.error = error;
  record.message = "why " + std::to_string(id);
  record.done_ns = kMs;
  return record;
}

RunOutcome run_of(std::vector<RequestRecord> records) {
  RunOutcome run;
  run.num_planned = int64_t(records.size());
  run.records = std::move(records);
  run.wall_ns = 10'000 * kMs;
  run.client_cpu_ns = 100 * kMs;
  return run;
}

TEST(Metrics, TimesOfARequestAreThoseOfTheDefinitions) {
  RequestRecord record = answer(0, 1000, 200, 10, 11);
  record.scheduled_ns -= 50 * kMs;
  record.ready_ns -= 2 * kMs;
  record.chunks.back().at_ns += 20 * kMs;  // the last gap is 30 ms
  const RunMetrics m = compute_metrics(run_of({record}));
  EXPECT_EQ(m.num_succeeded, 1);
  EXPECT_DOUBLE_EQ(m.ttft.p50, 200);
  EXPECT_DOUBLE_EQ(m.ttft_scheduled.p50, 250);
  EXPECT_DOUBLE_EQ(m.lag.p50, 2);
  EXPECT_DOUBLE_EQ(m.e2el.p50, 320);
  EXPECT_DOUBLE_EQ(m.itl.p50, 12);  // (320 - 200) / 10
  EXPECT_DOUBLE_EQ(m.e2e_per_token.p50, 320.0 / 11);
  EXPECT_DOUBLE_EQ(m.max_gap.p50, 30);
  EXPECT_EQ(m.chunk_gap.n, 10);
  EXPECT_DOUBLE_EQ(m.chunk_gap.p50, 10);
  EXPECT_DOUBLE_EQ(m.duration_s, 0.32);
  EXPECT_DOUBLE_EQ(m.per_second(double(m.output_tokens)), 11 / 0.32);
  EXPECT_EQ(m.new_tokens(), 75);
}

TEST(Metrics, AnEventOfSeveralTokensIsAGapOfEach) {
  RequestRecord record = answer(0, 0, 100, 10, 3);
  record.chunks[1].num_tokens = 4;
  record.output_tokens = record.planned_output_tokens = 6;
  const RunMetrics m = compute_metrics(run_of({record}));
  EXPECT_TRUE(m.knows_chunk_tokens);
  EXPECT_EQ(m.token_gap.n, 5);  // four of 2.5 ms, one of 10 ms
  EXPECT_DOUBLE_EQ(m.token_gap.p50, 2.5);
  EXPECT_DOUBLE_EQ(m.token_gap.max, 10);
  EXPECT_DOUBLE_EQ(m.token_gap.mean, 4);
  EXPECT_DOUBLE_EQ(m.chunk_gap.mean, 10);
  EXPECT_DOUBLE_EQ(m.itl.p50, 4);
  EXPECT_DOUBLE_EQ(m.mean_chunk_tokens, 2);
}

TEST(Metrics, WhereTheServerDoesNotCountTokensAreSpreadOverTheEvents) {
  RequestRecord record = answer(0, 0, 100, 10, 4);
  for (Chunk& chunk : record.chunks) chunk.num_tokens = 0;
  record.output_tokens = 8;
  const RunMetrics m = compute_metrics(run_of({record}));
  EXPECT_FALSE(m.knows_chunk_tokens);
  EXPECT_EQ(m.token_gap.n, 6);
  EXPECT_DOUBLE_EQ(m.token_gap.p50, 5);
  EXPECT_EQ(m.num_wrong_output_lengths, 1);

  record.output_tokens = 4;  // one each: nothing is unknown
  EXPECT_TRUE(compute_metrics(run_of({record})).knows_chunk_tokens);
}

TEST(Metrics, AnEventWithoutATokenIsNoTokenGap) {
  RequestRecord record = answer(0, 0, 100, 10, 3);
  record.chunks[1].num_tokens = 0;  // two kinds of text of one step, say
  record.output_tokens = 2;
  const RunMetrics m = compute_metrics(run_of({record}));
  EXPECT_EQ(m.token_gap.n, 1);
  EXPECT_DOUBLE_EQ(m.token_gap.max, 20);
  EXPECT_EQ(m.chunk_gap.n, 2);
}

TEST(Metrics, OneTokenHasNoTimePerToken) {
  const RunMetrics m = compute_metrics(run_of({answer(0, 0, 100, 10, 1)}));
  EXPECT_EQ(m.itl.n, 0);
  EXPECT_EQ(m.max_gap.n, 0);
  EXPECT_DOUBLE_EQ(m.ttft.p50, m.e2el.p50);
}

TEST(Metrics, FailuresAndWhatWasGivenUpAreCountedAndNotMeasured) {
  RequestRecord given_up = answer(3, 0, 9000, 10, 5);
  given_up.was_cancelled = true;
  const RunMetrics m = compute_metrics(
      run_of({answer(0, 0, 100, 10, 5), failure(1, "HTTP 503"), failure(2, "HTTP 503"), given_up}));
  EXPECT_EQ(m.num_sent, 4);
  EXPECT_EQ(m.num_succeeded, 1);
  EXPECT_EQ(m.num_failed, 2);
  EXPECT_EQ(m.num_cancelled, 1);
  EXPECT_EQ(m.errors.at("HTTP 503"), 2);
  EXPECT_EQ(m.error_examples.at("HTTP 503"), "why 1");
  EXPECT_EQ(m.ttft.n, 1);
  EXPECT_DOUBLE_EQ(m.ttft.max, 100);
  EXPECT_EQ(m.output_tokens, 5);
  EXPECT_EQ(m.lag.n, 4);
}

TEST(Metrics, ConcurrencyIsAnAverageOverTime) {
  // Two requests of 100 ms, the second from the middle of the first: 150 ms.
  RequestRecord a = answer(0, 0, 50, 50, 2), b = answer(1, 50, 50, 50, 2);
  a.done_ns = a.chunks.back().at_ns, b.done_ns = b.chunks.back().at_ns;
  const RunMetrics m = compute_metrics(run_of({a, b}));
  EXPECT_DOUBLE_EQ(m.duration_s, 0.15);
  EXPECT_DOUBLE_EQ(m.mean_concurrency, 200.0 / 150);
  EXPECT_DOUBLE_EQ(m.mean_decoding, 100.0 / 150);
  EXPECT_DOUBLE_EQ(m.mean_waiting, 100.0 / 150);
  EXPECT_EQ(m.max_concurrency, 2);
}

TEST(Metrics, TheSteadyPartLeavesOutTheBeginningAndTheEnd) {
  // One request for 10 s; three more from second 2 to second 8.
  std::vector<RequestRecord> records = {answer(0, 0, 100, 100, 99)};
  for (int64_t id = 1; id < 4; ++id) records.push_back(answer(id, 2000, 100, 100, 59));
  const RunMetrics m = compute_metrics(run_of(records));
  EXPECT_NEAR(m.steady_s, 6, 0.2);
  EXPECT_NEAR(m.steady_output_tokens_per_s, 40, 1.5);
}

TEST(Metrics, AMomentBetweenTwoRequestsIsNoEndOfTheSteadyPart) {
  std::vector<RequestRecord> records;
  for (int64_t i = 0; i < 10; ++i) {
    records.push_back(answer(i, 1000 * i, 100, 100, 9));
    records.back().done_ns = (1000 * i + 990) * kMs;  // 10 ms without any
  }
  EXPECT_NEAR(compute_metrics(run_of(records)).steady_s, 9.99, 0.01);
}

TEST(Metrics, NothingAtAllHasNoFigures) {
  const RunMetrics m = compute_metrics(run_of({}));
  EXPECT_EQ(m.num_sent, 0);
  EXPECT_DOUBLE_EQ(m.per_second(5), 0);
  EXPECT_EQ(m.ttft.n, 0);
}

TEST(Interactivity, IsTheInverseOfTheTimePerToken) {
  EXPECT_DOUBLE_EQ(interactivity(20), 50);
  EXPECT_DOUBLE_EQ(interactivity(0), 0);
}

// ---- What makes a run invalid.

std::vector<RequestRecord> answers(int64_t count) {
  std::vector<RequestRecord> records;
  for (int64_t i = 0; i < count; ++i) records.push_back(answer(i, i, 100, 10, 100));
  return records;
}

std::vector<std::string> invalid(const RunOutcome& run, const ValidityRules& rules = {}) {
  return find_invalid(run, compute_metrics(run), rules);
}

TEST(Validity, NothingSpeaksAgainstAnOrdinaryRun) {
  EXPECT_THAT(invalid(run_of(answers(100))), IsEmpty());
}

TEST(Validity, OneFailureInAHundredIsAllowedAndTwoAreNot) {
  std::vector<RequestRecord> records = answers(99);
  records.push_back(failure(99, "HTTP 500"));
  EXPECT_THAT(invalid(run_of(records)), IsEmpty());
  records.push_back(failure(100, "HTTP 500"));
  EXPECT_THAT(invalid(run_of(records)), ElementsAre(HasSubstr("errors: 2 %")));
}

TEST(Validity, AClientThatIsBusyIsNoJudge) {
  RunOutcome run = run_of(answers(100));
  run.client_cpu_ns = run.wall_ns * 79 / 100;
  EXPECT_THAT(invalid(run), IsEmpty());
  run.client_cpu_ns = run.wall_ns * 8 / 10;
  EXPECT_THAT(invalid(run), ElementsAre(HasSubstr("client CPU: 80 %")));
}

TEST(Validity, LagCountsInAnOpenLoopOnlyAndAgainstTheMeanGap) {
  std::vector<RequestRecord> records = answers(100);
  for (RequestRecord& record : records) record.ready_ns -= 6 * kMs;
  const RunOutcome run = run_of(records);
  EXPECT_THAT(invalid(run), IsEmpty());
  EXPECT_THAT(invalid(run, {.is_open_loop = true, .mean_gap_ms = 100}),
              ElementsAre(HasSubstr("lag: p99 6 ms, below 5 ms")));
  EXPECT_THAT(invalid(run, {.is_open_loop = true, .mean_gap_ms = 1000}), IsEmpty());
}

TEST(Validity, AnswersMustHaveTheirLengthWhereItWasForced) {
  std::vector<RequestRecord> records = answers(100);
  for (int i = 0; i < 2; ++i) records[size_t(i)].planned_output_tokens = 102;
  EXPECT_THAT(invalid(run_of(records)), ElementsAre(HasSubstr("output lengths: 2 %")));
  EXPECT_THAT(invalid(run_of(records), {.forces_output_length = false}), IsEmpty());
  records[0].planned_output_tokens = 101;  // 1 % off is allowed
  EXPECT_THAT(invalid(run_of(records)), IsEmpty());
}

TEST(Validity, EveryOtherRuleHasItsReason) {
  RunOutcome interrupted = run_of(answers(100));
  interrupted.was_interrupted = true;
  EXPECT_THAT(invalid(interrupted), ElementsAre("interrupted"));
  EXPECT_THAT(invalid(run_of({})), ElementsAre("no request succeeded"));
  const RunOutcome run = run_of(answers(100));
  EXPECT_THAT(invalid(run, {.was_warmed_up = false}), ElementsAre(HasSubstr("warm-up")));
  EXPECT_THAT(invalid(run, {.was_server_restarted = true}), ElementsAre(HasSubstr("restarted")));
  EXPECT_THAT(invalid(run, {.was_server_restarted = false}), IsEmpty());
  EXPECT_THAT(invalid(run, {.min_duration_s = 60}), ElementsAre(HasSubstr("at least 60 s")));
}

}  // namespace
}  // namespace millrace
