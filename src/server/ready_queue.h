#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "net/event_loop.h"

namespace millrace {

class CompletionCall;

// Calls whose engine has brought something to read. A step of the engine with any number of them
// wakes the network's thread once, and touches nothing of theirs: they are numbers to it.
//
// Shared with the engine: what it still has to say when the server has gone is heard by nobody.
//
// Threading: push() from any thread; the rest is the network's.
class ReadyQueue : public std::enable_shared_from_this<ReadyQueue> {
 public:
  using Id = uint64_t;

  explicit ReadyQueue(net::EventLoop& loop) : loop_(&loop) {}

  Id add(std::weak_ptr<CompletionCall> call);
  void remove(Id id);
  void push(Id id);  // one that was removed is heard by nobody
  void close();      // before the loop goes

 private:
  void serve();

  std::mutex mutex_;
  net::EventLoop* loop_;   // guarded by mutex_; null: closed
  std::vector<Id> ready_;  // guarded by mutex_
  std::vector<Id> serving_;
  std::unordered_map<Id, std::weak_ptr<CompletionCall>> calls_;
  Id next_id_ = 0;
};

}  // namespace millrace
