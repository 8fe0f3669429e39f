#pragma once

// What the files of this folder see of the loop.

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <mutex>
#include <vector>

#include "net/event_loop.h"

namespace millrace::net {

struct EventLoop::Impl {
  Impl() : context(1), work(boost::asio::make_work_guard(context)) {}

  boost::asio::io_context context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;

  // What every connection reads into, so that one that waits needs no buffer of its own.
  std::array<char, size_t(64) << 10> scratch;

  std::mutex mutex;
  std::vector<std::function<void()>> tasks;  // guarded by the mutex
};

}  // namespace millrace::net
