#include "net/http_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "net/event_loop_impl.h"
#include "net/message_reader.h"
#include "net/transport.h"

namespace millrace::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Descriptor = asio::posix::stream_descriptor;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

std::string origin_name(const HttpOrigin& origin) {
  if (!origin.unix_path.empty()) return "unix:" + origin.unix_path;
  const bool is_v6 = origin.host.find(':') != origin.host.npos;
  return format(is_v6 ? "[" : "", origin.host, is_v6 ? "]" : "", ":", origin.port);
}

// As the Host header wants it: without the port that everybody expects.
std::string host_header(const HttpOrigin& origin) {
  if (!origin.unix_path.empty()) return "localhost";
  std::string name = origin_name(origin);
  if (origin.port == (origin.is_tls ? 443 : 80)) name.resize(name.rfind(':'));
  return name;
}

std::string request_bytes(const HttpOrigin& origin, const HttpRequest& request) {
  std::string out;
  out.reserve(512 + request.body.size());
  out.append(request.method).append(" ").append(request.path);
  if (!request.query.empty()) out.append("?").append(request.query);
  out += " HTTP/1.1\r\n";
  bool has_host = false;
  for (const auto& [name, value] : request.headers) {
    if (equals_ignoring_case(name, "host")) has_host = true;
  }
  if (!has_host) append_header(out, "Host", host_header(origin));
  for (const auto& [name, value] : request.headers) append_header(out, name, value);
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT" ||
      request.method == "PATCH") {
    append_header(out, "Content-Length", std::to_string(request.body.size()));
  }
  out += "\r\n";
  out += request.body;
  return out;
}

// What was sent and who waits for the answer. A cancelled one has no handlers any more.
struct Call {
  HttpClient::RequestId id = 0;
  std::string bytes;
  bool is_for_head = false;
  HttpClient::Handlers handlers;
  bool is_wanted = true;
  bool was_retried = false;
};

class Connection;

struct Client {
  Client(EventLoop& loop, HttpOrigin origin, HttpClientOptions options)
      : loop(loop),
        origin(std::move(origin)),
        options(std::move(options)),
        resolver(loop.impl().context) {}

  void start(std::shared_ptr<Call> call);
  void connect(std::shared_ptr<Call> call);
  void resolve();
  void resolved(const error_code& error, const asio::ip::tcp::resolver::results_type& results);
  void finish(const std::shared_ptr<Call>& call, const Status& status);
  void finish_later(std::shared_ptr<Call> call, Status status);
  Status make_ready();

  EventLoop& loop;
  const HttpOrigin origin;
  const HttpClientOptions options;
  std::shared_ptr<TlsContext> tls;
  std::vector<Address> addresses;  // empty: not known yet
  asio::ip::tcp::resolver resolver;
  bool is_resolving = false;
  std::vector<std::shared_ptr<Call>> waiting;  // for the addresses
  HttpClient::RequestId next_id = 1;
  std::unordered_map<HttpClient::RequestId, std::shared_ptr<Call>> calls;
  std::unordered_map<HttpClient::RequestId, std::shared_ptr<Connection>> busy;
  std::unordered_set<std::shared_ptr<Connection>> all;
  std::vector<std::shared_ptr<Connection>> idle;  // the last one used is the first used again
  const std::shared_ptr<Client*> self = std::make_shared<Client*>(this);  // null when it has gone
};

