// An assertion of the parser is wrong where a body ends byte by byte: it wants five bytes of a last
// chunk "0\r\n" and gets four. What it does then is right.
#define BOOST_DISABLE_ASSERTS

#include "net/message_reader.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace millrace::net {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::string_view;

constexpr size_t kMaxResponseHeaderBytes = size_t(256) << 10;
constexpr size_t kMaxReservedBytes = size_t(1) << 20;  // a length that is only announced

std::string lower(string_view text) {
  std::string out(text.data(), text.size());
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  }
  return out;
}

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r') || c == 0x7f;
}

// Of a request line. Empty where that is malformed.
struct Target {
  std::string host;  // of the absolute form, "http://host/path?query"
  std::string path;  // and query
};
Target parse_target(const std::string& target) {
  const size_t scheme = target.find("://");
  if (scheme == target.npos || target.starts_with('/')) return {"", target};
  const std::string_view name = std::string_view(target).substr(0, scheme);
  if (!equals_ignoring_case(name, "http") && !equals_ignoring_case(name, "https")) return {};
  const size_t begin = scheme + 3, end = std::min(target.find_first_of("/?", begin), target.size());
  const std::string host = target.substr(begin, end - begin);
  if (host.empty() || host.find('@') != host.npos) return {};  // nor a user's name, says the RFC
  return {host, (end < target.size() && target[end] == '/' ? "" : "/") + target.substr(end)};
}

bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// The parts of the library's interface that both directions share.
template <bool is_request>
class ParserBase : public http::basic_parser<is_request> {
 protected:
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}
  void on_response_impl(int, string_view, int, error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(uint64_t, string_view, error_code&) override {}
  void on_finish_impl(error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, string_view bytes, error_code& error) override {
    return this->on_body_impl(bytes, error);
  }
};

template <class Parser>
size_t put(Parser& parser, std::string_view bytes, error_code& error) {
  return parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
}

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return boost::beast::iequals(string_view(a.data(), a.size()), string_view(b.data(), b.size()));
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  const size_t begin = out.size();
  out.append(name).append(": ").append(value);
  std::replace_if(out.begin() + ptrdiff_t(begin), out.end(),
                  [](char c) { return c == '\r' || c == '\n' || c == '\0'; }, ' ');
  out += "\r\n";
}

class RequestReader::Parser : public ParserBase<true> {
 public:
  explicit Parser(RequestReader& reader) : reader_(reader) {
    header_limit(UINT32_MAX);  // read_header() counts
    // Its own count takes a chunk's size again each time that the rest of the chunk's header is not
    // there yet.
    body_limit(boost::none);
    eager(false);
  }

  bool has_strange_encoding() const { return has_strange_encoding_; }
  bool has_encoding() const { return has_encoding_; }
  int num_hosts() const { return num_hosts_; }

 private:
  void on_request_impl(http::verb, string_view method, string_view target, int version,
                       error_code&) override {
    reader_.request_.method = std::string(method.data(), method.size());
    reader_.target_ = std::string(target.data(), target.size());
    reader_.is_http_1_0_ = version == 10;
  }
  void on_field_impl(http::field field, string_view name, string_view value,
                     error_code&) override {
    if (reader_.state_ != State::kHeader) return;  // a trailer
    if (field == http::field::host) ++num_hosts_;
    if (field == http::field::transfer_encoding) {
      has_encoding_ = true;
      if (!boost::beast::iequals(value, "chunked")) has_strange_encoding_ = true;
    }
    reader_.request_.headers.emplace_back(lower(name), std::string(value.data(), value.size()));
  }
  void on_header_impl(error_code&) override {}
  void on_chunk_header_impl(uint64_t size, string_view, error_code& error) override {
    if (size > reader_.limits_.max_body_bytes - reader_.request_.body.size()) {
      error = http::error::body_limit;
    }
  }
  size_t on_body_impl(string_view bytes, error_code&) override {
    reader_.request_.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }

  RequestReader& reader_;
  bool has_encoding_ = false, has_strange_encoding_ = false;
  int num_hosts_ = 0;
};

RequestReader::RequestReader(const HttpLimits& limits) : limits_(limits) { reset(); }
RequestReader::~RequestReader() = default;

void RequestReader::reset() {
  parser_.reset();
  state_ = State::kHeader;
  request_ = HttpRequest();
  request_.method.clear();
  request_.path.clear();
  target_.clear();
  is_http_1_0_ = keeps_alive_ = false;
  num_scanned_ = line_begin_ = num_lines_ = 0;
  status_ = 0;
  message_.clear();
}

