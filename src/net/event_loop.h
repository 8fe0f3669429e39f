#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace millrace::net {

// What one thread waits for: tasks that other threads post, timers, and the sockets of
// http_server.h and http_client.h. Whatever it calls must not block and must not throw.
//
// Threading: run() makes its thread the loop's. stop() and post() may be called from any thread;
// everything else, here and in the classes that take a loop, belongs to the loop's thread, or to
// whoever holds the loop while it does not run.
class EventLoop {
 public:
  // Calls its task once, unless it is destroyed before. Must not outlive the loop.
  class Timer {
   public:
    Timer();
    ~Timer();
    Timer(Timer&&) noexcept;
    Timer& operator=(Timer&&) noexcept;

   private:
    friend class EventLoop;
    struct State;
    std::shared_ptr<State> state_;  // shared with the wait that is under way
  };

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Until stop(), even with nothing to do.
  void run();
  void stop();
  // Runs its task in a later turn, in the order of the calls. Wakes the loop only if it sleeps.
  void post(std::function<void()> task);
  [[nodiscard]] Timer after(std::chrono::nanoseconds delay, std::function<void()> task);

  struct Impl;  // what the library needs, for the files of this folder
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::net