// One socket, for one request after the other.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Client& client)
      : client_(client.self), descriptor_(client.loop.impl().context), scratch_(client.loop) {}

  void connect(std::shared_ptr<Call> call);
  void send(std::shared_ptr<Call> call);  // requires: idle
  void close();                           // and forgets its request

 private:
  enum class Phase { kConnecting, kHandshake, kOpen, kClosed };

  Client* client() const { return *client_; }
  void try_address();
  void connected();
  void turn(bool is_readable);
  bool read_once();
  void flush();
  void begin();
  void wait_readable();
  void wait_writable();
  void parse(std::string_view bytes);
  void answered();
  void failed(Code code, const std::string& message);
  void ended(const std::string& message);

  const std::shared_ptr<Client*> client_;
  Descriptor descriptor_;
  EventLoop& scratch_;
  std::unique_ptr<Transport> transport_;
  Phase phase_ = Phase::kConnecting;
  size_t next_address_ = 0;
  std::shared_ptr<Call> call_;  // null: idle
  std::unique_ptr<ResponseReader> reader_;
  std::string input_;
  size_t num_sent_bytes_ = 0;
  bool was_used_ = false, has_answer_begun_ = false, has_write_failed_ = false;
  bool is_read_waiting_ = false, is_write_waiting_ = false;
  bool reads_on_writable_ = false, writes_on_readable_ = false;  // TLS only
};

Status Client::make_ready() {
  if (origin.is_tls && !tls) {
    ASSIGN_OR_RETURN(tls, TlsContext::for_client(options));
  }
  if (!addresses.empty()) return {};
  Address address;
  if (!origin.unix_path.empty()) {
    auto& to = reinterpret_cast<sockaddr_un&>(address.storage);
    if (origin.unix_path.size() >= sizeof to.sun_path) {
      return Error{Code::kInvalidArgument,
                   format("socket ", origin.unix_path, ": a path has at most ",
                          sizeof to.sun_path - 1, " bytes")};
    }
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, origin.unix_path.data(), origin.unix_path.size());
    address.size = sizeof to;
    addresses.push_back(address);
    return {};
  }
  error_code error;
  const asio::ip::address ip = asio::ip::make_address(origin.host, error);
  if (error) return {};
  const asio::ip::tcp::endpoint endpoint(ip, uint16_t(origin.port));
  std::memcpy(&address.storage, endpoint.data(), endpoint.size());
  address.size = socklen_t(endpoint.size());
  addresses.push_back(address);
  return {};
}

void Client::start(std::shared_ptr<Call> call) {
  if (!idle.empty()) {
    const std::shared_ptr<Connection> connection = std::move(idle.back());
    idle.pop_back();
    busy[call->id] = connection;
    connection->send(std::move(call));
    return;
  }
  connect(std::move(call));
}

void Client::connect(std::shared_ptr<Call> call) {
  if (const Status ready = make_ready(); !ready.ok()) {
    return finish_later(std::move(call), ready);
  }
  if (addresses.empty()) {
    waiting.push_back(std::move(call));
    return resolve();
  }
  auto connection = std::make_shared<Connection>(*this);
  all.insert(connection);
  busy[call->id] = connection;
  connection->connect(std::move(call));
}

void Client::resolve() {
  if (is_resolving) return;
  is_resolving = true;
  resolver.async_resolve(origin.host, std::to_string(origin.port),
                         asio::ip::resolver_base::numeric_service,
                         [self = self](const error_code& error,
                                       const asio::ip::tcp::resolver::results_type& results) {
                           if (*self != nullptr) (*self)->resolved(error, results);
                         });
}

void Client::resolved(const error_code& error,
                      const asio::ip::tcp::resolver::results_type& results) {
  is_resolving = false;
  for (const auto& result : results) {
    const asio::ip::tcp::endpoint endpoint = result.endpoint();
    Address address;
    std::memcpy(&address.storage, endpoint.data(), endpoint.size());
    address.size = socklen_t(endpoint.size());
    addresses.push_back(address);
  }
  const std::shared_ptr<Client*> alive = self;
  for (std::shared_ptr<Call>& call : std::exchange(waiting, {})) {
    if (*alive == nullptr) return;
    if (!call->is_wanted) continue;
    if (addresses.empty()) {
      finish(call, Error{Code::kUnavailable, format(origin.host, ": ", error.message())});
    } else {
      connect(std::move(call));
    }
  }
}

