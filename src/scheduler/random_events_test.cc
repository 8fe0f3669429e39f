#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <random>

#include "scheduler/test_driver.h"

namespace millrace {
namespace {

uint32_t seed = 0;

void print_seed(int) { std::fprintf(stderr, "seed %u\n", seed); }

// Every output is compared with what the request says alone, every plan with what blocks and slots
// hold, and every rule of the scheduler after every event (scheduler/test_driver.h). A failed check
// aborts, and then the seed is printed.
TEST(SchedulerEvents, HundredThousandLifetimesInAnyOrderEndWell) {
  int64_t num_ended = 0, num_compared = 0, num_events = 0, num_preemptions = 0;
  int64_t num_cached_tokens = 0;
  const auto handler = std::signal(SIGABRT, print_seed);
  for (seed = 0; num_ended < 100000; ++seed) {
    std::mt19937 random(seed);
    const TestDriver::Pick pick = [&](uint32_t n) { return uint32_t(random() % n); };
    TestDriver driver(TestDriver::draw_options(pick), pick);
    for (int i = 0; i < 4000; ++i) driver.event();
    driver.drain();
    num_ended += driver.num_ended();
    num_compared += driver.num_compared();
    num_events += driver.num_events();
    num_preemptions += driver.stats().num_preemptions;
    num_cached_tokens += driver.stats().num_cached_tokens;
  }
  std::signal(SIGABRT, handler);
  std::printf("%lld events, %lld requests, %lld whole outputs compared, %lld preemptions, "
              "%lld tokens from the cache\n",
              (long long)num_events, (long long)num_ended, (long long)num_compared,
              (long long)num_preemptions, (long long)num_cached_tokens);
  EXPECT_GT(num_compared, num_ended / 4);
  EXPECT_GT(num_preemptions, 1000);
  EXPECT_GT(num_cached_tokens, 30'000);
}

}  // namespace
}  // namespace millrace
