#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <csignal>
#include <fstream>

#include "net/http_client.h"
#include "net/test_http.h"
#include "net/test_tls.h"

namespace millrace::net {
namespace {

using testing::HasSubstr;

class Tls : public testing::Test {
 protected:
  TlsOptions options(const Certificate& certificate) {
    return {certificate.certificate_file, certificate.key_file, "", false, ""};
  }
  void use(TestServer& server, const TlsOptions& options) {
    server.loop.call([&] {
      const Status status = server.server->use_tls(options);
      ASSERT_TRUE(status.ok()) << status.error().message;
    });
  }
  // One request by a client of its own: the body, or the error.
  std::string fetch(int port, const std::string& host, HttpClientOptions options,
                    std::string body = "") {
    LoopThread loop;
    std::unique_ptr<HttpClient> client;
    std::promise<std::string> result;
    std::string seen;
    loop.call([&] {
      client = std::make_unique<HttpClient>(loop.loop(), HttpOrigin{true, host, port, ""}, options);
      HttpClient::Handlers handlers;
      handlers.on_body = [&](std::string_view bytes) { seen += bytes; };
      handlers.on_done = [&](const Status& status) {
        result.set_value(status.ok() ? seen : "error: " + status.error().message);
      };
      HttpRequest request;
      request.method = "POST";
      request.body = std::move(body);
      client->send(std::move(request), std::move(handlers));
    });
    auto future = result.get_future();
    const bool is_there = future.wait_for(kPatience) == std::future_status::ready;
    loop.call([&] { client.reset(); });
    return is_there ? future.get() : "nothing came";
  }

