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
// Shared with the engine: what it still has to say when the server has gone is heard by nobody.
//
// Threading: push() from any thread; the rest is the network's.
class ReadyQueue : public std::enable_shared_from_this<ReadyQueue> {
 public:
  explicit ReadyQueue(net::EventLoop& loop) : loop_(&loop) {}

  void push(std::weak_ptr<CompletionCall> call);
  void close();  // before the loop goes

 private:
  void serve();

  std::mutex mutex_;
  net::EventLoop* loop_;  // guarded by mutex_; null: closed
  std::vector<std::weak_ptr<CompletionCall>> calls_;  // guarded by mutex_
  std::vector<std::weak_ptr<CompletionCall>> serving_;
};

}  // namespace millrace
