#include "net/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <list>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "net/event_loop_impl.h"
#include "net/message_reader.h"
#include "net/transport.h"

namespace millrace::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;

constexpr int kBacklog = 4096;
constexpr int kMaxAcceptsAtOnce = 64;            // then the connections have a turn
constexpr milliseconds kAcceptPause{100};        // when there are no descriptors left
constexpr size_t kMaxKeptBytes = size_t(64) << 10;  // of requests that come before their turn
constexpr size_t kMaxIdleCapacity = size_t(16) << 10;  // of a buffer that is empty
// After an error the client may still be sending; closing would make the system discard the answer
// that it has not read.
constexpr milliseconds kLingerTime{10'000};
constexpr size_t kMaxLingerBytes = size_t(512) << 20;
constexpr milliseconds kLongestSweep{1'000}, kShortestSweep{5};
// Peers that vanish without a word are noticed after two minutes.
constexpr int kKeepAliveIdleS = 60, kKeepAliveIntervalS = 15, kKeepAliveProbes = 4;

bool has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

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

// A descriptor that closes itself unless somebody takes it.
class UniqueFd {
 public:
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&&) = delete;
  ~UniqueFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

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

class Connection;
struct Server;

struct Listener {
  explicit Listener(asio::io_context& context) : descriptor(context) {}

  Descriptor descriptor;
  Server* server = nullptr;  // null when it is closed
  bool is_waiting = false;
};

class Exchange : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Connection& connection, HttpRequest request, EventLoop& loop, std::weak_ptr<bool> server)
      : connection_(&connection), request_(std::move(request)), loop_(loop), server_(server) {}

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::exchange(request_.body, {}); }
  void respond(HttpResponse response) override;
  void begin_stream(int status, Headers headers) override;
  void write(std::string_view bytes) override;
  void end_stream() override;
  void abort() override;
  size_t num_pending_bytes() const override;
  bool is_open() const override { return connection_ != nullptr && state_ != State::kAnswered; }
  void on_close(std::function<void()> callback) override;
  void on_drained(std::function<void()> callback) override { on_drained_ = std::move(callback); }

  // For the connection.
  void drained() {
    const std::function<void()> callback = on_drained_;  // it may be replaced meanwhile
    if (callback) callback();
  }
  void detach() {
    connection_ = nullptr;
    on_drained_ = nullptr;
    on_close_ = nullptr;
  }
  void client_gone() {
    const std::function<void()> callback = std::exchange(on_close_, nullptr);
    has_gone_ = is_open();
    detach();
    if (callback) callback();
  }

 private:
  enum class State { kUnanswered, kStreaming, kAnswered };

  void answered() {
    state_ = State::kAnswered;
    on_drained_ = nullptr;
    on_close_ = nullptr;
  }

  Connection* connection_;  // null after the answer, after the client, and after the server
  HttpRequest request_;
  EventLoop& loop_;
  const std::weak_ptr<bool> server_;  // while it lives so does the loop
  State state_ = State::kUnanswered;
  bool has_gone_ = false;
  std::function<void()> on_close_, on_drained_;
};

struct Server {
  Server(EventLoop& loop, const HttpLimits& limits, HttpHandlers handlers)
      : loop(loop), limits(limits), handlers(std::move(handlers)) {
    set_sweep_interval(std::min({limits.header_timeout, limits.body_timeout, limits.idle_timeout,
                                 limits.write_timeout}));
  }

  void set_sweep_interval(milliseconds shortest_timeout) {
    sweep_interval =
        std::min(sweep_interval, std::max<milliseconds>(shortest_timeout / 8, kShortestSweep));
  }

  Status add_listener(UniqueFd fd);
  void wait_for_connections(const std::shared_ptr<Listener>& listener);
  void accept_from(const std::shared_ptr<Listener>& listener);
  void add_connection(UniqueFd fd, const sockaddr_storage& peer);
  void remove(std::list<std::shared_ptr<Connection>>::iterator connection);
  void start_sweep();
  void sweep();
  const std::string& date();

  EventLoop& loop;
  const HttpLimits limits;
  const HttpHandlers handlers;
  const std::shared_ptr<bool> alive = std::make_shared<bool>(true);
  std::shared_ptr<TlsContext> tls;
  std::vector<std::shared_ptr<Listener>> listeners;
  std::list<std::shared_ptr<Connection>> connections;
  int64_t num_exchanges = 0;
  size_t num_body_bytes = 0;  // of requests that are coming in
  bool is_stopping = false;
  milliseconds idle_when_stopping{0};

