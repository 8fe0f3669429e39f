#include "net/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "net/test_http.h"

namespace millrace::net {
namespace {

using testing::HasSubstr;

// What came of one request.
struct Answer {
  int status = 0;
  std::string body;
  Status outcome;
};

// A client on its own loop.
class TestClient {
 public:
  explicit TestClient(HttpOrigin origin, HttpClientOptions options = {}) {
    loop.call([&] { client = std::make_unique<HttpClient>(loop.loop(), origin, options); });
  }
  explicit TestClient(int port) : TestClient(HttpOrigin{false, "127.0.0.1", port, ""}) {}
  ~TestClient() {
    loop.call([&] { client.reset(); });
  }

  HttpClient::RequestId send(HttpRequest request) {
    auto answer = std::make_shared<Answer>();
    HttpClient::Handlers handlers;
    handlers.on_head = [answer](int status, const Headers&) { answer->status = status; };
    handlers.on_body = [answer](std::string_view bytes) { answer->body += bytes; };
    handlers.on_done = [this, answer](const Status& outcome) {
      answer->outcome = outcome;
      answers.put(*answer);
    };
    return loop.call([&] { return client->send(std::move(request), std::move(handlers)); });
  }
  Answer exchange(HttpRequest request) {
    send(std::move(request));
    return answers.take();
  }
  int64_t num_connections() {
    return loop.call([&] { return client->num_connections(); });
  }

  LoopThread loop;
  std::unique_ptr<HttpClient> client;
  Mailbox<Answer> answers;
};

HttpRequest get(const std::string& path = "/a", const std::string& query = "") {
  HttpRequest request;
  request.path = path;
  request.query = query;
  return request;
}

HttpRequest post(const std::string& body) {
  HttpRequest request;
  request.method = "POST";
  request.path = "/p";
  request.body = body;
  return request;
}

// A listening socket whose connections the test plays by hand.
class RawServer {
 public:
  RawServer() {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~RawServer() { ::close(fd_); }

  class Peer {
   public:
    explicit Peer(int fd) : fd_(fd) {}
    Peer(Peer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    ~Peer() { close(); }
    void close() {
      if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }
    std::string read_request() {  // without a body
      std::string bytes;
      char buffer[4096];
      while (bytes.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
        if (n <= 0) return bytes;
        bytes.append(buffer, size_t(n));
      }
      return bytes;
    }
    void send(std::string_view bytes) {
      EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()));
    }

   private:
    int fd_;
  };

  Peer accept() { return Peer(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)); }

  int port = 0;

 private:
  int fd_ = -1;
};

TEST(HttpClient, UsesAConnectionAgain) {
  TestServer server;
  TestClient client(server.port);
  for (int i = 0; i < 5; ++i) {
    const Answer answer = client.exchange(i % 2 ? post("hello") : get("/a", "b=c"));
    EXPECT_TRUE(answer.outcome.ok());
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, i % 2 ? "POST /p|hello" : "GET /a?b=c|");
  }
  EXPECT_EQ(client.num_connections(), 1);
  EXPECT_EQ(server.num_connections(), 1);
}

TEST(HttpClient, CallsNobodyBeforeSendReturns) {
  TestServer server;
  TestClient client(server.port);
  client.loop.call([&] {
    bool has_returned = false;
    for (const std::string host : {"127.0.0.1", "host.invalid"}) {
      HttpClient other(client.loop.loop(), {false, host, server.port, ""});
      HttpClient::Handlers handlers;
      handlers.on_done = [&](const Status&) { EXPECT_TRUE(has_returned); };
      other.send(get(), std::move(handlers));
    }
    has_returned = true;
  });
}

TEST(HttpClient, SendsWhatHttpWants) {
  RawServer server;
  TestClient client(server.port);
  HttpRequest request = get("/path", "q=1");
  request.headers = {{"X-Key", "a\r\nb"}};
  client.send(request);
  RawServer::Peer peer = server.accept();
  EXPECT_EQ(peer.read_request(), "GET /path?q=1 HTTP/1.1\r\nHost: 127.0.0.1:" +
                                     std::to_string(server.port) + "\r\nX-Key: a  b\r\n\r\n");
  peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(client.answers.take().body, "ok");
  request.headers = {{"host", "other"}};
  request.method = "POST";
  client.send(request);
  EXPECT_EQ(peer.read_request(),
            "POST /path?q=1 HTTP/1.1\r\nhost: other\r\nContent-Length: 0\r\n\r\n");
}

