#pragma once

// An HTTP/1.1 client for many requests at once: connections are kept and used again. A request that
// finds its kept connection closed before the first byte of an answer is sent once more.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/event_loop.h"
#include "net/http.h"

namespace millrace::net {

struct HttpOrigin {
  bool is_tls = false;
  std::string host;  // without brackets
  int port = 80;
  std::string unix_path;  // instead of host and port
};

struct ParsedUrl {
  HttpOrigin origin;
  std::string path;  // with its query; at least "/"
};

// http://HOST[:PORT]/PATH, https://..., unix:PATH-OF-SOCKET
Result<ParsedUrl> parse_url(std::string_view url);

struct HttpClientOptions {
  std::string ca_file;            // empty: the system's
  bool verifies_certificates = true;
};

class HttpClient {
 public:
  using RequestId = int64_t;

  struct Handlers {
    std::function<void(int status, const Headers& headers)> on_head;
    std::function<void(std::string_view bytes)> on_body;  // as it is read from the socket
    // The last call, exactly one. Errors: kUnavailable (no connection, cut), kCorrupt (no HTTP).
    std::function<void(const Status& status)> on_done;
  };

  HttpClient(EventLoop& loop, HttpOrigin origin, HttpClientOptions options = {});
  ~HttpClient();  // ends everything; no handler is called any more
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Adds Host and Content-Length. No handler is called before it returns.
  RequestId send(HttpRequest request, Handlers handlers);
  // Closes its connection; no handler of it is called any more.
  void cancel(RequestId id);

  int64_t num_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::net
