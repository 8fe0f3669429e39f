#pragma once

// HTTP messages out of a stream of bytes, however it is cut. Sockets are elsewhere, so that a
// fuzzer can try every cut.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/http.h"
#include "net/http_server.h"

namespace millrace::net {

// One request. Strict where leniency has hidden one request within another: lines end in CR LF,
// nothing is folded, there is one Host and one way to tell how long the body is.
class RequestReader {
 public:
  enum class State {
    kHeader,      // reads the header
    kHeaderDone,  // has all of it; begin_body() goes on
    kBody,        // reads the body
    kDone,        // request() is complete
    kFailed,      // status() and message() say why
  };

  explicit RequestReader(const HttpLimits& limits);
  ~RequestReader();

  void reset();  // for the next request

  // Takes what it can and returns how many bytes that was; the rest comes again, with more behind
  // it. Stops behind the header and behind the request. Never leaves more than max_header_bytes.
  // Requires: kHeader or kBody.
  size_t read(std::string_view bytes);
  void begin_body();

  State state() const { return state_; }
  bool has_begun() const { return state_ != State::kHeader || num_scanned_ > 0; }
  HttpRequest& request() { return request_; }

  // From kHeaderDone on.
  bool has_body() const;
  std::optional<uint64_t> content_length() const;
  bool is_http_1_0() const { return is_http_1_0_; }
  bool keeps_alive() const { return keeps_alive_; }
  bool expects_continue() const;

  int status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  class Parser;

  size_t read_header(std::string_view bytes);
  size_t read_body(std::string_view bytes);
  void check_header();
  void fail(int status, std::string message);

  const HttpLimits limits_;
  std::unique_ptr<Parser> parser_;
  State state_ = State::kHeader;
  HttpRequest request_;
  std::string target_;
  bool is_http_1_0_ = false, keeps_alive_ = false;
  size_t num_scanned_ = 0;  // of the header, looked at
  size_t line_begin_ = 0;
  size_t num_lines_ = 0;
  int status_ = 0;
  std::string message_;
};

// One response, without the 1xx before it.
class ResponseReader {
 public:
  // The handlers are called within read(); they may not destroy the reader.
  ResponseReader(bool is_for_head, std::function<void(int, const Headers&)> on_head,
                 std::function<void(std::string_view)> on_body);
  ~ResponseReader();

  // As RequestReader::read, for head and body alike.
  size_t read(std::string_view bytes);
  void read_end();  // the connection was closed

  bool is_done() const { return is_done_; }
  bool has_failed() const { return !message_.empty(); }
  const std::string& message() const { return message_; }
  bool keeps_alive() const;  // requires: is_done()

 private:
  class Parser;

  const bool is_for_head_;
  const std::function<void(int, const Headers&)> on_head_;
  const std::function<void(std::string_view)> on_body_;
  std::unique_ptr<Parser> parser_;
  bool is_done_ = false;
  std::string message_;
};

// "NAME: VALUE\r\n". Line ends within them would begin a header of somebody else's choice: blanks.
void append_header(std::string& out, std::string_view name, std::string_view value);

bool equals_ignoring_case(std::string_view a, std::string_view b);

}  // namespace millrace::net
