// Prefixes that are found again, and rows that are left out: as plans.

#include "scheduler/test_engine.h"

namespace millrace {
namespace {

// Blocks of 8; three layers look back 3 tokens each, the lowest makes compressed rows. So a halo is
// 9 tokens, the work of 6.
SchedulerOptions cached(int64_t max_num_snapshots = 0) {
  SchedulerOptions o = small_options();
  o.prefix_caching = true;
  o.max_num_snapshots = max_num_snapshots;
  o.layer_reach = {3, 4, {0}};
  return o;
}

struct Planned {
  int64_t first_position, num_rows, num_cached_tokens, first_output;
  bool operator==(const Planned&) const = default;
};
void PrintTo(const Planned& p, std::ostream* out) {
  *out << "rows " << p.first_position << "+" << p.num_rows << ", cached " << p.num_cached_tokens
       << ", output from " << p.first_output;
}

// The first rows of a request that comes now; then all runs to its end.
Planned first_rows(Engine& engine, RequestHandle handle, const Request& request) {
  EXPECT_TRUE(engine.arrive(handle, request).ok());
  const StepPlan& plan = engine.plan();
  const PlannedRows& rows = plan.rows.at(0);
  const Planned planned{rows.first_position, rows.num_rows, rows.num_cached_tokens,
                        rows.first_output};
  engine.commit(plan);
  engine.run_all();
  engine.expect_right_output(handle);
  engine.expect_idle();
  return planned;
}

Request begin_like(const Request& other, int64_t num_common, int64_t num_tokens) {
  Request r = make_request(num_tokens, 4, 77);
  std::copy_n(other.prompt_token_ids.begin(), num_common, r.prompt_token_ids.begin());
  return r;
}

TEST(PrefixCaching, APromptThatBeginsAlikeBeginsAHaloBeforeTheLastWholeBlock) {
  Engine engine(cached());
  const Request first = make_request(50, 4);
  EXPECT_EQ(first_rows(engine, 0, first), (Planned{0, 50, 0, 0}));
  // 45 in common: 40 of them in whole blocks.
  EXPECT_EQ(first_rows(engine, 1, begin_like(first, 45, 60)), (Planned{31, 29, 40, 40}));
  EXPECT_EQ(engine.choice(1).num_cached_tokens, 40);
  EXPECT_EQ(engine.scheduler.stats().num_cached_tokens, 40);
  EXPECT_EQ(engine.scheduler.stats().num_queried_tokens, 110);
  // The answer counts, too: 53 tokens have been computed.
  Request next = first;
  for (const int32_t token : engine.choice(0).output.tokens) next.prompt_token_ids.push_back(token);
  EXPECT_EQ(first_rows(engine, 2, next), (Planned{39, 15, 48, 48}));
}

TEST(PrefixCaching, OnlyTheHaloIsLeftOfAPromptThatIsThere) {
  Engine engine(cached());
  const Request request = make_request(48, 4);
  first_rows(engine, 0, request);
  EXPECT_EQ(first_rows(engine, 1, request), (Planned{38, 10, 48, 47}));
}

TEST(PrefixCaching, ASnapshotSavesTheHaloAndTheTokensOfTheLastBlock) {
  Engine engine(cached(2));
  const Request first = make_request(50, 4);
  first_rows(engine, 0, first);
  EXPECT_EQ(engine.scheduler.stats().num_snapshots, 2);  // behind the prompt and the answer
  EXPECT_EQ(first_rows(engine, 1, begin_like(first, 50, 60)), (Planned{50, 10, 50, 50}));
  EXPECT_EQ(engine.choice(1).num_cached_tokens, 50);
}

TEST(PrefixCaching, APromptThatIsThereIsNotComputedTwiceByThoseThatRunTogether) {
  Engine engine(cached());
  ASSERT_TRUE(engine.arrive(0, make_request(50, 4)).ok());
  engine.step();
  ASSERT_TRUE(engine.arrive(1, make_request(50, 4)).ok());
  engine.run_all();
  engine.expect_right_output(0);
  engine.expect_right_output(1);
  EXPECT_EQ(engine.scheduler.stats().num_cached_tokens, 48);
}

TEST(PrefixCaching, SaltsResetsAndPromptLogprobsFindNothing) {
  Engine engine(cached(4));
  Request request = make_request(50, 4);
  first_rows(engine, 0, request);
  request.cache_salt = "another";
  EXPECT_EQ(first_rows(engine, 1, request).num_cached_tokens, 0);
  request.cache_salt = "";
  request.sampling.prompt_logprobs = 0;
  EXPECT_EQ(first_rows(engine, 2, request), (Planned{0, 50, 0, 0}));
  request.sampling.prompt_logprobs.reset();
  engine.scheduler.reset_prefix_cache();
  EXPECT_EQ(first_rows(engine, 3, request).num_cached_tokens, 0);
  EXPECT_GT(first_rows(engine, 4, request).num_cached_tokens, 0);
}

TEST(PrefixCaching, ASideRequestDoesNotEvictASessionWhileThereIsRoom) {
  SchedulerOptions options = cached(4);
  options.num_blocks = 40;
  Engine engine(options);
  Request session = make_request(20, 8);
  for (RequestHandle turn = 0; turn < 20; ++turn) {
    const int64_t known = int64_t(session.prompt_token_ids.size());
    first_rows(engine, 2 * turn, session);
    EXPECT_GE(engine.choice(2 * turn).num_cached_tokens, turn == 0 ? 0 : known - 12) << turn;
    const std::vector<int32_t>& answer = engine.choice(2 * turn).output.tokens;
    session.prompt_token_ids.insert(session.prompt_token_ids.end(), answer.begin(), answer.end());
    session.prompt_token_ids.push_back(int32_t(turn));
    first_rows(engine, 2 * turn + 1, make_request(9, 1, int32_t(turn) + 1));
  }
}

TEST(PrefixCaching, ARunningSequenceKeepsItsBlocksWhateverIsEvicted) {
  SchedulerOptions options = cached(2);
  options.num_blocks = 12;
  Engine engine(options);
  const Request shared = make_request(40, 30);
  ASSERT_TRUE(engine.arrive(0, shared).ok());
  engine.step();
  for (RequestHandle handle = 1; handle < 12; ++handle) {
    ASSERT_TRUE(engine.arrive(handle, handle % 2 ? make_request(20, 8, int32_t(handle))
                                                 : begin_like(shared, 30, 44)).ok());
    engine.step();
  }
  engine.run_all();
  for (RequestHandle handle = 0; handle < 12; ++handle) engine.expect_right_output(handle);
  engine.expect_idle();
}

TEST(PrefixCaching, BookkeepingIsBelowEightBytesForEachToken) {
  SchedulerOptions options = cached(4);
  options.block_size = 128;
  options.num_blocks = 400;
  options.max_model_len = 50'000;
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(20'000, 9'000)).ok());
  double most = 0;
  while (engine.scheduler.has_work()) {
    engine.step();
    const SchedulerStats stats = engine.scheduler.stats();
    if (stats.num_decoding_sequences == 0) continue;
    const double num_tokens = 20'000 + double(stats.num_output_tokens);
    most = std::max(most, double(stats.bookkeeping_bytes) / num_tokens);
  }
  EXPECT_LT(most, 8);
  EXPECT_GT(most, 7);  // of all that there is
}

TEST(ExactReplay, RowsSayFromWhereOutputsAreWantedAndCostWhatTheyTake) {
  SchedulerOptions options = small_options();
  options.exact_replay = true;
  options.layer_reach = {3, 4, {0}};
  Engine engine(options);
  ASSERT_TRUE(engine.arrive(0, make_request(50, 4)).ok());
  const StepPlan& plan = engine.plan();
  EXPECT_EQ(plan.rows.at(0).first_output, 49);
  EXPECT_EQ(plan.num_rows, 50);
  EXPECT_EQ(plan.num_whole_rows, (50 + 7 + 4) / 3.0);
  engine.commit(plan);
  engine.run_all();
  engine.expect_right_output(0);
}

}  // namespace
}  // namespace millrace