// The last that is heard of a request.
void Client::finish(const std::shared_ptr<Call>& call, const Status& status) {
  if (!call->is_wanted) return;
  call->is_wanted = false;
  calls.erase(call->id);
  busy.erase(call->id);
  call->handlers.on_done(status);
}

void Client::finish_later(std::shared_ptr<Call> call, Status status) {
  loop.post([self = self, call = std::move(call), status = std::move(status)] {
    if (*self != nullptr) (*self)->finish(call, status);
  });
}

void Connection::connect(std::shared_ptr<Call> call) {
  call_ = std::move(call);
  try_address();
}

void Connection::try_address() {
  Client& client = *this->client();
  std::string problem = "no address";
  while (next_address_ < client.addresses.size()) {
    const Address& address = client.addresses[next_address_++];
    const int fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                            0);
    if (fd < 0) {
      problem = errno_text(errno);
      continue;
    }
    if (address.storage.ss_family != AF_UNIX) {
      const int on = 1;
      (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
    const bool is_under_way = ::connect(fd, to, address.size) == 0 || errno == EINPROGRESS;
    if (!is_under_way) {
      problem = errno_text(errno);
      ::close(fd);
      continue;
    }
    error_code error;
    descriptor_.assign(fd, error);
    if (error) {
      problem = error.message();
      ::close(fd);
      continue;
    }
    // Also of a socket that is connected already: no handler is called before send() returns.
    return wait_writable();
  }
  // From a turn of its own, for the same reason.
  phase_ = Phase::kClosed;
  client.all.erase(shared_from_this());
  client.busy.erase(call_->id);
  client.finish_later(std::move(call_),
                      Error{Code::kUnavailable, format("cannot connect to ",
                                                       origin_name(client.origin), ": ", problem)});
}

void Connection::connected() {
  int problem = 0;
  socklen_t size = sizeof problem;
  (void)::getsockopt(descriptor_.native_handle(), SOL_SOCKET, SO_ERROR, &problem, &size);
  Client& client = *this->client();
  if (problem != 0) {
    error_code ignored;
    descriptor_.close(ignored);
    if (next_address_ < client.addresses.size()) return try_address();
    // Who knows whether the name still stands for these; numbers are found again at no cost.
    client.addresses.clear();
    return failed(Code::kUnavailable, format("cannot connect to ", origin_name(client.origin),
                                             ": ", errno_text(problem)));
  }
  const int fd = descriptor_.native_handle();
  transport_ = client.tls ? client.tls->connect(fd, client.origin.host) : make_plain_transport(fd);
  phase_ = client.tls ? Phase::kHandshake : Phase::kOpen;
  if (phase_ == Phase::kOpen) begin();
}

void Connection::send(std::shared_ptr<Call> call) {
  MR_CHECK(call_ == nullptr);
  call_ = std::move(call);
  begin();
  // Its outcome is seen by the next turn.
  flush();
}

void Connection::begin() {
  num_sent_bytes_ = 0;
  has_answer_begun_ = false;
  // The handlers may cancel and may destroy the client: what they need lives as long as they run.
  const std::shared_ptr<Call> call = call_;
  reader_ = std::make_unique<ResponseReader>(
      call->is_for_head,
      [call](int status, const Headers& headers) {
        if (call->is_wanted && call->handlers.on_head) call->handlers.on_head(status, headers);
      },
      [call](std::string_view bytes) {
        if (call->is_wanted && call->handlers.on_body) call->handlers.on_body(bytes);
      });
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  error_code ignored;
  descriptor_.close(ignored);
  if (client() == nullptr) return;
  std::erase(client()->idle, shared_from_this());
  client()->all.erase(shared_from_this());
}

void Connection::wait_readable() {
  if (is_read_waiting_) return;
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

// Whoever calls it holds a reference.
void Connection::turn(bool is_readable) {
  if (phase_ == Phase::kClosed || client() == nullptr) return;
  if (phase_ == Phase::kConnecting) {
    connected();
    is_readable = true;  // TLS speaks first
    if (phase_ == Phase::kClosed || phase_ == Phase::kConnecting) return;
  }
  while (phase_ != Phase::kClosed) {
    flush();
    if (phase_ == Phase::kClosed || (!is_readable && !transport_->has_buffered())) break;
    is_readable = false;
    if (!read_once()) break;
  }
  if (phase_ != Phase::kClosed) wait_readable();
}

void Connection::flush() {
  if (phase_ != Phase::kOpen || !call_ || is_write_waiting_ || writes_on_readable_) return;
  if (has_write_failed_) return;
  while (num_sent_bytes_ < call_->bytes.size()) {
    const IoResult result =
        transport_->write(std::string_view(call_->bytes).substr(num_sent_bytes_));
    switch (result.kind) {
      case IoResult::Kind::kDone: num_sent_bytes_ += result.num_bytes; break;
      case IoResult::Kind::kWantsRead: writes_on_readable_ = true; return;
      case IoResult::Kind::kWantsWrite: return wait_writable();
      case IoResult::Kind::kEnd:
      case IoResult::Kind::kFailed:
        has_write_failed_ = true;  // there may be an answer to read that says why
        return;
    }
  }
}

// False: there is nothing to do before the next event.
bool Connection::read_once() {
  auto& scratch = scratch_.impl().scratch;
  const IoResult result =
      phase_ == Phase::kHandshake ? transport_->handshake() : transport_->read(scratch);
  switch (result.kind) {
    case IoResult::Kind::kWantsRead: return false;
    case IoResult::Kind::kWantsWrite:
      reads_on_writable_ = true;
      wait_writable();
      return false;
    case IoResult::Kind::kEnd: ended("closed"); return false;
    case IoResult::Kind::kFailed:
      if (phase_ == Phase::kHandshake) {
        failed(Code::kUnavailable, format("TLS with ", origin_name(client()->origin), ": ",
                                          transport_->error_text()));
      } else {
        ended(transport_->error_text());
      }
      return false;
    case IoResult::Kind::kDone: break;
  }
  if (phase_ == Phase::kHandshake) {
    phase_ = Phase::kOpen;
    begin();
    return true;
  }
  parse(std::string_view(scratch.data(), result.num_bytes));
  return true;
}

void Connection::parse(std::string_view bytes) {
  if (!call_) return close();  // nobody asked for anything
  has_answer_begun_ = true;
  const bool was_kept = !input_.empty();
  if (was_kept) {
    input_.append(bytes);
    bytes = input_;
  }
  const size_t num_used = reader_->read(bytes);
  if (phase_ == Phase::kClosed || client() == nullptr) return;
  if (was_kept) {
    input_.erase(0, num_used);
  } else {
    input_.assign(bytes.substr(num_used));
  }
  if (reader_->has_failed()) {
    failed(Code::kCorrupt, format("the answer of ", origin_name(client()->origin),
                                  " is malformed: ", reader_->message()));
  } else if (reader_->is_done()) {
    answered();
  }
}

void Connection::answered() {
  Client& client = *this->client();
  const std::shared_ptr<Call> call = std::exchange(call_, nullptr);
  const bool is_reusable =
      reader_->keeps_alive() && input_.empty() && num_sent_bytes_ == call->bytes.size();
  was_used_ = true;
  if (is_reusable) {
    client.idle.push_back(shared_from_this());
  } else {
    close();
  }
  client.finish(call, {});
}

// The server sends no more.
void Connection::ended(const std::string& message) {
  if (!call_) return close();
  const std::shared_ptr<Call> call = call_;
  if (was_used_ && !has_answer_begun_ && !call->was_retried) {
    // It closed a connection that it took for idle when the request was on its way.
    call->was_retried = true;
    call_ = nullptr;
    close();
    client()->busy.erase(call->id);
    return client()->connect(call);
  }
  if (message == "closed") {
    reader_->read_end();
    if (reader_->is_done()) {
      call_ = nullptr;
      close();
      return client()->finish(call, {});
    }
  }
  failed(Code::kUnavailable,
         format(origin_name(client()->origin), " closed the connection before the ",
                has_answer_begun_ ? "end of its answer" : "first byte of an answer", ": ",
                message));
}

void Connection::failed(Code code, const std::string& message) {
  const std::shared_ptr<Call> call = std::exchange(call_, nullptr);
  Client& client = *this->client();
  close();
  if (call) client.finish(call, Error{code, message});
}

}  // namespace

struct HttpClient::Impl : Client {
  using Client::Client;
};

Result<ParsedUrl> parse_url(std::string_view url) {
  const auto bad = [&](const std::string& why) {
    return Error{Code::kInvalidArgument, format("URL ", url, ": ", why)};
  };
  ParsedUrl parsed;
  if (url.starts_with("unix:")) {
    parsed.origin.unix_path = std::string(url.substr(5));
    parsed.path = "/";
    if (parsed.origin.unix_path.empty()) return bad("there is no path of a socket");
    return parsed;
  }
  std::string_view rest = url;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    parsed.origin.is_tls = true;
    parsed.origin.port = 443;
  } else {
    return bad("expected http://, https:// or unix:");
  }
  rest = rest.substr(0, rest.find('#'));
  const size_t path = rest.find_first_of("/?");
  std::string_view authority = rest.substr(0, path);
  if (path != rest.npos) parsed.path = std::string(rest.substr(path));
  if (parsed.path.empty() || parsed.path[0] != '/') parsed.path.insert(0, "/");
  for (const char c : rest) {
    if (c <= ' ' || c >= 0x7f) return bad("a character that must be written as %XX");
  }
  if (authority.find('@') != authority.npos) return bad("names and passwords are not supported");
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == authority.npos) return bad("there is no ']'");
    parsed.origin.host = std::string(authority.substr(1, end - 1));
    port = authority.substr(end + 1);
  } else {
    const size_t colon = authority.find(':');
    parsed.origin.host = std::string(authority.substr(0, colon));
    port = colon == authority.npos ? "" : authority.substr(colon);
  }
  if (parsed.origin.host.empty()) return bad("there is no host");
  if (!port.empty()) {
    const char* const begin = port.data() + 1;
    const char* const end = port.data() + port.size();
    const auto [stop, error] = std::from_chars(begin, end, parsed.origin.port);
    if (port[0] != ':' || error != std::errc() || stop != end || parsed.origin.port < 1 ||
        parsed.origin.port > 65535) {
      return bad("expected a port, 1 to 65535, behind the host");
    }
  }
  return parsed;
}