TEST(HttpClient, ReadsAnswersOfEveryKind) {
  RawServer server;
  TestClient client(server.port);
  for (const std::string answer : {
           "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
           "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n1\r\no\r\n0\r\n\r\n",
           "HTTP/1.1 200 OK\r\n\r\nhello",
           "HTTP/1.0 200 OK\r\n\r\nhello",
       }) {
    client.send(get());
    RawServer::Peer peer = server.accept();
    peer.read_request();
    for (const char c : answer) peer.send(std::string(1, c));
    peer.close();
    const Answer seen = client.answers.take();
    EXPECT_TRUE(seen.outcome.ok()) << seen.outcome.error().message;
    EXPECT_EQ(seen.status, 200);
    EXPECT_EQ(seen.body, "hello");
  }
}

TEST(HttpClient, SaysHowAnAnswerEndedTooSoon) {
  RawServer server;
  TestClient client(server.port);
  const struct {
    std::string answer;
    Code code;
    std::string message;
  } cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", Code::kUnavailable, "end of its answer"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", Code::kUnavailable,
       "end of its answer"},
      {"", Code::kUnavailable, "before the first byte"},
      {"SSH-2.0-OpenSSH\r\n\r\n", Code::kCorrupt, "malformed"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
       Code::kCorrupt, "malformed"},
  };
  for (const auto& c : cases) {
    client.send(get());
    RawServer::Peer peer = server.accept();
    peer.read_request();
    if (!c.answer.empty()) peer.send(c.answer);
    peer.close();
    const Answer seen = client.answers.take();
    ASSERT_FALSE(seen.outcome.ok()) << c.answer;
    EXPECT_EQ(seen.outcome.error().code, c.code);
    EXPECT_THAT(seen.outcome.error().message, HasSubstr(c.message));
    EXPECT_EQ(client.num_connections(), 0);
  }
}

TEST(HttpClient, TriesOnceMoreWhenAKeptConnectionWasClosed) {
  RawServer server;
  TestClient client(server.port);
  {
    client.send(get("/first"));
    RawServer::Peer peer = server.accept();
    peer.read_request();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    EXPECT_TRUE(client.answers.take().outcome.ok());
    client.send(get("/second"));
    peer.read_request();
  }  // closed without an answer
  {
    RawServer::Peer again = server.accept();
    EXPECT_THAT(again.read_request(), HasSubstr("GET /second"));
    again.send("HTTP/1.1 204 No\r\n\r\n");
    EXPECT_EQ(client.answers.take().status, 204);
    client.send(get("/third"));
    again.read_request();
  }
  {
    RawServer::Peer once_more = server.accept();
    EXPECT_THAT(once_more.read_request(), HasSubstr("GET /third"));
  }  // and not a second time
  const Answer failed = client.answers.take();
  ASSERT_FALSE(failed.outcome.ok());
  EXPECT_EQ(failed.outcome.error().code, Code::kUnavailable);
}

TEST(HttpClient, DoesNotTryAgainOnceAnAnswerHasBegun) {
  RawServer server;
  TestClient client(server.port);
  client.send(get("/first"));
  RawServer::Peer peer = server.accept();
  peer.read_request();
  peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  EXPECT_TRUE(client.answers.take().outcome.ok());
  client.send(get("/second"));
  peer.read_request();
  peer.send("H");
  peer.close();
  EXPECT_FALSE(client.answers.take().outcome.ok());
}

TEST(HttpClient, AConnectionThatIsClosedWhileNobodyUsesItIsForgotten) {
  TestServer server;
  TestClient client(server.port);
  EXPECT_EQ(client.exchange(get()).status, 200);
  server.loop.call([&] { server.server->stop_accepting(std::chrono::milliseconds(0)); });
  server.wait_for_connections(0);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (client.num_connections() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(client.num_connections(), 0);
  const Answer refused = client.exchange(get());
  ASSERT_FALSE(refused.outcome.ok());
  EXPECT_THAT(refused.outcome.error().message,
              HasSubstr("cannot connect to 127.0.0.1:" + std::to_string(server.port)));
}

TEST(HttpClient, AnEarlyAnswerIsReadAlthoughTheBodyWasNotTaken) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  TestServer server(limits);
  TestClient client(server.port);
  const Answer answer = client.exchange(post(std::string(20'000'000, 'a')));
  EXPECT_TRUE(answer.outcome.ok()) << answer.outcome.error().message;
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(client.exchange(post("short")).status, 200) << "by another connection";
}

