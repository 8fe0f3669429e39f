#include "server/ready_queue.h"

#include <utility>

#include "server/completion_call.h"

namespace millrace {

ReadyQueue::Id ReadyQueue::add(std::weak_ptr<CompletionCall> call) {
  calls_.emplace(next_id_, std::move(call));
  return next_id_++;
}

void ReadyQueue::remove(Id id) { calls_.erase(id); }

void ReadyQueue::push(Id id) {
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr) return;
  ready_.push_back(id);
  if (ready_.size() == 1) loop_->post([self = shared_from_this()] { self->serve(); });
}

void ReadyQueue::close() {
  const std::lock_guard lock(mutex_);
  loop_ = nullptr;
}

void ReadyQueue::serve() {
  {
    const std::lock_guard lock(mutex_);
    serving_.swap(ready_);
  }
  for (const Id id : serving_) {
    const auto found = calls_.find(id);
    if (found == calls_.end()) continue;
    if (const std::shared_ptr<CompletionCall> call = found->second.lock()) call->read_events();
  }
  serving_.clear();
}

}  // namespace millrace
