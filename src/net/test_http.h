#pragma once

// For tests: a loop on its own thread, a server with it, and a client that knows nothing but bytes.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "net/event_loop.h"
#include "net/http_client.h"
#include "net/http_server.h"

namespace millrace::net {

constexpr std::chrono::seconds kPatience{20};  // until a test gives up

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.run(); }) {}
  ~LoopThread() {
    loop_.stop();
    thread_.join();
  }
  EventLoop& loop() { return loop_; }

  // Runs `function` there and waits for it.
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

// Values that one thread leaves for another.
template <class T>
class Mailbox {
 public:
  void put(T value) {
    {
      const std::lock_guard lock(mutex_);
      values_.push_back(std::move(value));
    }
    changed_.notify_all();
  }
  T take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return !values_.empty(); })) {
      ADD_FAILURE() << "nothing came";
      return T();
    }
    T value = std::move(values_.front());
    values_.erase(values_.begin());
    return value;
  }
  bool is_empty() {
    const std::lock_guard lock(mutex_);
    return values_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

struct Done {
  std::string method, path;
  ExchangeRecord record;
};

// Answers with what the handler says; without one, with the request's method, target and body.
class TestServer {
 public:
  explicit TestServer(HttpLimits limits = {}, bool listens = true) {
    loop.call([&] {
      HttpHandlers handlers;
      handlers.on_request = [this](std::shared_ptr<HttpExchange> exchange) {
        if (on_request) return on_request(std::move(exchange));
        const HttpRequest& request = exchange->request();
        std::string body = request.method + " " + request.path;
        if (!request.query.empty()) body += "?" + request.query;
        exchange->respond({200, {{"Content-Type", "text/plain"}}, body + "|" + request.body});
      };
      handlers.on_header = [this](HttpRequest& request) -> std::optional<HttpResponse> {
        if (on_header) return on_header(request);
        return std::nullopt;
      };
      handlers.make_error = [](int status, const std::string& message, const HttpRequest&) {
        return HttpResponse{status, {}, "error: " + message};
      };
      handlers.on_done = [this](const HttpRequest& request, const ExchangeRecord& record) {
        done.put({request.method, request.path, record});
      };
      server = std::make_unique<HttpServer>(loop.loop(), limits, std::move(handlers));
      if (!listens) return;
      const Status status = server->listen("127.0.0.1", 0);
      EXPECT_TRUE(status.ok()) << status.error().message;
      port = server->port();
    });
  }
  ~TestServer() {
    loop.call([&] { server.reset(); });
  }

  // Of requests that the handler keeps.
  void keep_requests() {
    on_request = [this](std::shared_ptr<HttpExchange> exchange) { kept.put(std::move(exchange)); };
  }
  int64_t num_connections() {
    return loop.call([&] { return server->num_connections(); });
  }
  // Until it has as many.
  void wait_for_connections(int64_t count) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    int64_t seen = num_connections();
    for (; seen != count && std::chrono::steady_clock::now() < end; seen = num_connections()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(seen, count);
  }

  LoopThread loop;
  std::function<void(std::shared_ptr<HttpExchange>)> on_request;
  std::function<std::optional<HttpResponse>(HttpRequest&)> on_header;
  Mailbox<std::shared_ptr<HttpExchange>> kept;
  Mailbox<Done> done;
  std::unique_ptr<HttpServer> server;
  int port = 0;
};

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

struct RawResponse {
  int status = 0;
  std::string head, body;  // the body without its chunks
  bool is_complete = false;

  bool has(std::string_view line) const { return head.find(line) != std::string::npos; }
};

// A blocking socket.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in to = loopback(port);
    connect(reinterpret_cast<sockaddr*>(&to), sizeof to);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  // Calls `before_connect` when it has its own descriptor.
  RawClient(int port, const std::function<void()>& before_connect) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    before_connect();
    sockaddr_in to = loopback(port);
    connect(reinterpret_cast<sockaddr*>(&to), sizeof to);
  }
  explicit RawClient(const std::string& path) {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof to.sun_path - 1);
    connect(reinterpret_cast<sockaddr*>(&to), sizeof to);
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), input_(std::move(other.input_)) {}
  ~RawClient() { close(); }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void reset() {  // RST instead of FIN
    const struct linger at_once{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }
  void shutdown_write() { ::shutdown(fd_, SHUT_WR); }
  int fd() const { return fd_; }

  // False: the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(size_t(n));
    }
    return true;
  }

  // The next bytes; empty at the end.
  std::string read_some() {
    if (!input_.empty()) return std::exchange(input_, {});
    char buffer[16384];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n < 0) {
      EXPECT_TRUE(errno == ECONNRESET || errno == EPIPE) << std::strerror(errno);
      was_reset_ = true;
    }
    return std::string(buffer, n > 0 ? size_t(n) : 0);
  }
  std::string read_all() {
    std::string all;
    for (std::string some = read_some(); !some.empty(); some = read_some()) all += some;
    return all;
  }
  bool was_reset() const { return was_reset_; }

  RawResponse read_response(bool is_head = false) {
    RawResponse response;
    std::string bytes;
    const auto more = [&] {
      std::string some = read_some();
      bytes += some;
      return !some.empty();
    };
    while (bytes.find("\r\n\r\n") == std::string::npos) {
      if (!more()) {
        response.head = bytes;
        return response;
      }
    }
    const size_t end = bytes.find("\r\n\r\n") + 4;
    response.head = bytes.substr(0, end);
    bytes.erase(0, end);
    response.status = std::atoi(response.head.c_str() + 9);
    response.is_complete = true;
    if (is_head || response.status == 204 || response.status == 304 || response.status == 100) {
    } else if (response.has("Transfer-Encoding: chunked")) {
      for (;;) {
        while (bytes.find("\r\n") == std::string::npos) {
          if (!more()) return response.is_complete = false, response;
        }
        const size_t size = std::stoul(bytes, nullptr, 16);
        bytes.erase(0, bytes.find("\r\n") + 2);
        while (bytes.size() < size + 2) {
          if (!more()) return response.is_complete = false, response;
        }
        EXPECT_EQ(bytes.substr(size, 2), "\r\n");
        response.body += bytes.substr(0, size);
        bytes.erase(0, size + 2);
        if (size == 0) break;
      }
    } else if (const size_t at = response.head.find("Content-Length: "); at != std::string::npos) {
      const size_t size = std::stoul(response.head.substr(at + 16));
      while (bytes.size() < size) {
        if (!more()) return response.is_complete = false, response;
      }
      response.body = bytes.substr(0, size);
      bytes.erase(0, size);
    } else {
      while (more()) {
      }
      response.body = std::exchange(bytes, {});
    }
    input_ = bytes;
    return response;
  }
  RawResponse exchange(std::string_view request) {
    send(request);
    return read_response();
  }
  bool is_closed() { return read_some().empty(); }

 private:
  void connect(const sockaddr* to, socklen_t size) {
    EXPECT_EQ(::connect(fd_, to, size), 0) << std::strerror(errno);
    const timeval patience{kPatience.count(), 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }

  int fd_ = -1;
  std::string input_;
  bool was_reset_ = false;
};

// A folder that goes with the test.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "millrace-net-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace millrace::net
