#include "net/http_connection.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "base/check.h"
#include "base/format.h"
#include "net/event_loop_impl.h"

namespace millrace::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;

constexpr size_t kMaxKeptBytes = size_t(64) << 10;  // of requests that come before their turn
constexpr size_t kMaxIdleCapacity = size_t(16) << 10;  // of a buffer that is empty
// After an error the client may still be sending; closing would make the system discard the answer
// that it has not read.
constexpr milliseconds kLingerTime{10'000};
constexpr size_t kMaxLingerBytes = size_t(512) << 20;

bool has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

}  // namespace

class Exchange : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Connection& connection, HttpRequest request, EventLoop& loop, std::weak_ptr<bool> server)
      : connection_(&connection), request_(std::move(request)), loop_(loop), server_(server) {}

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::exchange(request_.body, {}); }
  void respond(HttpResponse response) override;
  void begin_stream(int status, Headers headers) override;
  void write(std::string_view bytes) override;
  void flush() override;
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

void ConnectionHost::remove(std::list<std::shared_ptr<Connection>>::iterator connection) {
  connections.erase(connection);
  on_removed();
}

const std::string& ConnectionHost::date() {
  const time_t now = std::time(nullptr);
  if (now != date_second_ || date_text_.empty()) {
    date_second_ = now;
    struct tm parts{};
    gmtime_r(&now, &parts);
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char text[64];
    std::snprintf(text, sizeof text, "%s, %02d %s %d %02d:%02d:%02d GMT", kDays[parts.tm_wday],
                  parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour,
                  parts.tm_min, parts.tm_sec);
    date_text_ = text;
  }
  return date_text_;
}

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

void Exchange::flush() {
  if (connection_ != nullptr) connection_->send_now();
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

Connection::Connection(ConnectionHost& host, std::string peer)
    : host_(&host),
      descriptor_(host.loop.impl().context),
      peer_(std::move(peer)),
      reader_(host.limits) {}

bool Connection::start(UniqueFd fd, std::list<std::shared_ptr<Connection>>::iterator position) {
  position_ = position;
  transport_ = host_->tls ? host_->tls->accept(fd.get()) : make_plain_transport(fd.get());
  error_code error;
  descriptor_.assign(fd.get(), error);
  if (error) return false;
  fd.release();
  await_request();
  if (host_->tls) {
    phase_ = Phase::kHandshake;
    read_deadline_ = Clock::now() + host_->limits.header_timeout;
  }
  wait_readable();
  return true;
}

void Connection::server_gone() {
  host_ = nullptr;
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
  host_->num_body_bytes -= std::exchange(num_counted_bytes_, 0);
  std::exchange(host_, nullptr)->remove(position_);
}

bool Connection::is_paused() const {
  return (phase_ == Phase::kAnswering || phase_ == Phase::kFinishing) &&
         input_.size() >= kMaxKeptBytes;
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
    auto& scratch = host_->loop.impl().scratch;
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
    result = transport_->read(host_->loop.impl().scratch);
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
  const std::string_view bytes(host_->loop.impl().scratch.data(), result.num_bytes);
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
          read_deadline_ = Clock::now() + host_->limits.header_timeout;
        }
        return num_used;
      case State::kBody:
        if (before != State::kBody || reader_.request().body.size() > num_body_bytes) {
          read_deadline_ = Clock::now() + host_->limits.body_timeout;
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
  std::optional<HttpResponse> refusal = host_->handlers.on_header(request);
  if (phase_ == Phase::kClosed) return;
  if (refusal) return refuse(std::move(*refusal));
  const std::optional<uint64_t> length = reader_.content_length();
  if (length && *length + host_->num_body_bytes > host_->limits.max_total_body_bytes) {
    return refuse(503, "too many bytes of requests are being received");
  }
  if (reader_.expects_continue()) {
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    write_deadline_ = Clock::now() + host_->limits.write_timeout;
  }
  reader_.begin_body();
}

void Connection::count_body() {
  const size_t num_bytes = reader_.request().body.size();
  host_->num_body_bytes += num_bytes - num_counted_bytes_;
  num_counted_bytes_ = num_bytes;
  if (host_->num_body_bytes > host_->limits.max_total_body_bytes) {
    refuse(503, "too many bytes of requests are being received");
  }
}

void Connection::begin_exchange() {
  host_->num_body_bytes -= std::exchange(num_counted_bytes_, 0);
  read_deadline_ = Clock::time_point::max();
  record_ = ExchangeRecord();
  record_.num_request_bytes = reader_.request().body.size();
  is_head_ = reader_.request().method == "HEAD";
  closes_ = lingers_ = resets_ = is_chunked_ = drops_body_ = has_sent_early_ = false;
  exchange_ = std::make_shared<Exchange>(*this, std::move(reader_.request()), host_->loop,
                                         host_->alive);
  ++host_->num_exchanges;
  phase_ = Phase::kAnswering;
  if (reader_.state() == RequestReader::State::kDone) host_->handlers.on_request(exchange_);
}

void Connection::refuse(int status, const std::string& message) {
  refuse(host_->handlers.make_error(status, message, reader_.request()));
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
  closes_ = closes_ || host_->is_stopping || !has_header || !reader_.keeps_alive();
  record_.status = status;
  record_.headers = headers;
  output_.append("HTTP/1.1 ").append(std::to_string(status)).append(" ");
  output_.append(reason_phrase(status)).append("\r\nDate: ").append(host_->date());
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
    write_deadline_ = Clock::now() + host_->limits.write_timeout;
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
    write_deadline_ = Clock::now() + host_->limits.write_timeout;
  }
  schedule_turn();
}

