#include "net/event_loop.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "net/event_loop_impl.h"

namespace millrace::net {

namespace asio = boost::asio;

struct EventLoop::Timer::State {
  explicit State(asio::io_context& context) : timer(context) {}

  asio::steady_timer timer;
  std::function<void()> task;  // empty when it has been called or is not wanted any more
};

EventLoop::Timer::Timer() = default;
EventLoop::Timer::Timer(Timer&&) noexcept = default;

EventLoop::Timer& EventLoop::Timer::operator=(Timer&& other) noexcept {
  Timer old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

EventLoop::Timer::~Timer() {
  if (!state_) return;
  state_->task = nullptr;  // it may have expired and wait for its turn
  state_->timer.cancel();
}

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}

EventLoop::~EventLoop() = default;

void EventLoop::run() {
  impl_->context.run();
  impl_->context.restart();  // behind it, so that a stop() that comes first is not lost
}

void EventLoop::stop() { impl_->context.stop(); }

void EventLoop::post(std::function<void()> task) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->tasks.push_back(std::move(task));
    if (impl_->tasks.size() > 1) return;  // somebody has already asked for a turn
  }
  // Wakes the loop only if it sleeps.
  asio::post(impl_->context, [impl = impl_.get()] {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(impl->mutex);
      tasks.swap(impl->tasks);
    }
    for (std::function<void()>& task : tasks) std::exchange(task, nullptr)();
  });
}

EventLoop::Timer EventLoop::after(std::chrono::nanoseconds delay, std::function<void()> task) {
  Timer timer;
  timer.state_ = std::make_shared<Timer::State>(impl_->context);
  timer.state_->task = std::move(task);
  // The clock counts nanoseconds in 64 bits: forever would be in the past.
  timer.state_->timer.expires_after(
      std::min<std::chrono::nanoseconds>(delay, std::chrono::hours(24 * 365)));
  timer.state_->timer.async_wait([state = timer.state_](const boost::system::error_code&) {
    if (const std::function<void()> due = std::exchange(state->task, nullptr)) due();
  });
  return timer;
}

}  // namespace millrace::net
