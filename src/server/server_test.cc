// The server in this process, over an engine whose answers are written down: streams, clients that
// leave, many at once. What clients see of it is tested from outside (tests/e2e); here it is to be
// seen by the sanitizers.

#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "net/http_client.h"
#include "net/test_http.h"

namespace millrace {
namespace {

using net::HttpClient;
using net::HttpRequest;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::string_view kScript =
    R"({"key": "slow", "delay_ms": 2, "repeat": 200, "pieces": [{"text": "word "}]}
{"key": "fails", "pieces": [{"text": "one "}, {"text": "two"}], "error": {"message": "broken", "after": 1}}
{"key": "silent", "first_delay_ms": 60000, "pieces": [{"text": "late"}]}
{"pieces": [{"text": "Hello"}, {"text": " world"}]}
)";

struct Answer {
  int status = 0;
  net::Headers headers;
  std::string body;
  Status outcome;
};

class ServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string script = ::testing::TempDir() + "/server_test_script.jsonl";
    std::ofstream(script) << kScript;
    EngineOptions options;
    options.load.model_dir = MILLRACE_SOURCE_DIR "/models/nano";
    options.script_file = script;
    Result<std::unique_ptr<Llm>> llm = Llm::open(options);
    ASSERT_TRUE(llm.has_value()) << llm.error().message;
    llm_ = llm.value().release();
    std::filesystem::remove(script);
  }
  static void TearDownTestSuite() { delete llm_; }

  // Starts a server; the client's origin is its address.
  void start(ServerOptions options = {}) {
    options.port = 0;
    options.served_model_names = {"scripted"};
    options.access_log = options.log_stats = false;
    Result<std::unique_ptr<Server>> server = Server::create(*llm_, options, "0");
    ASSERT_TRUE(server.has_value()) << server.error().message;
    server_ = std::move(server.value());
    thread_ = std::thread([this] { server_->run(); });
    origin_ = net::parse_url(server_->address()).value().origin;
    loop_ = std::make_unique<net::LoopThread>();
    loop_->call([this] { client_ = std::make_unique<HttpClient>(loop_->loop(), origin_); });
  }
  void stop() {
    if (!server_) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }
  void TearDown() override {
    stop();
    if (loop_) loop_->call([this] { client_.reset(); });
  }

  HttpClient::RequestId send(const std::string& method, const std::string& path,
                             const std::string& body = "", net::Headers headers = {}) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body;
    request.headers = std::move(headers);
    if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
    auto answer = std::make_shared<Answer>();
    HttpClient::Handlers handlers;
    handlers.on_head = [answer](int status, const net::Headers& got) {
      answer->status = status;
      answer->headers = got;
    };
    handlers.on_body = [answer](std::string_view bytes) { answer->body += bytes; };
    handlers.on_done = [this, answer](const Status& outcome) {
      answer->outcome = outcome;
      answers_.put(*answer);
    };
    return loop_->call([&] { return client_->send(std::move(request), std::move(handlers)); });
  }
  Answer ask(const std::string& method, const std::string& path, const std::string& body = "",
             net::Headers headers = {}) {
    send(method, path, body, std::move(headers));
    return answers_.take();
  }
  static std::string completion(const std::string& prompt, const std::string& more = "") {
    return R"({"prompt": ")" + prompt + R"(", "max_tokens": 300)" + more + "}";
  }
  // Of a stream: all texts in a row. Requires: none has quotes.
  static std::string text_of(const std::string& body) {
    constexpr std::string_view kText = R"("text": ")";
    std::string text;
    for (size_t at = 0; (at = body.find(kText, at)) != body.npos;) {
      at += kText.size();
      text += body.substr(at, body.find('"', at) - at);
    }
    return text;
  }
  int64_t num_running() { return llm_->engine().stats().num_running_requests; }
  bool wait_until_running(int64_t wanted) {
    for (int i = 0; i < 10'000 && num_running() != wanted; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return num_running() == wanted;
  }

  static Llm* llm_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  net::HttpOrigin origin_;
  std::unique_ptr<net::LoopThread> loop_;
  std::unique_ptr<HttpClient> client_;
  net::Mailbox<Answer> answers_;
};
Llm* ServerTest::llm_ = nullptr;

TEST_F(ServerTest, AnswersWholeAndInPieces) {
  start();
  const Answer whole = ask("POST", "/v1/completions", completion("a"));
  EXPECT_EQ(whole.status, 200);
  EXPECT_THAT(whole.body, HasSubstr(R"("text": "Hello world")"));
  const Answer streamed = ask("POST", "/v1/completions", completion("a", R"(, "stream": true)"));
  EXPECT_EQ(streamed.status, 200);
  EXPECT_THAT(streamed.body, HasSubstr(R"("text": "Hello")"));
  EXPECT_THAT(streamed.body, HasSubstr(R"("text": " world")"));
  EXPECT_THAT(streamed.body, EndsWith("data: [DONE]\n\n"));
  for (const char* path : {"/health", "/metrics", "/v1/models", "/v1/millrace/stats",
                           "/openapi.json", "/server_info", "/", "/load"}) {
    EXPECT_EQ(ask("GET", path).status, 200) << path;
  }
}

