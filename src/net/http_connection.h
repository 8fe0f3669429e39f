#pragma once

// The sockets of an HTTP server's clients, for http_server.cc. Everything belongs to the loop's
// thread.

#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <ctime>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "net/event_loop.h"
#include "net/http_server.h"
#include "net/message_reader.h"
#include "net/transport.h"
#include "sys/unique_fd.h"

namespace millrace::net {

class Connection;
class Exchange;

// What the connections of a server share.
struct ConnectionHost {
  ConnectionHost(EventLoop& loop, const HttpLimits& limits, HttpHandlers handlers)
      : loop(loop), limits(limits), handlers(std::move(handlers)) {}

  // One that has closed.
  void remove(std::list<std::shared_ptr<Connection>>::iterator connection);
  const std::string& date();  // now, as the header has it

  EventLoop& loop;
  const HttpLimits limits;
  const HttpHandlers handlers;
  const std::shared_ptr<bool> alive = std::make_shared<bool>(true);  // as long as the server
  std::shared_ptr<TlsContext> tls;
  std::list<std::shared_ptr<Connection>> connections;
  std::function<void()> on_removed;
  int64_t num_exchanges = 0;
  size_t num_body_bytes = 0;  // of requests that are coming in
  bool is_stopping = false;
  std::chrono::milliseconds idle_when_stopping{0};

 private:
  time_t date_second_ = 0;
  std::string date_text_;
};

// One client's socket. It reads as far as it may, one request at a time, and writes what is pending
// when the loop comes to it, so that all that one turn writes leaves in one call.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionHost& host, std::string peer);

  // False: the system has no room for another descriptor to wait for.
  bool start(UniqueFd fd, std::list<std::shared_ptr<Connection>>::iterator position);
  void server_gone();
  void stopping(std::chrono::steady_clock::time_point deadline);
  bool needs_care(std::chrono::steady_clock::time_point now) const;
  void take_care(std::chrono::steady_clock::time_point now);

  // For the exchange.
  void respond(HttpResponse response);
  void begin_stream(int status, Headers headers);
  void write(std::string_view bytes);
  void send_now();
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
  bool is_paused() const;

  ConnectionHost* host_;  // null when closed
  boost::asio::posix::stream_descriptor descriptor_;
  std::list<std::shared_ptr<Connection>>::iterator position_;
  const std::string peer_;
  std::unique_ptr<Transport> transport_;
  Phase phase_ = Phase::kReading;
  std::chrono::steady_clock::time_point read_deadline_ =
      std::chrono::steady_clock::time_point::max();
  std::chrono::steady_clock::time_point write_deadline_ =
      std::chrono::steady_clock::time_point::max();

  RequestReader reader_;
  std::string input_;  // read and not yet parsed
  size_t num_counted_bytes_ = 0;  // of the body, in the server's sum

  std::string output_;
  size_t output_begin_ = 0;
  bool has_sent_early_ = false;  // before its turn
  int num_queued_bytes_ = 0;  // with the system, when it took no more

  std::shared_ptr<Exchange> exchange_;  // from the request to the end of its answer
  ExchangeRecord record_;
  std::chrono::steady_clock::time_point header_end_;
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

}  // namespace millrace::net