// Whatever does not go as it should is left to the turn, which is scheduled.
void Connection::send_now() {
  if (is_in_turn_ || phase_ != Phase::kAnswering || is_aborted_ || is_write_waiting_ ||
      writes_on_readable_ || num_pending_bytes() == 0) {
    return;
  }
  const IoResult result = transport_->write(std::string_view(output_).substr(output_begin_));
  if (result.kind != IoResult::Kind::kDone) return;
  output_begin_ += result.num_bytes;
  has_sent_early_ = true;
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
  const bool has_sent_early = std::exchange(has_sent_early_, false);
  const bool had_pending = num_pending_bytes() > 0 || has_sent_early;
  while (num_pending_bytes() > 0) {
    const IoResult result = transport_->write(std::string_view(output_).substr(output_begin_));
    if (result.kind == IoResult::Kind::kDone) {
      output_begin_ += result.num_bytes;
      write_deadline_ = Clock::now() + host_->limits.write_timeout;
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
  --host_->num_exchanges;
  record_.duration = Clock::now() - header_end_;
  record_.is_complete = is_complete;
  host_->handlers.on_done(exchange->request(), record_);
}

void Connection::await_request() {
  reader_.reset();
  phase_ = Phase::kReading;
  read_deadline_ = Clock::now() + (host_->is_stopping ? host_->idle_when_stopping
                                                        : host_->limits.idle_timeout);
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
  return now >= read_deadline_ || is_write_waiting_ || now >= write_deadline_ || is_paused();
}

void Connection::take_care(Clock::time_point now) {
  if (phase_ == Phase::kClosed) return;
  const int num_queued = is_write_waiting_ ? num_queued_bytes() : num_queued_bytes_;
  if (num_queued < num_queued_bytes_) {
    // The client reads, but not yet enough for the system to take more from us.
    num_queued_bytes_ = num_queued;
    write_deadline_ = now + host_->limits.write_timeout;
  }
  if (now >= write_deadline_) {
    resets_ = true;  // the system would go on offering what nobody takes
    record_.was_unread = true;
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

}  // namespace millrace::net
