#include "bench/loopback.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/check.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

double thread_cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e6 + double(now.tv_nsec) / 1e3;
}

struct Sockets {
  explicit Sockets(int count) {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    MR_CHECK(::bind(listener.get(), generic, size) == 0);
    MR_CHECK(::listen(listener.get(), 128) == 0);
    MR_CHECK(::getsockname(listener.get(), generic, &size) == 0);
    for (int i = 0; i < count; ++i) {
      writers.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
      MR_CHECK(::connect(writers.back().get(), generic, size) == 0);
      const int on = 1;
      ::setsockopt(writers.back().get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      readers.emplace_back(::accept(listener.get(), nullptr, nullptr));
      epoll_event event{EPOLLIN, {}};
      event.data.u64 = uint64_t(i);
      MR_CHECK(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, readers.back().get(), &event) == 0);
    }
  }

  std::vector<UniqueFd> writers, readers;
  UniqueFd epoll{::epoll_create1(0)};
};

}  // namespace

LoopbackWrites write_to_loopback(int num_sockets, size_t num_bytes, double seconds,
                                 std::optional<std::chrono::microseconds> step) {
  const Sockets sockets(num_sockets);
  LoopbackWrites result;
  std::atomic<bool> is_over = false;
  const Clock::time_point begin = Clock::now();
  std::thread reader([&] {
    std::string buffer(size_t(64) << 10, 0);
    std::vector<size_t> num_read(size_t(num_sockets), 0);
    epoll_event events[256];
    while (!is_over) {
      const int count = ::epoll_wait(sockets.epoll.get(), events, 256, 10);
      for (int i = 0; i < count; ++i) {
        const size_t socket = events[i].data.u64;
        const ssize_t n =
            ::recv(sockets.readers[socket].get(), buffer.data(), buffer.size(), 0);
        if (n <= 0 || !step) continue;
        const Clock::time_point now = Clock::now();
        const size_t before = num_read[socket] / num_bytes;
        const size_t after = (num_read[socket] += size_t(n)) / num_bytes;
        for (size_t k = before; k < after; ++k) {
          const auto late = now - (begin + int64_t(k + 1) * *step);
          result.late_ms.push_back(std::chrono::duration<double, std::milli>(late).count());
        }
      }
    }
  });
  const std::string bytes(num_bytes, 'x');
  int64_t num_steps = 0;
  double cpu_us = 0;
  while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
    ++num_steps;
    if (step) std::this_thread::sleep_until(begin + num_steps * *step);
    const double cpu_begin = thread_cpu_us();
    for (const UniqueFd& fd : sockets.writers) {
      MR_CHECK(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size()));
    }
    cpu_us += thread_cpu_us() - cpu_begin;
  }
  is_over = true;
  reader.join();
  result.cpu_us = cpu_us / double(num_steps * num_sockets);
  return result;
}

}  // namespace millrace