  // One timer looks after all deadlines: setting one is a store.
  EventLoop::Timer sweep_timer, accept_timer;
  milliseconds sweep_interval = kLongestSweep;
  bool is_sweeping = false, is_full = false;

  time_t date_second = 0;
  std::string date_text;
};

// One client's socket. It reads as far as it may, one request at a time, and writes what is pending
// when the loop comes to it, so that all that one turn writes leaves in one call.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, std::string peer)
      : server_(&server),
        descriptor_(server.loop.impl().context),
        peer_(std::move(peer)),
        reader_(server.limits) {}

  // False: the system has no room for another descriptor to wait for.
  bool start(UniqueFd fd, std::list<std::shared_ptr<Connection>>::iterator position);
  void server_gone();
  void stopping(Clock::time_point deadline);
  bool needs_care(Clock::time_point now) const;
  void take_care(Clock::time_point now);

  // For the exchange.
  void respond(HttpResponse response);
  void begin_stream(int status, Headers headers);
  void write(std::string_view bytes);
  void end_stream();
  void abort();
  size_t num_pending_bytes() const { return output_.size() - output_begin_; }

 private:
  enum class Phase {
    kHandshake,
    kReading,    // waits for a request or reads it
    kAnswering,  // somebody else is working on the answer
    kFinishing,  // the answer is complete and not yet sent
    kLingering,  // it is sent, and what still comes is dropped
    kClosed,
  };

  void turn(bool is_readable);
  void schedule_turn();
  void wait_readable();
  void wait_writable();
  bool may_read() const;
  bool read_once();
  bool parse_kept();
  size_t parse(std::string_view bytes);
  void flush();

  void header_read();
  void count_body();
  void begin_exchange();
  void refuse(int status, const std::string& message);
  void refuse(HttpResponse response);
  void append_head(int status, const Headers& headers, std::optional<size_t> content_length);
  void finish_exchange(bool is_complete);
  void await_request();
  void linger();
  void read_ended(bool has_failed);
  void gone();
  void close();
  void close_descriptor();
  int num_queued_bytes();
  bool is_paused() const {
    return (phase_ == Phase::kAnswering || phase_ == Phase::kFinishing) &&
           input_.size() >= kMaxKeptBytes;
  }

  Server* server_;  // null when closed
  Descriptor descriptor_;
  std::list<std::shared_ptr<Connection>>::iterator position_;
  const std::string peer_;
  std::unique_ptr<Transport> transport_;
  Phase phase_ = Phase::kReading;
  Clock::time_point read_deadline_ = Clock::time_point::max();
  Clock::time_point write_deadline_ = Clock::time_point::max();

  RequestReader reader_;
  std::string input_;  // read and not yet parsed
  size_t num_counted_bytes_ = 0;  // of the body, in the server's sum

  std::string output_;
  size_t output_begin_ = 0;
  int num_queued_bytes_ = 0;  // with the system, when it took no more

  std::shared_ptr<Exchange> exchange_;  // from the request to the end of its answer
  ExchangeRecord record_;
  Clock::time_point header_end_;
  bool is_head_ = false, is_chunked_ = false, drops_body_ = false;
  bool closes_ = false;   // when the answer is sent
  bool lingers_ = false;  // before that
  bool resets_ = false;   // so that the client cannot take the cut for the end

  bool is_read_waiting_ = false, is_write_waiting_ = false;
  bool reads_on_writable_ = false, writes_on_readable_ = false;  // TLS only
  bool has_ended_ = false;  // the client sends no more
  bool is_in_turn_ = false, is_turn_posted_ = false, is_aborted_ = false;
  size_t num_dropped_bytes_ = 0;
};

void Exchange::respond(HttpResponse response) {
  if (connection_ == nullptr) return;
  MR_CHECK(state_ == State::kUnanswered);
  answered();
  connection_->respond(std::move(response));
}

void Exchange::begin_stream(int status, Headers headers) {
  if (connection_ == nullptr) return;
  MR_CHECK(state_ == State::kUnanswered);
  state_ = State::kStreaming;
  connection_->begin_stream(status, std::move(headers));
}

void Exchange::write(std::string_view bytes) {
  if (connection_ == nullptr) return;
  MR_CHECK(state_ == State::kStreaming);
  connection_->write(bytes);
}

void Exchange::end_stream() {
  if (connection_ == nullptr) return;
  MR_CHECK(state_ == State::kStreaming);
  answered();
  connection_->end_stream();
}

