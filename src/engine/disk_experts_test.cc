// An engine whose experts come from the disk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/test_shuffled_toy.h"
#include "engine/loaded_model.h"
#include "engine/test_toy_model.h"
#include "sys/read_queue.h"
#include "sys/test_mapping_flags.h"
#include "sys/test_refused_calls.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test::ShuffledToy;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kToyExpertBytes = 20480;  // of a slot

EngineOptions with_cache(const std::string& folder, std::optional<int64_t> bytes) {
  EngineOptions options = test::options();
  options.load.model_dir = folder;
  options.load.expert_cache_bytes = bytes;
  return options;
}

Completion answer(Engine& engine, const Request& request) {
  const Result<Completion> completion = engine.generate(request);
  if (completion.has_value()) return completion.value();
  ADD_FAILURE() << completion.error().message;
  return {};
}

TEST(EngineWithExpertsFromTheDisk, AnswersAsWithMappedOnesAndCountsWhatItReads) {
  const ShuffledToy toy(7, 3);
  constexpr int64_t kBytes = 5 * 45056;  // pieces in six places need more blocks
  const std::unique_ptr<Engine> mapped = test::open(with_cache(toy.path(), 0));
  const std::unique_ptr<Engine> cached = test::open(with_cache(toy.path(), kBytes));
  Request request = test::greedy(test::long_prompt(), 20);
  request.sampling.logprobs = 3;
  const Completion want = answer(*mapped, request), got = answer(*cached, request);
  EXPECT_EQ(got.token_ids, want.token_ids);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].token.logprob, want.logprobs[i].token.logprob);
  }
  EXPECT_EQ(mapped->info().expert_reads, "mapped");
  EXPECT_EQ(mapped->counters().expert_reads.cache_bytes, 0);
  EXPECT_EQ(mapped->counters().expert_reads.num_misses, 0);
  EXPECT_THAT(cached->info().expert_reads, testing::AnyOf("io_uring", "pread"));
  const ExpertReads reads = cached->counters().expert_reads;
  EXPECT_EQ(reads.cache_bytes, kBytes);
  EXPECT_GT(reads.num_misses, 64);
  EXPECT_GT(reads.num_hits, 0);
  EXPECT_GT(reads.num_bytes, reads.num_misses * 10'000);
}

TEST(EngineWithExpertsFromTheDisk, LeavesTheirPagesOfTheMappingAlone) {
  const ShuffledToy toy(0, 2, /*has_experts_apart=*/true);
  // Reading the header has brought some.
  const auto brought_by_a_prompt = [&](int64_t cache_bytes) {
    const std::unique_ptr<Engine> engine = test::open(with_cache(toy.path(), cache_bytes));
    const int64_t before = test::resident_bytes(toy.file_path(1));
    EXPECT_GT(before, 0);
    answer(*engine, test::greedy(test::long_prompt(), 4));
    return test::resident_bytes(toy.file_path(1)) - before;
  };
  EXPECT_GT(brought_by_a_prompt(0), 0);
  EXPECT_EQ(brought_by_a_prompt(6 * kToyExpertBytes), 0);
}

TEST(EngineWithExpertsFromTheDisk, AFileThatIsCutEndsRequestsByNameAndTheEngineGoesOn) {
  const ShuffledToy toy(0, 2, /*has_experts_apart=*/true);
  const std::unique_ptr<Engine> engine = test::open(with_cache(toy.path(), 5 * kToyExpertBytes));
  const Request request = test::greedy(test::long_prompt(), 8);
  const Completion want = answer(*engine, request);
  const std::string whole = read_file(toy.file_path(1)).value();
  fs::resize_file(toy.file_path(1), whole.size() / 3);
  for (int i = 0; i < 2; ++i) {
    const Result<Completion> failed = engine->generate(request);
    ASSERT_FALSE(failed.has_value());
    EXPECT_THAT(failed.error().message,
                AllOf(HasSubstr(toy.file_path(1) + ": tensor "), HasSubstr(".ffn.experts."),
                      HasSubstr(": at byte "), HasSubstr("did the file become shorter?")));
  }
  EXPECT_EQ(engine->stats().num_running_requests, 0);
  fs::resize_file(toy.file_path(1), whole.size());
  std::fstream(toy.file_path(1), std::ios::in | std::ios::out | std::ios::binary) << whole;
  EXPECT_EQ(answer(*engine, request).token_ids, want.token_ids);
}

TEST(EngineWithExpertsFromTheDisk, ReadsWhereTheSystemRefusesTheFastWaysAndSaysSo) {
  const Result<std::unique_ptr<ReadQueue>> uring = open_uring_queue(1);
  if (!uring.has_value()) GTEST_SKIP() << uring.error().message;
  LoadOptions load = with_cache(test::kGolden + "tiny-v41", 5 * kToyExpertBytes).load;
  const auto open = [&] {
    return std::move(LoadedModel::open(load, test::golden_token_map()).value());
  };
  std::unique_ptr<LoadedModel> model = open();
  EXPECT_EQ(model->expert_reads(), "io_uring");
  test::run_without_io_uring([&] { model = open(); });
  EXPECT_EQ(model->expert_reads(), "pread");
  EXPECT_THAT(model->warnings(),
              testing::Contains("io_uring: Operation not permitted: experts are read with pread, "
                                "one piece after the other"));
  test::run_without_direct_reads([&] { model = open(); });
  EXPECT_EQ(model->expert_reads(), "io_uring");
  EXPECT_THAT(model->warnings(),
              testing::Contains(load.model_dir +
                                ": the file system has no reads past the page cache: experts that "
                                "are read take memory there, too"));
  const Request request = test::greedy(test::long_prompt(), 8);
  const Completion want = answer(*test::open(test::options()), request);
  std::unique_ptr<Engine> engine;
  test::run_without_io_uring(
      [&] { engine = test::open(with_cache(load.model_dir, 5 * kToyExpertBytes)); });
  EXPECT_EQ(engine->info().expert_reads, "pread");
  EXPECT_EQ(answer(*engine, request).token_ids, want.token_ids);
}

TEST(EngineWithExpertsFromTheDisk, ACacheThatIsTooSmallOrTooLargeIsRefusedWithTheNumbers) {
  const auto refusal = [&](int64_t bytes) {
    return Engine::open(with_cache(test::kGolden + "tiny-v41", bytes), test::token_table())
        .error()
        .message;
  };
  EXPECT_EQ(refusal(3 * kToyExpertBytes - 1),
            "expert cache: found 61439 bytes, expected 0 or at least 61440, 3 experts of 20480: "
            "those of a token in one layer, and one that is read");
  EXPECT_EQ(refusal(-1),
            "expert_cache_bytes: found -1, expected at least 0");
}

TEST(EngineWithExpertsFromTheDisk, WhatFitsIntoMemoryIsMappedUnlessSomebodyWishesOtherwise) {
  EXPECT_EQ(test::open(test::options())->info().expert_reads, "mapped");
}

}  // namespace
}  // namespace millrace