TEST_F(ServerTest, AFaultHasItsStatusBeforeTheFirstTokenAndAnEventBehindIt) {
  start();
  const Answer whole = ask("POST", "/v1/completions", completion("fails"));
  EXPECT_EQ(whole.status, 500);
  EXPECT_THAT(whole.body, HasSubstr(R"("type": "server_error")"));
  EXPECT_THAT(whole.body, ::testing::Not(HasSubstr("broken"))) << "that is for the log";
  const Answer streamed =
      ask("POST", "/v1/completions", completion("fails", R"(, "stream": true)"));
  EXPECT_EQ(streamed.status, 200);
  EXPECT_THAT(streamed.body, HasSubstr(R"(data: {"error": {"message")"));
  EXPECT_THAT(streamed.body, EndsWith("data: [DONE]\n\n"));
}

TEST_F(ServerTest, ManyAtOnceGetTheSameAsOneAlone) {
  start();
  const std::string body = completion("slow", R"(, "stream": true)");
  constexpr int kMany = 64;
  for (int i = 0; i < kMany; ++i) send("POST", "/v1/completions", body);
  std::string first;
  for (int i = 0; i < kMany; ++i) {
    const Answer answer = answers_.take();
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, EndsWith("data: [DONE]\n\n"));
    if (i == 0) first = text_of(answer.body);
    EXPECT_EQ(text_of(answer.body), first);
  }
  EXPECT_THAT(first, ::testing::StartsWith("word word word "));
  EXPECT_GT(first.size(), 300u);
  EXPECT_TRUE(wait_until_running(0));
}

TEST_F(ServerTest, AClientThatLeavesEndsItsRequestWhereverItIs) {
  start();
  std::vector<HttpClient::RequestId> ids;
  for (int i = 0; i < 8; ++i) {
    ids.push_back(send("POST", "/v1/completions",
                       completion("silent", i % 2 == 0 ? R"(, "stream": true)" : "")));
    ids.push_back(send("POST", "/v1/completions", completion("slow", R"(, "stream": true)")));
  }
  EXPECT_TRUE(wait_until_running(16));
  for (HttpClient::RequestId id : ids) loop_->call([&] { client_->cancel(id); });
  EXPECT_TRUE(wait_until_running(0));
  // And those that leave at once, while they are being parsed.
  for (int i = 0; i < 50; ++i) {
    const HttpClient::RequestId id = send("POST", "/v1/completions", completion("silent"));
    loop_->call([&] { client_->cancel(id); });
  }
  EXPECT_EQ(ask("POST", "/v1/completions", completion("a")).status, 200);
  EXPECT_TRUE(wait_until_running(0));
}

TEST_F(ServerTest, TheEndWaitsForWhatRunsAndGivesUpTheRest) {
  ServerOptions options;
  options.shutdown_timeout_s = 0.3;
  start(options);
  send("POST", "/v1/completions", completion("silent", R"(, "stream": true)"));
  send("POST", "/v1/completions", completion("silent"));
  EXPECT_TRUE(wait_until_running(2));
  stop();
  for (int i = 0; i < 2; ++i) {
    const Answer answer = answers_.take();
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, HasSubstr(R"("finish_reason": "abort")"));
  }
}

TEST_F(ServerTest, ToldTwiceItEndsAtOnce) {
  start();
  send("POST", "/v1/completions", completion("silent"));
  EXPECT_TRUE(wait_until_running(1));
  server_->stop();
  stop();
  EXPECT_THAT(answers_.take().body, HasSubstr("abort"));
}

TEST_F(ServerTest, KeysAreAskedForAndCounted) {
  ServerOptions options;
  options.api_keys = {{"a", "secret", {.max_concurrent_requests = 1}, 0}};
  start(options);
  EXPECT_EQ(ask("POST", "/v1/completions", completion("a")).status, 401);
  const net::Headers key{{"x-api-key", "secret"}};
  EXPECT_EQ(ask("POST", "/v1/completions", completion("a"), key).status, 200);
  const HttpClient::RequestId id = send("POST", "/v1/completions", completion("silent"), key);
  EXPECT_TRUE(wait_until_running(1));
  EXPECT_EQ(ask("POST", "/v1/completions", completion("a"), key).status, 429);
  loop_->call([&] { client_->cancel(id); });
  EXPECT_TRUE(wait_until_running(0));
  EXPECT_EQ(ask("POST", "/v1/completions", completion("a"), key).status, 200);
}