TEST(HttpClient, CancelClosesTheConnectionAndCallsNobody) {
  TestServer server;
  server.keep_requests();
  TestClient client(server.port);
  const HttpClient::RequestId id = client.send(get());
  const auto exchange = server.kept.take();
  std::promise<void> closed;
  server.loop.call([&] { exchange->on_close([&] { closed.set_value(); }); });
  client.loop.call([&] {
    client.client->cancel(id);
    client.client->cancel(id);
    EXPECT_EQ(client.client->num_connections(), 0);
  });
  EXPECT_EQ(closed.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(client.answers.is_empty());
}

TEST(HttpClient, CanBeCancelledAndDestroyedFromItsOwnHandlers) {
  TestServer server;
  const std::string body(300'000, 'x');
  server.on_request = [&](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {}, body});
  };
  LoopThread loop;
  for (const bool destroys : {false, true}) {
    for (const bool in_head : {false, true}) {
      std::promise<void> done;
      std::unique_ptr<HttpClient> client;
      loop.call([&] {
        client = std::make_unique<HttpClient>(loop.loop(),
                                              HttpOrigin{false, "127.0.0.1", server.port, ""});
        auto id = std::make_shared<HttpClient::RequestId>();
        const auto leave = [&, id] {
          if (destroys) {
            client.reset();
          } else {
            client->cancel(*id);
          }
          loop.loop().post([&] { done.set_value(); });
        };
        HttpClient::Handlers handlers;
        handlers.on_head = [=](int, const Headers&) {
          if (in_head) leave();
        };
        handlers.on_body = [=, is_first = true](std::string_view) mutable {
          EXPECT_TRUE(std::exchange(is_first, false)) << "nobody wants to hear more";
          EXPECT_FALSE(in_head);
          leave();
        };
        handlers.on_done = [](const Status&) { ADD_FAILURE(); };
        *id = client->send(get(), std::move(handlers));
      });
      ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
      loop.call([&] { client.reset(); });
    }
  }
  std::promise<void> last_done;
  loop.call([&] {  // from the last handler, which is called once
    auto client = std::make_shared<std::unique_ptr<HttpClient>>(std::make_unique<HttpClient>(
        loop.loop(), HttpOrigin{false, "127.0.0.1", server.port, ""}));
    HttpClient::Handlers handlers;
    handlers.on_done = [client, &last_done](const Status&) {
      client->reset();
      last_done.set_value();
    };
    (*client)->send(get(), std::move(handlers));
  });
  ASSERT_EQ(last_done.get_future().wait_for(kPatience), std::future_status::ready);
  server.wait_for_connections(0);
}

TEST(HttpClient, AHandlerCanSendTheNextRequestOnTheSameConnection) {
  TestServer server;
  TestClient client(server.port);
  std::promise<void> done;
  int left = 100;
  std::function<void()> next = [&] {
    HttpClient::Handlers handlers;
    handlers.on_done = [&](const Status& status) {
      EXPECT_TRUE(status.ok());
      if (--left == 0) return done.set_value();
      next();
    };
    client.client->send(post("x"), std::move(handlers));
  };
  client.loop.call([&] { next(); });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(client.num_connections(), 1);
}

TEST(HttpClient, ConnectsToUnixSocketsAndToNames) {
  const TestFolder folder;
  TestServer server;
  server.loop.call([&] { ASSERT_TRUE(server.server->listen_unix(folder / "s").ok()); });
  TestClient local(HttpOrigin{false, "", 0, folder / "s"});
  EXPECT_EQ(local.exchange(post("unix")).body, "POST /p|unix");
  TestClient named(HttpOrigin{false, "localhost", server.port, ""});
  for (int i = 0; i < 3; ++i) named.send(post("name"));  // one lookup serves them all
  for (int i = 0; i < 3; ++i) EXPECT_EQ(named.answers.take().body, "POST /p|name");

  TestClient nobody(HttpOrigin{false, "", 0, folder / "none"});
  const Answer missing = nobody.exchange(get());
  ASSERT_FALSE(missing.outcome.ok());
  EXPECT_THAT(missing.outcome.error().message, HasSubstr(folder / "none"));
  TestClient unknown(HttpOrigin{false, "host.invalid", 80, ""});
  const Answer unresolved = unknown.exchange(get());
  ASSERT_FALSE(unresolved.outcome.ok());
  EXPECT_EQ(unresolved.outcome.error().code, Code::kUnavailable);
  EXPECT_THAT(unresolved.outcome.error().message, HasSubstr("host.invalid"));
}