void RequestReader::fail(int status, std::string message) {
  state_ = State::kFailed;
  status_ = status;
  message_ = std::move(message);
  // For whoever answers: the path of a request that failed before it was looked at.
  const std::string target = parse_target(target_).path;
  const std::string_view path = std::string_view(target).substr(0, target.find('?'));
  if (request_.path.empty() && path.starts_with('/') && is_visible(path)) request_.path = path;
}

size_t RequestReader::read(std::string_view bytes) {
  MR_CHECK(state_ == State::kHeader || state_ == State::kBody);
  return state_ == State::kHeader ? read_header(bytes) : read_body(bytes);
}

// Finds the end of the header and refuses what two readers could understand in two ways; the
// library then gets it in one piece.
size_t RequestReader::read_header(std::string_view bytes) {
  size_t num_skipped = 0;
  while (num_scanned_ == 0 && bytes.starts_with("\r\n")) {  // left over from a body, says the RFC
    bytes.remove_prefix(2);
    num_skipped += 2;
  }
  if (num_scanned_ == 0 && bytes == "\r") return num_skipped;

  for (; num_scanned_ < bytes.size(); ++num_scanned_) {
    const size_t at = num_scanned_;
    if (at >= limits_.max_header_bytes) {
      fail(431, format("the header has more than ", limits_.max_header_bytes, " bytes"));
      return num_skipped;
    }
    const char c = bytes[at];
    const bool is_behind_cr = at > 0 && bytes[at - 1] == '\r';
    if (is_behind_cr != (c == '\n')) {
      fail(400, "a line of the header does not end in CR LF");
      return num_skipped;
    }
    if (c == '\n') {
      if (at == line_begin_ + 1) break;
      line_begin_ = at + 1;
      if (++num_lines_ > limits_.max_headers + 1) {
        fail(431, format("there are more than ", limits_.max_headers, " headers"));
        return num_skipped;
      }
    } else if (at == line_begin_ && (c == ' ' || c == '\t')) {
      fail(400, "a line of the header begins with white space");
      return num_skipped;
    } else if (is_control(c)) {
      fail(400, "the header has a control character");
      return num_skipped;
    }
  }
  if (num_scanned_ == bytes.size()) return num_skipped;

  const std::string_view header = bytes.substr(0, num_scanned_ + 1);
  parser_ = std::make_unique<Parser>(*this);
  error_code error;
  const size_t num_taken = put(*parser_, header, error);
  if (error == http::error::bad_version) {
    const std::string_view line = header.substr(0, header.find('\r'));
    const size_t space = line.rfind(' ');
    const bool is_version = space != line.npos && line.substr(space + 1).starts_with("HTTP/");
    fail(is_version ? 505 : 400, "the request is not of HTTP/1.1 or HTTP/1.0");
  } else if (error) {
    fail(400, format("the header is malformed: ", error.message()));
  } else if (num_taken != header.size() || !parser_->is_header_done()) {
    fail(400, "the header is malformed");
  } else {
    check_header();
  }
  return num_skipped + header.size();
}

void RequestReader::check_header() {
  if (parser_->has_encoding() && is_http_1_0_) {
    return fail(400, "HTTP/1.0 has no Transfer-Encoding");
  }
  if (parser_->has_strange_encoding()) {
    return fail(501, "the only Transfer-Encoding is chunked");
  }
  if (parser_->num_hosts() > 1 || (parser_->num_hosts() == 0 && !is_http_1_0_)) {
    return fail(400, format("there must be one Host header, there are ", parser_->num_hosts()));
  }

  const auto& [host, target] = parse_target(target_);
  const bool is_path = target.starts_with('/') || (target == "*" && request_.method == "OPTIONS");
  if (!is_path || !is_visible(target_) || target_.find('#') != target_.npos) {
    return fail(400, "the target of the request is malformed");
  }
  const size_t mark = target.find('?');
  request_.path = target.substr(0, mark);
  if (mark != target.npos) request_.query = target.substr(mark + 1);
  if (!host.empty()) {  // it counts, whatever the header says
    std::erase_if(request_.headers, [](const auto& header) { return header.first == "host"; });
    request_.headers.emplace_back("host", host);
  }

  if (const std::string* expect = request_.header("expect")) {
    if (!equals_ignoring_case(*expect, "100-continue")) {
      return fail(417, "the only Expect is 100-continue");
    }
  }
  if (content_length() > limits_.max_body_bytes) {
    return fail(413, format("the body has more than ", limits_.max_body_bytes, " bytes"));
  }
  keeps_alive_ = parser_->keep_alive();  // whatever trailers say
  state_ = State::kHeaderDone;
}

