#include "net/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "net/event_loop_impl.h"
#include "net/http_connection.h"
#include "net/transport.h"
#include "sys/unique_fd.h"

namespace millrace::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;

constexpr int kBacklog = 4096;
constexpr int kMaxAcceptsAtOnce = 64;      // then the connections have a turn
constexpr milliseconds kAcceptPause{100};  // when there are no descriptors left
constexpr milliseconds kLongestSweep{1'000}, kShortestSweep{5};
// Peers that vanish without a word are noticed after two minutes.
constexpr int kKeepAliveIdleS = 60, kKeepAliveIntervalS = 15, kKeepAliveProbes = 4;

void set_option(int fd, int level, int name, int value) {
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

std::string peer_name(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return format(text, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof text);
      return format(text, ":", ntohs(v6.sin6_port));
    }
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    return format("[", text, "]:", ntohs(v6.sin6_port));
  }
  return "unix";
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

struct Server;

struct Listener {
  explicit Listener(asio::io_context& context) : descriptor(context) {}

  Descriptor descriptor;
  Server* server = nullptr;  // null when it is closed
  bool is_waiting = false;
};

struct Server : ConnectionHost {
  Server(EventLoop& loop, const HttpLimits& limits, HttpHandlers handlers)
      : ConnectionHost(loop, limits, std::move(handlers)) {
    set_sweep_interval(std::min({limits.header_timeout, limits.body_timeout, limits.idle_timeout,
                                 limits.write_timeout}));
    on_removed = [this] {
      if (std::exchange(is_full, false)) wait_for_connections();
    };
  }

  void set_sweep_interval(milliseconds shortest_timeout) {
    sweep_interval =
        std::min(sweep_interval, std::max<milliseconds>(shortest_timeout / 8, kShortestSweep));
  }

  Status add_listener(UniqueFd fd);
  void wait_for_connections();
  void wait_for_connections(const std::shared_ptr<Listener>& listener);
  void accept_from(const std::shared_ptr<Listener>& listener);
  void add_connection(UniqueFd fd, const sockaddr_storage& peer);
  void start_sweep();
  void sweep();

  std::vector<std::shared_ptr<Listener>> listeners;

  // One timer looks after all deadlines: setting one is a store.
  EventLoop::Timer sweep_timer, accept_timer;
  milliseconds sweep_interval = kLongestSweep;
  bool is_sweeping = false, is_full = false;
};

Status Server::add_listener(UniqueFd fd) {
  auto listener = std::make_shared<Listener>(loop.impl().context);
  error_code error;
  listener->descriptor.assign(fd.get(), error);
  if (error) return Error{Code::kUnavailable, format("a listening socket: ", error.message())};
  fd.release();
  listener->server = this;
  listeners.push_back(listener);
  wait_for_connections(listener);
  return {};
}

void Server::wait_for_connections() {
  for (const std::shared_ptr<Listener>& each : listeners) wait_for_connections(each);
}

void Server::wait_for_connections(const std::shared_ptr<Listener>& listener) {
  if (listener->is_waiting) return;
  listener->is_waiting = true;
  listener->descriptor.async_wait(Descriptor::wait_read, [listener](const error_code& error) {
    listener->is_waiting = false;
    if (listener->server != nullptr && !error) listener->server->accept_from(listener);
  });
}

void Server::accept_from(const std::shared_ptr<Listener>& listener) {
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    if (connections.size() >= limits.max_connections) {
      is_full = true;
      return;
    }
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    UniqueFd fd(::accept4(listener->descriptor.native_handle(), reinterpret_cast<sockaddr*>(&peer),
                          &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() >= 0) {
      add_connection(std::move(fd), peer);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the queue and would wake us again at once.
      accept_timer = loop.after(kAcceptPause, [this] { wait_for_connections(); });
      return;
    }  // else this one connection has failed
  }
  wait_for_connections(listener);
}

void Server::add_connection(UniqueFd fd, const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) {
    set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  }
  connections.push_front(std::make_shared<Connection>(*this, peer_name(peer)));
  if (!connections.front()->start(std::move(fd), connections.begin())) connections.pop_front();
  start_sweep();
}

void Server::start_sweep() {
  if (is_sweeping || connections.empty()) return;
  is_sweeping = true;
  sweep_timer = loop.after(sweep_interval, [this] { sweep(); });
}

void Server::sweep() {
  const Clock::time_point now = Clock::now();
  std::vector<std::shared_ptr<Connection>> due;
  for (const std::shared_ptr<Connection>& each : connections) {
    if (each->needs_care(now)) due.push_back(each);
  }
  const std::weak_ptr<bool> is_alive = alive;
  for (const std::shared_ptr<Connection>& each : due) each->take_care(now);
  if (is_alive.expired()) return;
  is_sweeping = false;
  start_sweep();
}

}  // namespace

struct HttpServer::Impl : Server {
  using Server::Server;
};

