#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "net/event_loop.h"

namespace millrace {

class CompletionCall;

// Calls whose engine has brought something to read. A step of the engine with any number of them
// wakes the network's thread once.
//
// Threading: push() from any thread; the rest is the network's.
class ReadyQueue {
 public:
  explicit ReadyQueue(net::EventLoop& loop) : loop_(loop) {}

  void push(std::weak_ptr<CompletionCall> call);

 private:
  void serve();

  net::EventLoop& loop_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<CompletionCall>> calls_;  // guarded by mutex_
  std::vector<std::weak_ptr<CompletionCall>> serving_;
};

}  // namespace millrace