void Exchange::abort() {
  if (connection_ == nullptr) return;
  std::exchange(connection_, nullptr)->abort();
  on_drained_ = nullptr;
  on_close_ = nullptr;
}

size_t Exchange::num_pending_bytes() const {
  return connection_ == nullptr ? 0 : connection_->num_pending_bytes();
}

void Exchange::on_close(std::function<void()> callback) {
  on_close_ = nullptr;
  if (is_open()) {
    on_close_ = std::move(callback);
  } else if (has_gone_ && !server_.expired()) {
    loop_.post([server = server_, callback = std::move(callback)] {
      if (!server.expired()) callback();
    });
  }
}

bool Connection::start(UniqueFd fd, std::list<std::shared_ptr<Connection>>::iterator position) {
  position_ = position;
  transport_ = server_->tls ? server_->tls->accept(fd.get()) : make_plain_transport(fd.get());
  error_code error;
  descriptor_.assign(fd.get(), error);
  if (error) return false;
  fd.release();
  await_request();
  if (server_->tls) {
    phase_ = Phase::kHandshake;
    read_deadline_ = Clock::now() + server_->limits.header_timeout;
  }
  wait_readable();
  return true;
}

void Connection::server_gone() {
  server_ = nullptr;
  phase_ = Phase::kClosed;
  if (exchange_) std::exchange(exchange_, nullptr)->detach();
  close_descriptor();
}

void Connection::close_descriptor() {
  if (resets_) {
    const struct linger at_once{1, 0};
    (void)::setsockopt(descriptor_.native_handle(), SOL_SOCKET, SO_LINGER, &at_once,
                       sizeof at_once);
  }
  error_code ignored;
  descriptor_.close(ignored);
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  close_descriptor();
  server_->num_body_bytes -= std::exchange(num_counted_bytes_, 0);
  std::exchange(server_, nullptr)->remove(position_);
}

bool Connection::may_read() const {
  return phase_ != Phase::kClosed && !has_ended_ && !is_paused();
}

void Connection::wait_readable() {
  if (is_read_waiting_ || !may_read()) return;
  is_read_waiting_ = true;
  descriptor_.async_wait(Descriptor::wait_read, [self = shared_from_this()](const error_code&) {
    self->is_read_waiting_ = false;
    self->writes_on_readable_ = false;
    self->turn(true);
  });
}

void Connection::wait_writable() {
  if (is_write_waiting_) return;
  is_write_waiting_ = true;
  descriptor_.async_wait(Descriptor::wait_write, [self = shared_from_this()](const error_code&) {
    self->is_write_waiting_ = false;
    self->turn(std::exchange(self->reads_on_writable_, false));
  });
}

void Connection::schedule_turn() {
  if (is_in_turn_ || is_turn_posted_ || (is_write_waiting_ && !is_aborted_)) return;
  is_turn_posted_ = true;
  asio::post(descriptor_.get_executor(), [self = shared_from_this()] {
    self->is_turn_posted_ = false;
    self->turn(false);
  });
}

// Whoever calls it holds a reference.
void Connection::turn(bool is_readable) {
  is_in_turn_ = true;
  while (phase_ != Phase::kClosed) {
    if (is_aborted_) {
      finish_exchange(false);
      close();
      break;
    }
    flush();
    if (phase_ == Phase::kReading && parse_kept()) continue;
    if (may_read() && (is_readable || transport_->has_buffered())) {
      is_readable = false;
      if (read_once()) continue;
    }
    break;
  }
  is_in_turn_ = false;
  if (phase_ == Phase::kClosed) return;
  wait_readable();
  // Somebody has written meanwhile; others have a turn before.
  const bool has_more = num_pending_bytes() > 0 || phase_ == Phase::kFinishing;
  if (is_aborted_ || (has_more && !writes_on_readable_)) schedule_turn();
}

