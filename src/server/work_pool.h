#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace {

// Threads for work that is too long for the network's thread: JSON, chat encoding, tokenization.
// Tasks begin in the order they came.
//
// Threading: post() from any thread.
class WorkPool {
 public:
  explicit WorkPool(int num_threads);
  ~WorkPool();  // after every task that was posted has run
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  void post(std::function<void()> task);

  int64_t cpu_ns();  // that its threads have used

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stop_ = false;                        // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace millrace