HttpServer::HttpServer(EventLoop& loop, const HttpLimits& limits, HttpHandlers handlers)
    : impl_(std::make_unique<Impl>(loop, limits, std::move(handlers))) {
  MR_CHECK(impl_->handlers.on_request != nullptr);
  MR_CHECK(impl_->handlers.on_header != nullptr);
  MR_CHECK(impl_->handlers.make_error != nullptr);
  MR_CHECK(impl_->handlers.on_done != nullptr);
}

HttpServer::~HttpServer() {
  stop_accepting(milliseconds(0));
  for (const std::shared_ptr<Connection>& each : impl_->connections) each->server_gone();
}

Status HttpServer::use_tls(const TlsOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<TlsContext> context, TlsContext::for_server(options));
  impl_->tls = std::move(context);
  return {};
}

Status HttpServer::listen(const std::string& host, int port) {
  const std::string name = format(host.empty() ? "*" : host, ":", port);
  if (port < 0 || port > 65535) {
    return Error{Code::kInvalidArgument, format(name, ": a port is 0 to 65535")};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                    std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    return Error{Code::kUnavailable, format("cannot listen on ", name, ": ",
                                            ::gai_strerror(failure))};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  std::vector<UniqueFd> fds;
  int last_error = 0;
  for (addrinfo* a = found; a != nullptr; a = a->ai_next) {
    UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    last_error = errno;
    if (fd.get() < 0) continue;  // a machine without IPv6
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    // "::" alone serves both families; beside an address of the other one it must not.
    if (a->ai_family == AF_INET6 && found->ai_next != nullptr) {
      set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
    }
    if (port == 0 && !fds.empty()) {
      const in_port_t same = htons(uint16_t(port_of(fds[0].get())));
      if (a->ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(a->ai_addr)->sin_port = same;
      if (a->ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(a->ai_addr)->sin6_port = same;
    }
    if (::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd.get(), kBacklog) == 0) {
      fds.push_back(std::move(fd));
      continue;
    }
    last_error = errno;
    if (last_error == EADDRNOTAVAIL) continue;  // IPv6 is there and has no address
    fds.clear();
    break;
  }
  if (fds.empty()) {
    return Error{Code::kUnavailable,
                 format("cannot listen on ", name, ": ",
                        last_error == EADDRINUSE ? "already in use" : errno_text(last_error))};
  }
  for (UniqueFd& fd : fds) RETURN_IF_ERROR(impl_->add_listener(std::move(fd)));
  return {};
}

Status HttpServer::listen_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{Code::kInvalidArgument,
                 format("socket ", path, ": a path has 1 to ", sizeof address.sun_path - 1,
                        " bytes, this one ", path.size())};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    return Error{Code::kUnavailable, format("socket ", path, ": ", errno_text(errno))};
  }
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return Error{Code::kInvalidArgument, format("socket ", path, ": is there and no socket")};
    }
    const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const bool is_served = ::connect(probe.get(), generic, sizeof address) == 0 || errno == EAGAIN;
    if (is_served) return Error{Code::kUnavailable, format("socket ", path, ": already in use")};
    (void)::unlink(path.c_str());
  }
  if (::bind(fd.get(), generic, sizeof address) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return Error{Code::kUnavailable, format("socket ", path, ": ", errno_text(errno))};
  }
  return impl_->add_listener(std::move(fd));
}

Status HttpServer::adopt(int listener_fd) {
  UniqueFd fd(listener_fd);
  int is_listening = 0;
  socklen_t size = sizeof is_listening;
  if (::getsockopt(listener_fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) != 0 ||
      is_listening == 0) {
    return Error{Code::kInvalidArgument,
                 format("descriptor ", listener_fd, " is no listening socket")};
  }
  const int flags = ::fcntl(listener_fd, F_GETFL);
  (void)::fcntl(listener_fd, F_SETFL, flags | O_NONBLOCK);
  (void)::fcntl(listener_fd, F_SETFD, FD_CLOEXEC);
  return impl_->add_listener(std::move(fd));
}

std::vector<int> HttpServer::listener_fds() const {
  std::vector<int> fds;
  for (const std::shared_ptr<Listener>& each : impl_->listeners) {
    fds.push_back(each->descriptor.native_handle());
  }
  return fds;
}

int HttpServer::port() const {
  for (const int fd : listener_fds()) {
    if (const int port = port_of(fd)) return port;
  }
  return 0;
}

void HttpServer::stop_accepting(std::chrono::milliseconds idle) {
  for (const std::shared_ptr<Listener>& each : impl_->listeners) {
    each->server = nullptr;
    error_code ignored;
    each->descriptor.close(ignored);
  }
  impl_->listeners.clear();
  impl_->accept_timer = EventLoop::Timer();
  impl_->is_stopping = true;
  impl_->idle_when_stopping = std::min(idle, impl_->limits.idle_timeout);
  const Clock::time_point deadline = Clock::now() + impl_->idle_when_stopping;
  for (const std::shared_ptr<Connection>& each : impl_->connections) each->stopping(deadline);
  impl_->set_sweep_interval(idle);
  impl_->is_sweeping = false;
  impl_->start_sweep();
}

int64_t HttpServer::num_connections() const { return int64_t(impl_->connections.size()); }
int64_t HttpServer::num_exchanges() const { return impl_->num_exchanges; }

}  // namespace millrace::net