void RequestReader::begin_body() {
  MR_CHECK(state_ == State::kHeaderDone);
  state_ = has_body() ? State::kBody : State::kDone;
  parser_->eager(true);
  if (const std::optional<uint64_t> length = content_length()) {
    request_.body.reserve(size_t(std::min<uint64_t>(*length, kMaxReservedBytes)));
  }
}

// The library takes a chunk's header, and the trailers, in one piece. It never sees more than such
// a piece may have: whether one is too long must not depend on how much of it comes at once.
size_t RequestReader::read_body(std::string_view bytes) {
  const std::string_view all = bytes;
  while (!bytes.empty() && !parser_->is_done()) {
    error_code error;
    const std::string_view window = bytes.substr(0, limits_.max_header_bytes);
    const size_t num_taken = put(*parser_, window, error);
    bytes.remove_prefix(num_taken);
    if (error == http::error::need_more) {
      if (num_taken > 0) continue;
      if (window.size() < limits_.max_header_bytes) break;
      fail(431, format("a chunk's header or the trailers have more than ",
                       limits_.max_header_bytes, " bytes"));
    } else if (error == http::error::body_limit) {
      fail(413, format("the body has more than ", limits_.max_body_bytes, " bytes"));
    } else if (error) {
      fail(400, format("the body is malformed: ", error.message()));
    }
    if (error) return all.size() - bytes.size();
  }
  if (parser_->is_done()) state_ = State::kDone;
  return all.size() - bytes.size();
}

bool RequestReader::has_body() const { return !parser_->is_done(); }

std::optional<uint64_t> RequestReader::content_length() const {
  const boost::optional<uint64_t> length = parser_->content_length();
  return length ? std::optional<uint64_t>(*length) : std::nullopt;
}

bool RequestReader::expects_continue() const {
  return !is_http_1_0_ && has_body() && request_.header("expect") != nullptr;
}

class ResponseReader::Parser : public ParserBase<false> {
 public:
  explicit Parser(ResponseReader& reader) : reader_(reader) {
    header_limit(kMaxResponseHeaderBytes);
    body_limit(boost::none);
    eager(true);
    skip(reader.is_for_head_);
  }

  int status() const { return status_; }
  bool is_informational() const { return status_ >= 100 && status_ < 200; }

 private:
  void on_response_impl(int status, string_view, int, error_code& error) override {
    status_ = status;
    if (status < 100 || status == 101) error = http::error::bad_status;  // nobody asked for it
  }
  void on_field_impl(http::field field, string_view name, string_view value,
                     error_code& error) override {
    if (has_head_) return;  // a trailer
    if (field == http::field::transfer_encoding && !boost::beast::iequals(value, "chunked")) {
      error = http::error::bad_transfer_encoding;
      return;
    }
    headers_.emplace_back(lower(name), std::string(value.data(), value.size()));
  }
  void on_header_impl(error_code&) override {
    has_head_ = true;
    if (!is_informational()) reader_.on_head_(status_, headers_);
  }
  size_t on_body_impl(string_view bytes, error_code&) override {
    if (!bytes.empty()) reader_.on_body_(std::string_view(bytes.data(), bytes.size()));
    return bytes.size();
  }

  ResponseReader& reader_;
  int status_ = 0;
  bool has_head_ = false;
  Headers headers_;
};

ResponseReader::ResponseReader(bool is_for_head, std::function<void(int, const Headers&)> on_head,
                               std::function<void(std::string_view)> on_body)
    : is_for_head_(is_for_head),
      on_head_(std::move(on_head)),
      on_body_(std::move(on_body)),
      parser_(std::make_unique<Parser>(*this)) {}

ResponseReader::~ResponseReader() = default;

size_t ResponseReader::read(std::string_view bytes) {
  MR_CHECK(!is_done_);
  MR_CHECK(!has_failed());
  const std::string_view all = bytes;
  while (!bytes.empty() && !is_done_) {
    error_code error;
    bytes.remove_prefix(put(*parser_, bytes, error));
    if (error == http::error::need_more) {
      if (bytes.size() > kMaxResponseHeaderBytes) message_ = "a header is too long";
      break;
    }
    if (error) {
      message_ = error.message();
      break;
    }
    if (!parser_->is_done()) continue;
    if (parser_->is_informational()) {
      parser_ = std::make_unique<Parser>(*this);
    } else {
      is_done_ = true;
    }
  }
  return all.size() - bytes.size();
}

void ResponseReader::read_end() {
  if (is_done_ || has_failed()) return;
  error_code error = http::error::partial_message;
  if (parser_->is_header_done()) parser_->put_eof(error);
  if (error) {
    message_ = "cut off";
  } else {
    is_done_ = true;
  }
}

bool ResponseReader::keeps_alive() const { return parser_->keep_alive(); }

}  // namespace millrace::net