// False: there is nothing to do before the next event.
bool Connection::read_once() {
  if (phase_ == Phase::kLingering) {
    // Past TLS, if there is: nobody wants to know what is in it.
    auto& scratch = server_->loop.impl().scratch;
    const ssize_t n = ::recv(descriptor_.native_handle(), scratch.data(), scratch.size(), 0);
    if (n > 0) num_dropped_bytes_ += size_t(n);
    const bool is_over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    if (is_over || num_dropped_bytes_ > kMaxLingerBytes) close();
    return false;
  }

  IoResult result;
  if (phase_ == Phase::kHandshake) {
    result = transport_->handshake();
    if (result.kind == IoResult::Kind::kDone) {
      await_request();
      return read_once();  // what came with it does not wake the socket again
    }
  } else {
    result = transport_->read(server_->loop.impl().scratch);
  }
  switch (result.kind) {
    case IoResult::Kind::kWantsRead: return false;
    case IoResult::Kind::kWantsWrite:
      reads_on_writable_ = true;
      wait_writable();
      return false;
    case IoResult::Kind::kEnd: read_ended(false); return false;
    case IoResult::Kind::kFailed: read_ended(true); return false;
    case IoResult::Kind::kDone: break;
  }
  const std::string_view bytes(server_->loop.impl().scratch.data(), result.num_bytes);
  if (phase_ == Phase::kReading && input_.empty()) {  // most bytes are parsed where they were read
    const size_t num_used = parse(bytes);
    if (phase_ != Phase::kClosed) input_.append(bytes.substr(num_used));
  } else {
    input_.append(bytes);
  }
  return true;
}

bool Connection::parse_kept() {
  if (input_.empty()) return false;
  const size_t num_used = parse(input_);
  if (phase_ == Phase::kClosed) return true;
  input_.erase(0, num_used);
  if (input_.empty() && input_.capacity() > kMaxIdleCapacity) std::string().swap(input_);
  return num_used > 0 || phase_ != Phase::kReading;
}

size_t Connection::parse(std::string_view bytes) {
  using State = RequestReader::State;
  size_t num_used = 0;
  while (phase_ == Phase::kReading && num_used < bytes.size()) {
    const State before = reader_.state();
    const bool had_begun = reader_.has_begun();
    const size_t num_body_bytes = reader_.request().body.size();
    num_used += reader_.read(bytes.substr(num_used));
    if (reader_.state() == State::kHeaderDone) header_read();
    if (phase_ != Phase::kReading) break;
    switch (reader_.state()) {
      case State::kHeader:
        if (!had_begun && reader_.has_begun()) {
          read_deadline_ = Clock::now() + server_->limits.header_timeout;
        }
        return num_used;
      case State::kBody:
        if (before != State::kBody || reader_.request().body.size() > num_body_bytes) {
          read_deadline_ = Clock::now() + server_->limits.body_timeout;
        }
        count_body();
        if (before == State::kBody) return num_used;
        break;
      case State::kDone: begin_exchange(); break;
      case State::kFailed: refuse(reader_.status(), reader_.message()); break;
      case State::kHeaderDone: break;
    }
  }
  return num_used;
}

void Connection::header_read() {
  header_end_ = Clock::now();
  HttpRequest& request = reader_.request();
  request.peer = peer_;
  std::optional<HttpResponse> refusal = server_->handlers.on_header(request);
  if (phase_ == Phase::kClosed) return;
  if (refusal) return refuse(std::move(*refusal));
  const std::optional<uint64_t> length = reader_.content_length();
  if (length && *length + server_->num_body_bytes > server_->limits.max_total_body_bytes) {
    return refuse(503, "too many bytes of requests are being received");
  }
  if (reader_.expects_continue()) {
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    write_deadline_ = Clock::now() + server_->limits.write_timeout;
  }
  reader_.begin_body();
}

void Connection::count_body() {
  const size_t num_bytes = reader_.request().body.size();
  server_->num_body_bytes += num_bytes - num_counted_bytes_;
  num_counted_bytes_ = num_bytes;
  if (server_->num_body_bytes > server_->limits.max_total_body_bytes) {
    refuse(503, "too many bytes of requests are being received");
  }
}

void Connection::begin_exchange() {
  server_->num_body_bytes -= std::exchange(num_counted_bytes_, 0);
  read_deadline_ = Clock::time_point::max();
  record_ = ExchangeRecord();
  record_.num_request_bytes = reader_.request().body.size();
  is_head_ = reader_.request().method == "HEAD";
  closes_ = lingers_ = resets_ = is_chunked_ = drops_body_ = false;
  exchange_ = std::make_shared<Exchange>(*this, std::move(reader_.request()), server_->loop,
                                         server_->alive);
  ++server_->num_exchanges;
  phase_ = Phase::kAnswering;
  if (reader_.state() == RequestReader::State::kDone) server_->handlers.on_request(exchange_);
}

void Connection::refuse(int status, const std::string& message) {
  refuse(server_->handlers.make_error(status, message));
}

