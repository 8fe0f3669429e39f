#pragma once

// An HTTP/1.1 server: keep-alive, bodies with a length or in chunks, streamed answers, TLS, Unix
// sockets. It knows nothing about what is served.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "net/event_loop.h"
#include "net/http.h"

namespace millrace::net {

struct HttpLimits {
  size_t max_header_bytes = size_t(64) << 10;  // 431 beyond
  size_t max_headers = 128;                    // 431 beyond
  size_t max_body_bytes = size_t(256) << 20;   // 413 beyond
  size_t max_total_body_bytes = size_t(1) << 30;  // of all bodies that are coming in: 503 beyond
  size_t max_connections = 16384;              // beyond, the listener waits until one has gone
  std::chrono::milliseconds header_timeout{15'000};  // from the first byte of a request to the last
                                                     // of its header: 408, closed
  std::chrono::milliseconds body_timeout{60'000};    // without another byte of it: 408, closed
  std::chrono::milliseconds idle_timeout{75'000};    // between requests, and before the first byte
  std::chrono::milliseconds write_timeout{60'000};   // a reader that takes nothing: aborted
};

struct TlsOptions {
  std::string certificate_file, key_file;  // PEM
  std::string ca_file;                     // for client certificates; empty: the system's
  bool requires_client_certificate = false;
  std::string ciphers;  // OpenSSL's list; empty: its default
};

// One request and its answer, which is given once: respond(), or begin_stream() ... end_stream().
// After the client has gone everything is accepted and does nothing.
//
// Owned by the server until the answer is complete or the client has gone, and by whoever answers.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  virtual std::string take_body() = 0;  // of the request, to be freed when it is read
  virtual void respond(HttpResponse response) = 0;

  // An answer in pieces: what is written in one turn of the loop is sent behind it, in one call. A
  // stream must end: without end_stream() the client sees that it was cut off.
  virtual void begin_stream(int status, Headers headers) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void flush() = 0;  // what is written goes out at once: for a turn with much to do
  virtual void end_stream() = 0;
  virtual void abort() = 0;  // closes the connection; what is pending is dropped

  // Written, and not yet taken by the system: of a reader that is slow.
  virtual size_t num_pending_bytes() const = 0;
  virtual bool is_open() const = 0;  // the answer is not given and the client is there

  // Never called from within a call of this class, nor after respond(), end_stream() and abort().
  // The client has gone before its answer was given: once, also for who asks when it has already
  // happened. A client that shuts down its side of the connection counts as gone.
  virtual void on_close(std::function<void()> callback) = 0;
  // Everything written has been taken by the system: each time, as long as it is set.
  virtual void on_drained(std::function<void()> callback) = 0;
};

// What became of a request, for logs and metrics.
struct ExchangeRecord {
  int status = 0;  // 0: the client went before there was one
  Headers headers;  // of the answer
  size_t num_request_bytes = 0, num_response_bytes = 0;  // of bodies
  std::chrono::nanoseconds duration{0};  // from the end of the request's header
  bool is_complete = false;              // all of the answer went to the system in time
  bool was_unread = false;               // it did not: the client took nothing for write_timeout
};

struct HttpHandlers {
  // A request is there, body and all.
  std::function<void(std::shared_ptr<HttpExchange>)> on_request;
  // Its header is there: an answer refuses it before the body is read, and closes the connection
  // if there is one. May add headers for those that see the request later.
  std::function<std::optional<HttpResponse>(HttpRequest&)> on_header;
  // The body of an error that the server itself finds: malformed, too large, too slow. The request
  // is there as far as it was read.
  std::function<HttpResponse(int status, const std::string& message, const HttpRequest&)>
      make_error;
  // Of every request whose header was complete, and every error. Method and path are empty as far
  // as they were not read.
  std::function<void(const HttpRequest&, const ExchangeRecord&)> on_done;
};

class HttpServer {
 public:
  // Requires: every handler is set. The loop must outlive it.
  HttpServer(EventLoop& loop, const HttpLimits& limits, HttpHandlers handlers);
  ~HttpServer();  // closes everything
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // From now on for new connections, old ones stay. Errors leave what was.
  Status use_tls(const TlsOptions& options);

  // Begins to accept. `host` is an address, or a name that stands for some; port 0: a free one.
  // Errors: kUnavailable with host and port ("already in use").
  Status listen(const std::string& host, int port);
  Status listen_unix(const std::string& path);  // a socket that nobody listens to is replaced
  // Accepts from a listening socket that another process opened. Takes the descriptor.
  Status adopt(int listener_fd);
  // Of all listeners, to be handed to another process; they stay this server's.
  std::vector<int> listener_fds() const;
  int port() const;  // of the first listener with one; 0: none

  // Closes the listeners. Requests go on; every further answer closes its connection, as does
  // `idle` without a request.
  void stop_accepting(std::chrono::milliseconds idle);

  int64_t num_connections() const;
  int64_t num_exchanges() const;  // not completely answered

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::net