// Each stream gets its own numbers, some of them at a time, all of them together.
TEST(HttpClient, TwoThousandStreamsAtOnce) {
  constexpr int kStreams = 2048, kEvents = 20;
  TestServer server;
  std::vector<std::shared_ptr<HttpExchange>> open;
  std::promise<void> all_here;
  server.on_request = [&](std::shared_ptr<HttpExchange> exchange) {
    exchange->begin_stream(200, {});
    open.push_back(std::move(exchange));
    if (open.size() == kStreams) all_here.set_value();
  };
  TestClient client(server.port);
  std::vector<std::string> seen(kStreams);
  std::atomic<int> num_done = 0;
  std::promise<void> all_done;
  client.loop.call([&] {
    for (int i = 0; i < kStreams; ++i) {
      HttpClient::Handlers handlers;
      handlers.on_body = [&, i](std::string_view bytes) { seen[size_t(i)] += bytes; };
      handlers.on_done = [&](const Status& status) {
        EXPECT_TRUE(status.ok()) << status.error().message;
        if (++num_done == kStreams) all_done.set_value();
      };
      client.client->send(get("/" + std::to_string(i)), std::move(handlers));
    }
  });
  ASSERT_EQ(all_here.get_future().wait_for(kPatience), std::future_status::ready);
  for (int event = 0; event < kEvents; ++event) {
    server.loop.call([&] {
      for (const auto& exchange : open) {
        exchange->write(exchange->request().path + ":" + std::to_string(event) + " ");
        if (event == kEvents - 1) exchange->end_stream();
      }
    });
  }
  ASSERT_EQ(all_done.get_future().wait_for(kPatience), std::future_status::ready);
  for (int i = 0; i < kStreams; ++i) {
    std::string expected;
    for (int event = 0; event < kEvents; ++event) {
      expected += "/" + std::to_string(i) + ":" + std::to_string(event) + " ";
    }
    ASSERT_EQ(seen[size_t(i)], expected);
  }
  server.loop.call([&] { open.clear(); });
}

TEST(Urls, AreOriginAndPath) {
  const struct {
    std::string url;
    bool is_tls;
    std::string host;
    int port;
    std::string unix_path, path;
  } good[] = {
      {"http://host", false, "host", 80, "", "/"},
      {"https://host/", true, "host", 443, "", "/"},
      {"http://host:8000/v1/models?a=b#c", false, "host", 8000, "", "/v1/models?a=b"},
      {"http://host?a", false, "host", 80, "", "/?a"},
      {"http://[::1]:8000/x", false, "::1", 8000, "", "/x"},
      {"unix:/run/millrace.sock", false, "", 80, "/run/millrace.sock", "/"},
  };
  for (const auto& c : good) {
    const Result<ParsedUrl> parsed = parse_url(c.url);
    ASSERT_TRUE(parsed.has_value()) << c.url;
    EXPECT_EQ(parsed.value().origin.is_tls, c.is_tls) << c.url;
    EXPECT_EQ(parsed.value().origin.host, c.host) << c.url;
    EXPECT_EQ(parsed.value().origin.port, c.port) << c.url;
    EXPECT_EQ(parsed.value().origin.unix_path, c.unix_path) << c.url;
    EXPECT_EQ(parsed.value().path, c.path) << c.url;
  }
  for (const std::string bad :
       {"", "host", "ftp://host", "http://", "http://:80", "http://host:", "http://host:0",
        "http://host:65536", "http://host:8o", "http://[::1", "http://[::1]x", "http://u@host",
        "http://ho st", "http://host/\r\nX: y", "unix:"}) {
    const Result<ParsedUrl> parsed = parse_url(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().code, Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::net