HttpClient::HttpClient(EventLoop& loop, HttpOrigin origin, HttpClientOptions options)
    : impl_(std::make_unique<Impl>(loop, std::move(origin), std::move(options))) {}

HttpClient::~HttpClient() {
  *impl_->self = nullptr;
  for (const auto& [id, call] : impl_->calls) call->is_wanted = false;
  for (const std::shared_ptr<Connection>& each : impl_->all) each->close();
}

HttpClient::RequestId HttpClient::send(HttpRequest request, Handlers handlers) {
  MR_CHECK(handlers.on_done != nullptr);
  auto call = std::make_shared<Call>();
  call->id = impl_->next_id++;
  call->bytes = request_bytes(impl_->origin, request);
  call->is_for_head = request.method == "HEAD";
  call->handlers = std::move(handlers);
  impl_->calls[call->id] = call;
  const RequestId id = call->id;
  impl_->start(std::move(call));
  return id;
}

void HttpClient::cancel(RequestId id) {
  const auto call = impl_->calls.find(id);
  if (call == impl_->calls.end()) return;
  call->second->is_wanted = false;
  std::erase(impl_->waiting, call->second);
  impl_->calls.erase(call);
  if (const auto node = impl_->busy.extract(id)) node.mapped()->close();
}

int64_t HttpClient::num_connections() const { return int64_t(impl_->all.size()); }

}  // namespace millrace::net
