// What src/net costs, as JSON lines: requests that a trivial handler answers, events of 200 bytes
// on many streams at once. "cpu_us" is the time of the server's thread for one of them; "writes" is
// the same in writes of 200 bytes to as many loopback sockets, measured in the same run.
//
// usage: bench-net [SECONDS [STREAMS]]

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "bench/loopback.h"
#include "net/event_loop.h"
#include "net/http_client.h"
#include "net/http_server.h"

namespace millrace::net {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kEventBytes = 200;
constexpr int kConnections = 32;

double thread_cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e6 + double(now.tv_nsec) / 1e3;
}

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.run(); }) {}
  ~LoopThread() {
    loop_.stop();
    thread_.join();
  }
  EventLoop& loop() { return loop_; }
  template <class Function>
  auto call(Function function) {
    std::packaged_task<decltype(function())()> task(std::move(function));
    auto result = task.get_future();
    loop_.post([&task] { task(); });
    return result.get();
  }

 private:
  EventLoop loop_;
  std::thread thread_;
};

// A server and a client, each on its own thread.
struct Pair {
  explicit Pair(std::function<void(std::shared_ptr<HttpExchange>)> on_request) {
    server_loop.call([&] {
      HttpHandlers handlers;
      handlers.on_request = std::move(on_request);
      handlers.on_header = [](HttpRequest&) { return std::nullopt; };
      handlers.make_error = [](int status, const std::string&, const HttpRequest&) {
        return HttpResponse{status, {}, ""};
      };
      handlers.on_done = [](const HttpRequest&, const ExchangeRecord&) {};
      server = std::make_unique<HttpServer>(server_loop.loop(), HttpLimits(), std::move(handlers));
      MR_CHECK(server->listen("127.0.0.1", 0).ok());
    });
    client_loop.call([&] {
      client = std::make_unique<HttpClient>(
          client_loop.loop(), HttpOrigin{false, "127.0.0.1", server->port(), ""});
    });
  }
  ~Pair() {
    client_loop.call([&] { client.reset(); });
    server_loop.call([&] { server.reset(); });
  }
  double server_cpu_us() { return server_loop.call(thread_cpu_us); }

  LoopThread server_loop, client_loop;
  std::unique_ptr<HttpServer> server;
  std::unique_ptr<HttpClient> client;
};

void bench_requests(double seconds) {
  Pair pair([](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {{"Content-Type", "application/json"}}, "{\"ok\":true}"});
  });
  std::atomic<bool> is_over = false;
  std::atomic<int64_t> num_done = 0;
  std::atomic<int> num_running = kConnections;
  std::promise<void> all_done;
  std::function<void()> next = [&] {
    HttpClient::Handlers handlers;
    handlers.on_done = [&](const Status& status) {
      MR_CHECK(status.ok());
      ++num_done;
      if (!is_over) return next();
      if (--num_running == 0) all_done.set_value();
    };
    pair.client->send({}, std::move(handlers));
  };
  pair.client_loop.call([&] {
    for (int i = 0; i < kConnections; ++i) next();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double cpu_begin = pair.server_cpu_us();
  const int64_t begin = num_done;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double count = double(num_done - begin);
  const double cpu_us = (pair.server_cpu_us() - cpu_begin) / count;
  is_over = true;
  all_done.get_future().wait();
  const double write_us = write_to_loopback(kConnections, kEventBytes, seconds, {}).cpu_us;
  std::printf("{\"case\": \"requests\", \"connections\": %d, \"per_s\": %.0f, \"cpu_us\": %.2f, "
              "\"writes\": %.2f}\n",
              kConnections, count / seconds, cpu_us, cpu_us / write_us);
}

void bench_events(int num_streams, double seconds) {
  std::vector<std::shared_ptr<HttpExchange>> open;
  std::promise<void> all_here, all_done;
  Pair pair([&](std::shared_ptr<HttpExchange> exchange) {
    exchange->begin_stream(200, {});
    open.push_back(std::move(exchange));
    if (open.size() == size_t(num_streams)) all_here.set_value();
  });
  std::atomic<int64_t> num_bytes = 0;
  std::atomic<int> num_left = num_streams;
  pair.client_loop.call([&] {
    for (int i = 0; i < num_streams; ++i) {
      HttpClient::Handlers handlers;
      handlers.on_body = [&](std::string_view bytes) { num_bytes += int64_t(bytes.size()); };
      handlers.on_done = [&](const Status& status) {
        MR_CHECK(status.ok());
        if (--num_left == 0) all_done.set_value();
      };
      pair.client->send({}, std::move(handlers));
    }
  });
  all_here.get_future().wait();
  const std::string event(kEventBytes, 'e');
  const double cpu_begin = pair.server_cpu_us();
  const Clock::time_point begin = Clock::now();
  int64_t num_events = 0;
  // One turn of the loop per step, as an engine gives every stream its tokens; the next one when
  // the client has this one.
  while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
    pair.server_loop.call([&] {
      for (const auto& exchange : open) exchange->write(event);
    });
    num_events += num_streams;
    while (num_bytes < num_events * int64_t(kEventBytes)) std::this_thread::yield();
  }
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  const double cpu_us = (pair.server_cpu_us() - cpu_begin) / double(num_events);
  pair.server_loop.call([&] {
    for (const auto& exchange : open) exchange->end_stream();
    open.clear();
  });
  all_done.get_future().wait();
  const double write_us = write_to_loopback(num_streams, kEventBytes, seconds, {}).cpu_us;
  std::printf("{\"case\": \"events\", \"streams\": %d, \"per_s\": %.0f, \"cpu_us\": %.2f, "
              "\"writes\": %.2f}\n",
              num_streams, double(num_events) / elapsed, cpu_us, cpu_us / write_us);
}

}  // namespace
}  // namespace millrace::net

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  const int num_streams = argc > 2 ? std::atoi(argv[2]) : 2048;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  millrace::net::bench_requests(seconds);
  millrace::net::bench_events(32, seconds);
  millrace::net::bench_events(num_streams, seconds);
}