void Connection::refuse(HttpResponse response) {
  using State = RequestReader::State;
  if (phase_ == Phase::kClosed) return;
  if (reader_.state() == State::kHeader || reader_.state() == State::kFailed) {
    if (reader_.request().peer.empty()) header_end_ = Clock::now();  // it never came
    reader_.request().peer = peer_;
  }
  const bool is_unread = reader_.state() != State::kHeaderDone || reader_.has_body();
  begin_exchange();
  closes_ = lingers_ = is_unread;
  exchange_->respond(std::move(response));
}

void Connection::append_head(int status, const Headers& headers,
                             std::optional<size_t> content_length) {
  using State = RequestReader::State;
  const bool has_header = reader_.state() == State::kDone || reader_.state() == State::kHeaderDone;
  closes_ = closes_ || server_->is_stopping || !has_header || !reader_.keeps_alive();
  record_.status = status;
  output_.append("HTTP/1.1 ").append(std::to_string(status)).append(" ");
  output_.append(reason_phrase(status)).append("\r\nDate: ").append(server_->date());
  output_ += "\r\n";
  for (const auto& [name, value] : headers) append_header(output_, name, value);
  if (content_length) append_header(output_, "Content-Length", std::to_string(*content_length));
  if (is_chunked_) output_ += "Transfer-Encoding: chunked\r\n";
  if (closes_) {
    output_ += "Connection: close\r\n";
  } else if (reader_.is_http_1_0()) {
    output_ += "Connection: keep-alive\r\n";
  }
  output_ += "\r\n";
  if (write_deadline_ == Clock::time_point::max()) {
    write_deadline_ = Clock::now() + server_->limits.write_timeout;
  }
}

void Connection::respond(HttpResponse response) {
  if (has_no_body(response.status)) {
    append_head(response.status, response.headers, std::nullopt);
  } else {
    append_head(response.status, response.headers, response.body.size());
    if (!is_head_) {
      output_ += response.body;
      record_.num_response_bytes = response.body.size();
    }
  }
  phase_ = Phase::kFinishing;
  schedule_turn();
}

void Connection::begin_stream(int status, Headers headers) {
  const bool is_http_1_0 = reader_.is_http_1_0();
  is_chunked_ = !is_http_1_0 && !has_no_body(status);
  drops_body_ = is_head_ || has_no_body(status);
  resets_ = is_http_1_0 && !drops_body_;
  closes_ = closes_ || is_http_1_0;
  append_head(status, headers, std::nullopt);
  schedule_turn();
}

void Connection::write(std::string_view bytes) {
  if (bytes.empty() || drops_body_) return;  // an empty chunk would be the last
  record_.num_response_bytes += bytes.size();
  if (is_chunked_) {
    char size[2 * sizeof(size_t)];
    const auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
    output_.append(size, end).append("\r\n").append(bytes).append("\r\n");
  } else {
    output_.append(bytes);
  }
  if (write_deadline_ == Clock::time_point::max()) {
    write_deadline_ = Clock::now() + server_->limits.write_timeout;
  }
  schedule_turn();
}

void Connection::end_stream() {
  if (is_chunked_ && !drops_body_) output_ += "0\r\n\r\n";
  phase_ = Phase::kFinishing;
  schedule_turn();
}

void Connection::abort() {
  is_aborted_ = true;
  schedule_turn();
}

void Connection::flush() {
  if (phase_ == Phase::kHandshake || is_write_waiting_ || writes_on_readable_) return;
  const bool had_pending = num_pending_bytes() > 0;
  while (num_pending_bytes() > 0) {
    const IoResult result = transport_->write(std::string_view(output_).substr(output_begin_));
    if (result.kind == IoResult::Kind::kDone) {
      output_begin_ += result.num_bytes;
      write_deadline_ = Clock::now() + server_->limits.write_timeout;
    } else if (result.kind == IoResult::Kind::kWantsWrite) {
      wait_writable();
    } else if (result.kind == IoResult::Kind::kWantsRead) {
      writes_on_readable_ = true;
    } else {
      return gone();
    }
    if (result.kind != IoResult::Kind::kDone) {
      num_queued_bytes_ = num_queued_bytes();
      if (output_begin_ > output_.size() / 2) {
        output_.erase(0, output_begin_);
        output_begin_ = 0;
      }
      return;
    }
  }
  output_.clear();
  output_begin_ = 0;
  if (output_.capacity() > kMaxIdleCapacity) std::string().swap(output_);
  write_deadline_ = Clock::time_point::max();
  if (phase_ == Phase::kFinishing) {
    resets_ = false;
    finish_exchange(true);
    if (phase_ == Phase::kClosed) return;
    if (!closes_) {
      await_request();
    } else if (lingers_ || !input_.empty()) {
      linger();
    } else {
      transport_->shutdown_write();  // TLS says so; else the end could be an attacker's
      close();
    }
  } else if (had_pending && phase_ == Phase::kAnswering && !is_aborted_) {
    const std::shared_ptr<Exchange> exchange = exchange_;
    exchange->drained();
  }
}

