#include "server/ready_queue.h"

#include <utility>

#include "server/completion_call.h"

namespace millrace {

void ReadyQueue::push(std::weak_ptr<CompletionCall> call) {
  bool was_empty;
  {
    const std::lock_guard lock(mutex_);
    was_empty = calls_.empty();
    calls_.push_back(std::move(call));
  }
  if (was_empty) loop_.post([this] { serve(); });
}

void ReadyQueue::serve() {
  {
    const std::lock_guard lock(mutex_);
    serving_.swap(calls_);
  }
  for (const std::weak_ptr<CompletionCall>& weak : serving_) {
    if (const std::shared_ptr<CompletionCall> call = weak.lock()) call->read_events();
  }
  serving_.clear();
}

}  // namespace millrace
