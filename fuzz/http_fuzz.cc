// Bytes from a socket, cut anywhere: what a client sends to the server and what a server sends to
// the client. The first byte says which, the second how they are cut. The cuts change nothing;
// what is accepted is read again from how it is written; and a server that gets the bytes sends one
// answer to each request, in order.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "net/event_loop_impl.h"
#include "net/http_server.h"
#include "net/message_reader.h"

using namespace millrace;
using namespace millrace::net;

namespace {

HttpLimits small_limits() {
  HttpLimits limits;
  limits.max_header_bytes = 1024;
  limits.max_headers = 16;
  limits.max_body_bytes = 2048;
  return limits;
}

std::vector<std::string_view> pieces(std::string_view bytes, uint8_t seed) {
  std::vector<std::string_view> list;
  uint32_t state = seed;
  while (!bytes.empty()) {
    state = state * 1664525 + 1013904223;
    const size_t size = seed == 0 ? 1 : 1 + (state >> 16) % (seed < 128 ? 8 : 200);
    list.push_back(bytes.substr(0, size));
    bytes.remove_prefix(std::min(size, bytes.size()));
  }
  return list;
}

struct Seen {
  std::string answer;  // what the rig's server says to it
  bool is_head = false, is_http_1_0 = false, keeps_alive = false;
  int status = 200;
  bool operator==(const Seen&) const = default;
};

std::string answer_to(const HttpRequest& request) {
  return request.method + " " + request.path + "?" + request.query + "|" + request.body;
}

std::string written(const HttpRequest& request, bool is_http_1_0) {
  std::string out = request.method + " " + request.path +
                    (request.query.empty() ? "" : "?" + request.query) +
                    (is_http_1_0 ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n");
  for (const auto& [name, value] : request.headers) {
    if (name != "content-length" && name != "transfer-encoding") append_header(out, name, value);
  }
  append_header(out, "content-length", std::to_string(request.body.size()));
  return out + "\r\n" + request.body;
}

std::vector<Seen> read_requests(const std::vector<std::string_view>& input, bool checks_writing) {
  using State = RequestReader::State;
  const HttpLimits limits = small_limits();
  RequestReader reader(limits);
  std::vector<Seen> seen;
  std::string kept;
  for (const std::string_view piece : input) {
    kept += piece;
    for (;;) {
      const bool was_empty = kept.empty();
      const size_t num_used = was_empty ? 0 : reader.read(kept);
      MR_CHECK_OP(num_used, <=, kept.size());
      kept.erase(0, num_used);
      if (reader.state() == State::kHeaderDone) reader.begin_body();
      if (reader.state() == State::kFailed) {
        MR_CHECK_OP(reader.status(), >=, 400);
        MR_CHECK(!reader.message().empty());
        seen.push_back({"", false, false, false, reader.status()});
        return seen;
      }
      MR_CHECK_OP(reader.request().body.size(), <=, limits.max_body_bytes);
      if (reader.state() == State::kDone) {
        const HttpRequest& request = reader.request();
        MR_CHECK(request.path == "*" || request.path.starts_with('/'));
        MR_CHECK(request.path.find('?') == std::string::npos);
        MR_CHECK_OP(request.headers.size(), <=, limits.max_headers);
        seen.push_back({answer_to(request), request.method == "HEAD", reader.is_http_1_0(),
                        reader.keeps_alive(), 200});
        if (checks_writing) {
          const std::string again = written(request, reader.is_http_1_0());
          HttpLimits wide = limits;
          wide.max_header_bytes *= 2;  // a length takes more room than no length
          wide.max_headers += 1;
          RequestReader other(wide);
          size_t taken = other.read(again);
          MR_CHECK(other.state() == State::kHeaderDone);
          other.begin_body();
          if (other.state() == State::kBody) taken += other.read(again.substr(taken));
          MR_CHECK(other.state() == State::kDone);
          MR_CHECK_OP(taken, ==, again.size());
          MR_CHECK(answer_to(other.request()) == answer_to(request));
          MR_CHECK(reader.keeps_alive() == other.keeps_alive());
        }
        reader.reset();
      } else if (num_used == 0) {
        break;
      }
    }
    MR_CHECK_OP(kept.size(), <=, limits.max_header_bytes + 1);
  }
  return seen;
}

// A server on a socket of this process, driven by hand.
class Rig {
 public:
  Rig() : server_(loop_, small_limits(), handlers()) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address_.sun_family = AF_UNIX;  // without a name: the system finds one
    MR_CHECK(::bind(fd, address(), sizeof(sa_family_t)) == 0);
    address_size_ = sizeof address_;
    MR_CHECK(::getsockname(fd, address(), &address_size_) == 0);
    MR_CHECK(::listen(fd, 16) == 0);
    MR_CHECK(server_.adopt(fd).ok());
  }

  // Every byte that the server sends.
  std::string serve(const std::vector<std::string_view>& input) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    MR_CHECK(::connect(fd, address(), address_size_) == 0);
    std::string output;
    for (const std::string_view piece : input) {
      (void)::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL);  // it may have closed
      turn();
      read(fd, output);
    }
    ::shutdown(fd, SHUT_WR);
    turn();
    read(fd, output);
    ::close(fd);
    turn();
    MR_CHECK_OP(server_.num_connections(), ==, 0);
    MR_CHECK_OP(server_.num_exchanges(), ==, 0);
    return output;
  }

 private:
  HttpHandlers handlers() {
    HttpHandlers handlers;
    handlers.on_request = [this](std::shared_ptr<HttpExchange> exchange) {
      if (++num_requests_ % 2 == 0) {  // while it is asked, or later
        waiting_ = std::move(exchange);
      } else {
        exchange->respond({200, {}, answer_to(exchange->request())});
      }
    };
    handlers.on_header = [](HttpRequest&) { return std::nullopt; };
    handlers.make_error = [](int status, const std::string&, const HttpRequest&) {
      return HttpResponse{status, {}, ""};
    };
    handlers.on_done = [](const HttpRequest&, const ExchangeRecord& record) {
      MR_CHECK(record.status == 0 || record.status >= 200);
    };
    return handlers;
  }
  void turn() {
    auto& context = loop_.impl().context;
    while (context.poll() > 0 || waiting_) {
      const std::shared_ptr<HttpExchange> exchange = std::exchange(waiting_, nullptr);
      if (!exchange) continue;
      exchange->begin_stream(200, {});
      exchange->write(answer_to(exchange->request()));
      exchange->end_stream();
    }
  }
  static void read(int fd, std::string& output) {
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      output.append(buffer, size_t(n));
    }
  }
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&address_); }

  EventLoop loop_;
  HttpServer server_;
  int num_requests_ = 0;
  std::shared_ptr<HttpExchange> waiting_;
  sockaddr_un address_{};
  socklen_t address_size_ = 0;
};