void Connection::finish_exchange(bool is_complete) {
  const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
  exchange->detach();
  --server_->num_exchanges;
  record_.duration = Clock::now() - header_end_;
  record_.is_complete = is_complete;
  server_->handlers.on_done(exchange->request(), record_);
}

void Connection::await_request() {
  reader_.reset();
  phase_ = Phase::kReading;
  read_deadline_ = Clock::now() + (server_->is_stopping ? server_->idle_when_stopping
                                                        : server_->limits.idle_timeout);
}

void Connection::linger() {
  phase_ = Phase::kLingering;
  std::string().swap(input_);
  transport_->shutdown_write();
  read_deadline_ = Clock::now() + kLingerTime;
  if (has_ended_) close();
}

void Connection::read_ended(bool has_failed) {
  if (phase_ == Phase::kFinishing && !has_failed) {
    has_ended_ = true;  // it may still read
    closes_ = true;
    return;
  }
  gone();
}

void Connection::gone() {
  if (phase_ == Phase::kReading && reader_.state() == RequestReader::State::kBody) {
    begin_exchange();  // to be told of
  }
  if (exchange_) {
    const std::shared_ptr<Exchange> exchange = exchange_;
    exchange->client_gone();
    if (phase_ == Phase::kClosed) return;
    finish_exchange(false);
  }
  close();
}

int Connection::num_queued_bytes() {
  int count = 0;
  (void)::ioctl(descriptor_.native_handle(), SIOCOUTQ, &count);
  return count;
}

void Connection::stopping(Clock::time_point deadline) {
  if (phase_ == Phase::kReading && !reader_.has_begun()) {
    read_deadline_ = std::min(read_deadline_, deadline);
  }
}

bool Connection::needs_care(Clock::time_point now) const {
  return now >= read_deadline_ || now >= write_deadline_ || is_paused();
}

void Connection::take_care(Clock::time_point now) {
  if (phase_ == Phase::kClosed) return;
  if (now >= write_deadline_ && num_queued_bytes() < num_queued_bytes_) {
    // The client reads, but not yet enough for the system to take more from us.
    num_queued_bytes_ = num_queued_bytes();
    write_deadline_ = now + server_->limits.write_timeout;
  } else if (now >= write_deadline_) {
    resets_ = true;  // the system would go on offering what nobody takes
    gone();
  } else if (now >= read_deadline_) {
    if (phase_ != Phase::kReading || !reader_.has_begun()) {
      close();
    } else if (reader_.state() == RequestReader::State::kBody) {
      refuse(408, "the body of the request does not come");
    } else {
      refuse(408, "the header of the request does not come");
    }
  } else if (is_paused()) {  // nothing is read any more, so nothing is noticed
    const short events = phase_ == Phase::kAnswering ? POLLRDHUP : 0;
    pollfd state{descriptor_.native_handle(), events, 0};
    if (::poll(&state, 1, 0) == 1 && state.revents != 0) gone();
  }
}

const std::string& Server::date() {
  const time_t now = std::time(nullptr);
  if (now != date_second || date_text.empty()) {
    date_second = now;
    struct tm parts{};
    gmtime_r(&now, &parts);
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char text[64];
    std::snprintf(text, sizeof text, "%s, %02d %s %d %02d:%02d:%02d GMT", kDays[parts.tm_wday],
                  parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour,
                  parts.tm_min, parts.tm_sec);
    date_text = text;
  }
  return date_text;
}

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
      accept_timer = loop.after(kAcceptPause, [this] {
        for (const std::shared_ptr<Listener>& each : listeners) wait_for_connections(each);
      });
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

void Server::remove(std::list<std::shared_ptr<Connection>>::iterator connection) {
  connections.erase(connection);
  if (!std::exchange(is_full, false)) return;
  for (const std::shared_ptr<Listener>& each : listeners) wait_for_connections(each);
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
