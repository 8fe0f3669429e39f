#include "server/ready_queue.h"

#include <utility>

#include "server/completion_call.h"

namespace millrace {

void ReadyQueue::push(std::weak_ptr<CompletionCall> call) {
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr) return;
  calls_.push_back(std::move(call));
  if (calls_.size() == 1) loop_->post([self = shared_from_this()] { self->serve(); });
}

void ReadyQueue::close() {
  const std::lock_guard lock(mutex_);
  loop_ = nullptr;
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
