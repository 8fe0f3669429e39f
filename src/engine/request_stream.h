#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "request/request.h"
#include "request/step.h"

namespace millrace {

// What one request has brought so far, between the engine's thread and the request's own reader.
// At most kMaxPendingEvents wait to be read: while they do, the request rests.
class StreamBuffer {
 public:
  struct Event {
    int32_t choice_idx = 0;
    StreamEvent event;
  };
  static constexpr size_t kMaxPendingEvents = 256;

  StreamBuffer(int32_t num_choices, std::function<void()> on_event)
      : num_open_choices_(num_choices), on_event_(std::move(on_event)) {}

  // The engine's side. True if the reader is behind: the request should rest. The reader is told by
  // announce(), which comes when the step's events are all there: a reader of many requests then
  // wakes once, and not in between.
  bool push(int32_t choice_idx, StreamEvent event);
  void announce();

  // The reader's side. Waits for the next event; none after the last event of the last choice, or
  // when the time is over. `is_drained`: the request that rests may go on.
  std::optional<Event> pop(std::optional<std::chrono::milliseconds> timeout, bool& is_drained);
  bool is_finished() const;  // the last event has been read

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  int32_t num_open_choices_;  // whose last event has not been pushed
  bool is_behind_ = false;
  std::function<void()> on_event_;
};

// The side of an engine that streams speak to, from any thread. Handles of requests that have ended
// are ignored.
class RequestControl {
 public:
  virtual void cancel(RequestHandle handle) = 0;
  virtual void resume(RequestHandle handle) = 0;  // its reader has caught up

 protected:
  ~RequestControl() = default;
};

// A request that is being answered. Ends the request when it is destroyed before the last event.
//
// Threading: one reader at a time; cancel() from any thread. Must not outlive the engine.
class RequestStream {
 public:
  using Event = StreamBuffer::Event;

  RequestStream(RequestControl& engine, RequestHandle handle, std::shared_ptr<StreamBuffer> buffer);
  ~RequestStream();
  RequestStream(const RequestStream&) = delete;
  RequestStream& operator=(const RequestStream&) = delete;

  // Every choice ends with an event that has a finish reason. None: the stream is finished, or
  // the time is over.
  std::optional<Event> next(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  bool is_finished() const { return buffer_->is_finished(); }
  // Every choice that has not ended will do so with kAbort.
  void cancel();

 private:
  RequestControl& engine_;
  RequestHandle handle_;
  std::shared_ptr<StreamBuffer> buffer_;  // shared: either side may go first
};

}  // namespace millrace
