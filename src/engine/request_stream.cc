#include "engine/request_stream.h"

namespace millrace {

bool StreamBuffer::push(int32_t choice_idx, StreamEvent event) {
  const std::lock_guard lock(mutex_);
  num_open_choices_ -= event.finish_reason.has_value();
  events_.push_back({choice_idx, std::move(event)});
  is_behind_ = is_behind_ || events_.size() >= kMaxPendingEvents;
  return is_behind_;
}

void StreamBuffer::announce() {
  changed_.notify_one();
  if (on_event_) on_event_();
}

std::optional<StreamBuffer::Event> StreamBuffer::pop(
    std::optional<std::chrono::milliseconds> timeout, bool& is_drained) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !events_.empty() || num_open_choices_ == 0; };
  if (!timeout) {
    changed_.wait(lock, ready);
  } else if (timeout->count() > 0) {  // a wait for no time would still be a sleep
    changed_.wait_for(lock, *timeout, ready);
  }
  is_drained = false;
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  if (is_behind_ && events_.size() <= kMaxPendingEvents / 2) {
    is_behind_ = false;
    is_drained = true;
  }
  return event;
}

bool StreamBuffer::is_finished() const {
  const std::lock_guard lock(mutex_);
  return events_.empty() && num_open_choices_ == 0;
}

RequestStream::RequestStream(RequestControl& engine, RequestHandle handle,
                             std::shared_ptr<StreamBuffer> buffer)
    : engine_(engine), handle_(handle), buffer_(std::move(buffer)) {}

RequestStream::~RequestStream() {
  if (!is_finished()) cancel();
}

std::optional<RequestStream::Event> RequestStream::next(
    std::optional<std::chrono::milliseconds> timeout) {
  bool is_drained = false;
  std::optional<Event> event = buffer_->pop(timeout, is_drained);
  if (is_drained) engine_.resume(handle_);
  return event;
}

void RequestStream::cancel() { engine_.cancel(handle_); }

}  // namespace millrace
