#include <gtest/gtest.h>

#include <random>

#include "base/test_counted_allocations.h"
#include "scheduler/test_driver.h"

namespace millrace {
namespace {

TEST(SchedulerMemory, ASteadyDecodeStepAllocatesNothing) {
  constexpr int64_t kNumSeqs = 64;
  SchedulerOptions options;
  options.max_num_seqs = kNumSeqs;
  options.max_model_len = 2000;
  options.num_blocks = kNumSeqs * 130;
  options.block_size = 8;
  const TestVocabulary vocabulary(100);
  Scheduler scheduler(options, vocabulary.tokens());
  TestExecutor executor(options.num_blocks, options.block_size, kNumSeqs, 100);
  for (RequestHandle handle = 0; handle < kNumSeqs; ++handle) {
    Request request;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.stop = {"a long stop string that never comes"};
    request.prompt_token_ids.assign(size_t(1 + handle % 10), int32_t(handle));
    request.fairness_key = std::string(1, char('a' + handle % 3));
    ASSERT_TRUE(scheduler.on_arrival(handle, std::move(request), 0).ok());
  }
  int64_t num_tokens = 0;
  const Scheduler::EventSink sink = [&](RequestHandle, int32_t, StreamEvent& event) {
    num_tokens += event.token_id.has_value();
  };
  const auto step = [&] { scheduler.commit(executor.run(scheduler.plan(0)), sink); };
  step();
  step();
  const int64_t before = num_allocations;
  for (int i = 0; i < 1000; ++i) step();
  EXPECT_EQ(num_allocations, before);
  EXPECT_EQ(num_tokens, 1002 * kNumSeqs);
  // The counter itself. A direct call: a compiler may leave out an allocation nobody looks at.
  ::operator delete(::operator new(1));
  EXPECT_EQ(num_allocations, before + 1);
}

TEST(SchedulerMemory, StaysFlatOverManyLifetimes) {
  constexpr uint32_t kSeed = 5;
  std::mt19937 random(kSeed);
  const TestDriver::Pick pick = [&](uint32_t n) { return uint32_t(random() % n); };
  SchedulerOptions options = TestDriver::draw_options(pick);
  options.num_blocks = 24;
  options.block_size = 4;
  options.max_num_seqs = 6;
  options.max_waiting = 12;
  options.max_model_len = 80;
  TestDriver driver(options, pick);
  int64_t early_bytes = 0, most_bytes = 0;
  while (driver.num_ended() < 100000) {
    for (int i = 0; i < 10000; ++i) driver.event();
    driver.drain();
    if (driver.num_ended() < 10000) {
      early_bytes = std::max(early_bytes, num_live_bytes.load());
    } else {
      most_bytes = std::max(most_bytes, num_live_bytes.load());
    }
  }
  EXPECT_GT(early_bytes, 0);
  EXPECT_LE(most_bytes, early_bytes + 4096) << "seed " << kSeed;  // buffers of rare sizes
  EXPECT_GT(driver.stats().num_preemptions, 1000);
}

}  // namespace
}  // namespace millrace
