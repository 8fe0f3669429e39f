#include "sys/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sys/affinity.h"
#include "sys/fp_environment.h"

namespace millrace {
namespace {

TEST(ThreadPool, RangesCoverEveryItemOnceAndStartOnGrainBounds) {
  for (int threads : {1, 2, 3, 4, 7}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 15, 16, 17, 63, 64, 1000}) {
      std::vector<int> hits(size_t(count), 0);
      pool.parallel_for(count, 16, [&](int64_t begin, int64_t end, int) {
        EXPECT_EQ(begin % 16, 0);
        for (int64_t i = begin; i < end; ++i) ++hits[size_t(i)];
      });
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), count);
      for (int h : hits) EXPECT_EQ(h, 1);
    }
  }
}

TEST(ThreadPool, ManyShortRegionsEachRunOnEveryMember) {
  ThreadPool pool(4);
  std::vector<int64_t> per_thread(4 * 16, 0);
  for (int region = 0; region < 4000; ++region) {
    pool.run([&](int thread_idx) { ++per_thread[size_t(thread_idx) * 16]; });
  }
  for (size_t t = 0; t < 4; ++t) EXPECT_EQ(per_thread[t * 16], 4000);
}

TEST(ThreadPool, WorkersRunInTheContractsFloatingPointState) {
  ThreadPool pool(3);
  std::vector<int> active(3, 0);
  const ScopedFpEnvironment fp;
  pool.run([&](int thread_idx) { active[size_t(thread_idx)] = ScopedFpEnvironment::is_active(); });
  EXPECT_EQ(active, (std::vector<int>{1, 1, 1}));
}

TEST(ThreadPool, EveryMemberStaysOnTheProcessorsItIsGiven) {
  const std::vector<int> all = allowed_cpus();
  ASSERT_FALSE(all.empty());
  const std::vector<int> first{all.front()}, last{all.back()};
  std::vector<std::vector<int>> seen(3);
  std::thread owner([&] {
    ThreadPool pool(3, {last, first, last});
    pool.bind_owner();
    pool.run([&](int thread_idx) { seen[size_t(thread_idx)] = allowed_cpus(); });
  });
  owner.join();
  EXPECT_EQ(seen, (std::vector<std::vector<int>>{last, first, last}));
  EXPECT_EQ(allowed_cpus(), all) << "other threads are left alone";
}

TEST(ThreadPool, ProcessorsThatAreNotThereChangeNothing) {
  std::vector<int> seen;
  std::thread other([&] {
    bind_thread({60000});
    seen = allowed_cpus();
  });
  other.join();
  EXPECT_EQ(seen, allowed_cpus());
}

}  // namespace
}  // namespace millrace