void check_server(const std::vector<std::string_view>& input, const std::vector<Seen>& seen) {
  static Rig rig;
  const std::string output = rig.serve(input);
  std::string_view rest = output;
  for (const Seen& each : seen) {
    int status = 0;
    std::string body;
    ResponseReader reader(
        each.is_head, [&](int s, const Headers&) { status = s; },
        [&](std::string_view bytes) { body += bytes; });
    rest.remove_prefix(reader.read(rest));
    reader.read_end();
    MR_CHECK(reader.is_done());
    MR_CHECK_OP(status, ==, each.status);
    if (each.status == 200 && !each.is_head) MR_CHECK(body == each.answer);
    // A stream of HTTP/1.0 ends with the connection.
    MR_CHECK(reader.keeps_alive() == each.keeps_alive || each.is_http_1_0);
    if (!reader.keeps_alive()) {
      MR_CHECK(rest.empty());
      return;
    }
  }
  // A request whose body was only announced may have been encouraged.
  while (rest.starts_with("HTTP/1.1 100 Continue\r\n\r\n")) rest.remove_prefix(25);
  MR_CHECK(rest.empty());
}

std::string read_response(const std::vector<std::string_view>& input, bool is_for_head) {
  std::string seen, kept;
  ResponseReader reader(
      is_for_head,
      [&](int status, const Headers& headers) {
        seen += std::to_string(status) + ":";
        for (const auto& [name, value] : headers) seen += name + "=" + value + ";";
      },
      [&](std::string_view bytes) { seen += bytes; });
  for (const std::string_view piece : input) {
    kept += piece;
    kept.erase(0, reader.read(kept));
    if (reader.has_failed()) return "failed";
    if (reader.is_done()) return seen + (reader.keeps_alive() ? " kept" : " closed");
  }
  reader.read_end();
  return reader.is_done() ? seen + " ended" : "failed";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::vector<std::string_view> whole = {bytes}, cut = pieces(bytes, data[1]);
  if (data[0] % 2 == 1) {
    const bool is_for_head = data[0] % 4 == 3;
    MR_CHECK(read_response(whole, is_for_head) == read_response(cut, is_for_head));
    return 0;
  }
  const std::vector<Seen> seen = read_requests(whole, true);
  MR_CHECK(seen == read_requests(cut, false));
  check_server(cut, seen);
  return 0;
}