  TestFolder folder_;
  const Certificate ca_ = make_certificate(folder_ / "ca", "Test CA");
  const Certificate leaf_ = make_certificate(folder_ / "leaf", "localhost", &ca_);
};

TEST_F(Tls, CarriesRequestsBothWaysWithVerification) {
  TestServer server;
  use(server, options(leaf_));
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    EXPECT_EQ(fetch(server.port, host, {ca_.certificate_file, true}, "hi"), "POST /|hi");
  }
  const std::string large(5'000'000, 'x');  // does not fit into any buffer
  EXPECT_EQ(fetch(server.port, "127.0.0.1", {ca_.certificate_file, true}, large),
            "POST /|" + large);
}

TEST_F(Tls, FlushSendsAtOnceAndDrainedIsToldAllTheSame) {
  TestServer server;
  use(server, options(leaf_));
  server.keep_requests();
  std::string seen;
  std::thread client([&] {
    seen = fetch(server.port, "127.0.0.1", {ca_.certificate_file, true});
  });
  const auto exchange = server.kept.take();
  std::promise<void> drained;
  size_t num_pending = 1;
  server.loop.call([&] {
    exchange->on_drained([&] {
      exchange->on_drained(nullptr);
      drained.set_value();
    });
    exchange->begin_stream(200, {});
    exchange->write("event");
    exchange->flush();
    num_pending = exchange->num_pending_bytes();
  });
  EXPECT_EQ(num_pending, 0u);
  EXPECT_EQ(drained.get_future().wait_for(kPatience), std::future_status::ready);
  server.loop.call([&] { exchange->end_stream(); });
  client.join();
  EXPECT_EQ(seen, "event");
}

TEST_F(Tls, TheClientRefusesWhomItDoesNotKnow) {
  TestServer server;
  use(server, options(leaf_));
  EXPECT_THAT(fetch(server.port, "127.0.0.1", {"", true}),
              testing::AllOf(HasSubstr("error: TLS with 127.0.0.1"), HasSubstr("certificate")));
  EXPECT_EQ(fetch(server.port, "127.0.0.1", {"", false}), "POST /|");
  TestServer wrong_name;
  const Certificate self_signed = make_certificate(folder_ / "self", "localhost");
  use(wrong_name, options(self_signed));
  EXPECT_THAT(fetch(wrong_name.port, "127.0.0.1", {ca_.certificate_file, true}),
              HasSubstr("error: "));
}

TEST_F(Tls, StreamsAndNoticesThatAClientHasGone) {
  TestServer server;
  use(server, options(leaf_));
  server.keep_requests();
  LoopThread loop;
  std::unique_ptr<HttpClient> client;
  Mailbox<std::string> events;
  loop.call([&] {
    client = std::make_unique<HttpClient>(loop.loop(),
                                          HttpOrigin{true, "localhost", server.port, ""},
                                          HttpClientOptions{ca_.certificate_file, true});
    HttpClient::Handlers handlers;
    handlers.on_body = [&](std::string_view bytes) { events.put(std::string(bytes)); };
    handlers.on_done = [](const Status&) { ADD_FAILURE(); };
    client->send({}, std::move(handlers));
  });
  const auto exchange = server.kept.take();
  std::promise<void> closed;
  server.loop.call([&] {
    exchange->begin_stream(200, {});
    exchange->on_close([&] { closed.set_value(); });
  });
  for (const std::string event : {"one", "two"}) {
    server.loop.call([&] { exchange->write(event); });
    EXPECT_EQ(events.take(), event);
  }
  loop.call([&] { client.reset(); });
  EXPECT_EQ(closed.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(Tls, ANewCertificateIsForNewConnections) {
  TestServer server;
  use(server, options(leaf_));
  LoopThread loop;
  std::unique_ptr<HttpClient> old_client;
  const auto send = [&] {
    std::promise<bool> done;
    loop.call([&] {
      HttpClient::Handlers handlers;
      handlers.on_done = [&](const Status& status) { done.set_value(status.ok()); };
      old_client->send({}, std::move(handlers));
    });
    return done.get_future().get();
  };
  loop.call([&] {
    old_client = std::make_unique<HttpClient>(loop.loop(),
                                              HttpOrigin{true, "localhost", server.port, ""},
                                              HttpClientOptions{ca_.certificate_file, true});
  });
  EXPECT_TRUE(send());

  const Certificate other_ca = make_certificate(folder_ / "other", "Other CA");
  const Certificate other = make_certificate(folder_ / "new", "localhost", &other_ca);
  use(server, options(other));
  EXPECT_TRUE(send()) << "the old connection goes on";
  EXPECT_EQ(server.num_connections(), 1);
  EXPECT_EQ(fetch(server.port, "localhost", {other_ca.certificate_file, true}), "POST /|");
  EXPECT_THAT(fetch(server.port, "localhost", {ca_.certificate_file, true}), HasSubstr("error: "));
  loop.call([&] { old_client.reset(); });
}

TEST_F(Tls, ErrorsNameTheFileAndLeaveWhatWas) {
  TestServer server;
  use(server, options(leaf_));
  std::ofstream(folder_ / "broken") << "no certificate";
  const auto error_of = [&](const TlsOptions& options) {
    return server.loop.call([&] {
      const Status status = server.server->use_tls(options);
      EXPECT_FALSE(status.ok());
      return status.ok() ? "" : status.error().message;
    });
  };
  TlsOptions bad = options(leaf_);
  bad.certificate_file = folder_ / "missing";
  EXPECT_THAT(error_of(bad), HasSubstr("certificate file " + (folder_ / "missing") + ": "));
  bad.certificate_file = folder_ / "broken";
  EXPECT_THAT(error_of(bad), HasSubstr("certificate file " + (folder_ / "broken") + ": "));
  bad = options(leaf_);
  bad.key_file = ca_.key_file;
  EXPECT_THAT(error_of(bad), HasSubstr("key file " + ca_.key_file));
  bad = options(leaf_);
  bad.requires_client_certificate = true;
  bad.ca_file = folder_ / "broken";
  EXPECT_THAT(error_of(bad), HasSubstr("CA file " + (folder_ / "broken")));
  bad = options(leaf_);
  bad.ciphers = "ROT13";
  EXPECT_THAT(error_of(bad), HasSubstr("ciphers ROT13"));
  EXPECT_EQ(fetch(server.port, "localhost", {ca_.certificate_file, true}), "POST /|");
}

// The client's side by OpenSSL itself: what ours does not offer.
class OpensslClient {
 public:
  OpensslClient(int port, const std::function<void(SSL_CTX*, SSL*)>& prepare)
      : raw_(port), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
    SSL_CTX_set_security_level(context_, 0);
    SSL* ssl = nullptr;
    prepare(context_, nullptr);
    ssl = SSL_new(context_);
    prepare(nullptr, ssl);
    SSL_set_fd(ssl, raw_.fd());
    ssl_ = ssl;
    is_connected_ = SSL_connect(ssl_) == 1;
  }
  ~OpensslClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    ERR_clear_error();
    std::signal(SIGPIPE, old_handler_);
  }
  SSL* ssl() { return ssl_; }
  bool is_connected() const { return is_connected_; }
  std::string exchange(std::string_view request) {
    if (!is_connected_ || SSL_write(ssl_, request.data(), int(request.size())) <= 0) return "";
    char buffer[4096];
    const int n = SSL_read(ssl_, buffer, sizeof buffer);
    return n > 0 ? std::string(buffer, size_t(n)) : "";
  }

 private:
  void (*const old_handler_)(int) = std::signal(SIGPIPE, SIG_IGN);  // its sockets need that
  RawClient raw_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  bool is_connected_ = false;
};

const std::string kGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_F(Tls, ClientCertificatesAreAskedForAndVerified) {
  TestServer server;
  TlsOptions mutual = options(leaf_);
  mutual.requires_client_certificate = true;
  mutual.ca_file = ca_.certificate_file;
  use(server, mutual);
  const auto with = [&](const Certificate* certificate) {
    OpensslClient client(server.port, [&](SSL_CTX* context, SSL*) {
      if (context == nullptr || certificate == nullptr) return;
      SSL_CTX_use_certificate(context, certificate->x509.get());
      SSL_CTX_use_PrivateKey(context, certificate->key.get());
    });
    return client.exchange(kGet);
  };
  const Certificate known = make_certificate(folder_ / "client", "client", &ca_);
  const Certificate stranger = make_certificate(folder_ / "stranger", "client");
  EXPECT_THAT(with(&known), HasSubstr("200 OK"));
  EXPECT_EQ(with(nullptr), "");
  EXPECT_EQ(with(&stranger), "");
}

TEST_F(Tls, Speaks12And13AndHttp11Only) {
  TestServer server;
  use(server, options(leaf_));
  const auto with_version = [&](int version) {
    OpensslClient client(server.port, [&](SSL_CTX* context, SSL*) {
      if (context != nullptr) SSL_CTX_set_max_proto_version(context, version);
    });
    return client.exchange(kGet) != "";
  };
  EXPECT_TRUE(with_version(TLS1_3_VERSION));
  EXPECT_TRUE(with_version(TLS1_2_VERSION));
  EXPECT_FALSE(with_version(TLS1_1_VERSION));

  const auto with_alpn = [&](const std::string& protocols) {
    OpensslClient client(server.port, [&](SSL_CTX*, SSL* ssl) {
      if (ssl == nullptr) return;
      SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(protocols.data()),
                          unsigned(protocols.size()));
    });
    const unsigned char* selected = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(client.ssl(), &selected, &size);
    const std::string name = size ? std::string(reinterpret_cast<const char*>(selected), size) : "";
    return client.exchange(kGet) == "" ? "refused" : name;
  };
  EXPECT_EQ(with_alpn("\x02h2\x08http/1.1"), "http/1.1");
  EXPECT_EQ(with_alpn("\x02h2"), "refused");

