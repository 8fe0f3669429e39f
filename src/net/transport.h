#pragma once

// Bytes to and from a connected socket, plain or through TLS. Nothing here waits: what cannot be
// done at once says what it waits for.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/http_client.h"
#include "net/http_server.h"

namespace millrace::net {

struct IoResult {
  enum class Kind {
    kDone,  // num_bytes were moved, at least one of those that were asked for
    kWantsRead,   // the socket must become readable first
    kWantsWrite,  // writable
    kEnd,         // the peer sends no more
    kFailed,
  };
  Kind kind;
  size_t num_bytes = 0;
};

// Does not own the descriptor, which is non-blocking.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual IoResult handshake() = 0;  // kDone: it is through
  virtual IoResult read(std::span<char> buffer) = 0;
  virtual IoResult write(std::string_view bytes) = 0;
  virtual bool has_buffered() const = 0;  // bytes to read for which the socket may not wake
  virtual void shutdown_write() = 0;
  virtual std::string error_text() const = 0;  // of the last kFailed
};

std::unique_ptr<Transport> make_plain_transport(int fd);

// What connections have in common; each keeps it until it ends.
class TlsContext {
 public:
  // Errors: kInvalidArgument, naming the file.
  static Result<std::shared_ptr<TlsContext>> for_server(const TlsOptions& options);
  static Result<std::shared_ptr<TlsContext>> for_client(const HttpClientOptions& options);

  virtual ~TlsContext() = default;
  virtual std::unique_ptr<Transport> accept(int fd) = 0;
  virtual std::unique_ptr<Transport> connect(int fd, const std::string& host) = 0;
};

// "errno text", as strerror says it, from any thread.
std::string errno_text(int error);

}  // namespace millrace::net
