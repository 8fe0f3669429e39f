#include "server/work_pool.h"

#include <pthread.h>
#include <time.h>

#include <utility>

namespace millrace {

WorkPool::WorkPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

int64_t WorkPool::cpu_ns() {
  int64_t sum = 0;
  for (std::thread& thread : threads_) {
    clockid_t clock;
    timespec used{};
    // The handle is that of a thread that runs: they end with the pool.
    if (pthread_getcpuclockid(thread.native_handle(), &clock) != 0) continue;
    if (clock_gettime(clock, &used) != 0) continue;
    sum += int64_t(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
  }
  return sum;
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes before the lock is taken
    lock.lock();
  }
}

}  // namespace millrace
