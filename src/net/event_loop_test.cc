#include "net/event_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "net/test_http.h"

namespace millrace::net {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(EventLoop, RunsWhatEachThreadPostsInItsOrder) {
  constexpr int kThreads = 4, kTasks = 10'000;
  std::vector<std::vector<int>> seen(kThreads);
  {
    LoopThread loop;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kTasks; ++i) {
          loop.loop().post([&, t, i] { seen[size_t(t)].push_back(i); });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    loop.call([] {});
  }
  for (const std::vector<int>& order : seen) {
    ASSERT_EQ(order.size(), size_t(kTasks));
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  }
}

TEST(EventLoop, AStopThatComesFirstIsNotLostAndItCanRunAgain) {
  EventLoop loop;
  loop.stop();
  loop.run();
  bool was_called = false;
  loop.post([&] {
    was_called = true;
    loop.post([&] { loop.stop(); });
  });
  loop.run();
  EXPECT_TRUE(was_called);
}

TEST(EventLoop, TimersAreCalledOnceInTheirOrder) {
  EventLoop loop;
  std::vector<int> order;
  EventLoop::Timer late = loop.after(milliseconds(30), [&] {
    order.push_back(2);
    loop.stop();
  });
  EventLoop::Timer soon = loop.after(milliseconds(1), [&] { order.push_back(1); });
  EventLoop::Timer never = loop.after(std::chrono::nanoseconds::max(), [&] { order.push_back(3); });
  loop.run();
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
}

TEST(EventLoop, ADestroyedTimerIsNotCalledEvenIfItHasExpired) {
  EventLoop loop;
  EventLoop::Timer first, second;
  int num_calls = 0;
  const auto fire = [&] {
    ++num_calls;
    first = EventLoop::Timer();  // both have expired; whichever is called takes the other with it
    second = EventLoop::Timer();
    loop.post([&] { loop.stop(); });
  };
  first = loop.after(milliseconds(0), fire);
  second = loop.after(milliseconds(0), fire);
  loop.run();
  EXPECT_EQ(num_calls, 1);
}

TEST(EventLoop, ATimerCanSetItselfAgain) {
  EventLoop loop;
  EventLoop::Timer timer;
  int left = 5;
  std::function<void()> tick = [&] {
    if (--left == 0) return loop.stop();
    timer = loop.after(milliseconds(1), tick);
  };
  timer = loop.after(milliseconds(1), tick);
  loop.run();
  EXPECT_EQ(left, 0);
}

TEST(EventLoop, TasksThatNeverRanAreDestroyedWithIt) {
  const auto held = std::make_shared<int>(0);
  {
    EventLoop loop;
    loop.post([held] { ADD_FAILURE(); });
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace millrace::net