TEST_F(ServerTest, AKeyGivesUpOnlyItsOwnRequests) {
  ServerOptions options;
  options.api_keys = {{"a", "secret-a", {}, 0}, {"b", "secret-b", {}, 0}};
  start(options);
  const net::Headers a{{"x-api-key", "secret-a"}}, b{{"x-api-key", "secret-b"}};
  const std::string ids = R"({"request_ids": ["shared", "unknown"]})";
  send("POST", "/v1/completions", completion("silent", R"(, "request_id": "shared")"), a);
  EXPECT_TRUE(wait_until_running(1));
  EXPECT_EQ(ask("POST", "/abort_requests", ids, b).body, R"({"aborted": []})");
  EXPECT_EQ(num_running(), 1);

  send("POST", "/v1/completions", completion("silent", R"(, "request_id": "shared")"), b);
  EXPECT_TRUE(wait_until_running(2));
  send("POST", "/abort_requests", ids, b);
  for (int i = 0; i < 2; ++i) {
    const Answer answer = answers_.take();  // of the abort and what it ended, in either order
    EXPECT_THAT(answer.body, ::testing::AnyOf(HasSubstr(R"("finish_reason": "abort")"),
                                              R"({"aborted": ["shared"]})"));
  }
  EXPECT_TRUE(wait_until_running(1)) << "the one of the other key goes on";
  send("POST", "/abort_requests", ids, a);
  answers_.take(), answers_.take();
  EXPECT_TRUE(wait_until_running(0));
}

TEST_F(ServerTest, WhoNeedsNoKeyMakesTheServerReadNoLargeBody) {
  ServerOptions options;
  options.api_keys = {{"a", "secret", {}, 0}};
  options.http.max_total_body_bytes = 100'000;
  start(options);
  const auto ask_raw = [&](const std::string& line, const std::string& headers) {
    net::RawClient client(origin_.port);
    client.send(line + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    return client;
  };
  const std::string large = "Content-Length: 90000\r\n", chunked = "Transfer-Encoding: chunked\r\n";
  std::vector<net::RawClient> open;
  for (const std::string line :
       {"GET /health", "GET /metrics", "GET /", "GET /web/app.js", "GET /ping", "POST /ping",
        "OPTIONS /v1/completions", "OPTIONS /nowhere"}) {
    for (const std::string& headers : {large, chunked, large + "Expect: 100-continue\r\n"}) {
      net::RawClient client = ask_raw(line, headers);
      // Without a byte of the body.
      const net::RawResponse response = client.read_response();
      EXPECT_EQ(response.status, line.starts_with("OPTIONS") ? 204 : 413) << line << " " << headers;
      EXPECT_TRUE(response.has("Connection: close\r\n")) << line << " " << headers;
      client.send(headers == chunked ? "11170\r\n" + std::string(70'000, 'x')
                                     : std::string(70'000, 'x'));
      open.push_back(std::move(client));
    }
  }
  for (const std::string length : {"0", "2"}) {
    net::RawClient client = ask_raw("POST /ping", "Content-Length: " + length + "\r\n");
    client.send("{}");
    EXPECT_EQ(client.read_response().status, 200) << length;
  }
  // There is still room for who has one.
  const Answer answer =
      ask("POST", "/v1/completions", completion(std::string(90'000, 'a'), R"(, "temperature": 9)"),
          {{"x-api-key", "secret"}});
  EXPECT_EQ(answer.status, 400) << answer.body;
}

TEST_F(ServerTest, CompressedBodiesAreRefusedAndSaySo) {
  start();
  for (const char* coding : {"gzip", "br", "identity, gzip", "x"}) {
    const Answer answer =
        ask("POST", "/v1/completions", completion("a"), {{"Content-Encoding", coding}});
    EXPECT_EQ(answer.status, 415) << coding;
    EXPECT_THAT(answer.body, HasSubstr(R"({"error": {"message": "Content-Encoding: expected)"));
    EXPECT_THAT(answer.body, HasSubstr(R"("type": "invalid_request_error")"));
    EXPECT_THAT(answer.headers,
                ::testing::Contains(::testing::Pair("accept-encoding", "identity")));
  }
  EXPECT_EQ(ask("POST", "/v1/completions", completion("a"),
                {{"Content-Encoding", "identity"}, {"Content-Encoding", "gzip"}})
                .status,
            415);
  EXPECT_EQ(
      ask("POST", "/v1/completions", completion("a"), {{"Content-Encoding", "Identity"}}).status,
      200);
}

TEST_F(ServerTest, TwoServersAfterEachOtherShareAnEngine) {
  start();
  send("POST", "/v1/completions", completion("slow", R"(, "stream": true)"));
  EXPECT_TRUE(wait_until_running(1));
  server_->stop();
  stop();  // with events still to come
  answers_.take();
  start();
  EXPECT_EQ(ask("POST", "/v1/completions", completion("a")).status, 200);
}

}  // namespace
}  // namespace millrace