  // Pipelined and byte by byte, as without TLS.
  OpensslClient client(server.port, [](SSL_CTX*, SSL*) {});
  for (const char c : kGet.substr(0, kGet.size() - 1)) SSL_write(client.ssl(), &c, 1);
  EXPECT_THAT(client.exchange("\n" + kGet), HasSubstr("GET /|"));
}

TEST_F(Tls, ChosenCiphersAreUsed) {
  TestServer server;
  TlsOptions chosen = options(leaf_);
  chosen.ciphers = "TLS_CHACHA20_POLY1305_SHA256:ECDHE-ECDSA-AES256-GCM-SHA384";
  use(server, chosen);
  for (const auto& [version, cipher] :
       {std::pair<int, std::string>{TLS1_3_VERSION, "TLS_CHACHA20_POLY1305_SHA256"},
        {TLS1_2_VERSION, "ECDHE-ECDSA-AES256-GCM-SHA384"}}) {
    OpensslClient client(server.port, [&, version = version](SSL_CTX* context, SSL*) {
      if (context != nullptr) SSL_CTX_set_max_proto_version(context, version);
    });
    ASSERT_TRUE(client.is_connected());
    EXPECT_EQ(SSL_get_cipher_name(client.ssl()), cipher);
  }
}

TEST_F(Tls, AHandshakeThatDoesNotComeIsGivenUp) {
  HttpLimits limits;
  limits.header_timeout = std::chrono::milliseconds(100);
  TestServer server(limits);
  use(server, options(leaf_));
  RawClient silent(server.port), plain(server.port);
  plain.send(kGet);
  EXPECT_THAT(plain.read_all(), testing::Not(HasSubstr("HTTP"))) << "it is no TLS";
  EXPECT_TRUE(silent.is_closed());
  server.wait_for_connections(0);
}

}  // namespace
}  // namespace millrace::net
