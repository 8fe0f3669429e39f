#include "net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ctime>
#include <fstream>

#include "net/test_http.h"

namespace millrace::net {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

const std::string kGet = "GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n";

std::string post(std::string_view body, std::string_view headers = "") {
  return "POST /p HTTP/1.1\r\nHost: x\r\n" + std::string(headers) +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

TEST(HttpServer, AnswersOneRequestAfterAnotherOnOneConnection) {
  TestServer server;
  RawClient client(server.port);
  for (int i = 0; i < 3; ++i) {
    const RawResponse response = client.exchange(i == 1 ? post("hello") : kGet);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, i == 1 ? "POST /p|hello" : "GET /a?b=c|");
    EXPECT_TRUE(response.has("HTTP/1.1 200 OK\r\n"));
    EXPECT_TRUE(response.has("\r\nContent-Type: text/plain\r\n"));
    EXPECT_TRUE(response.has("\r\nDate: ")) << response.head;
    EXPECT_FALSE(response.has("Connection"));
  }
  EXPECT_EQ(server.num_connections(), 1);
  const Done done = server.done.take();
  EXPECT_EQ(done.path, "/a");
  EXPECT_EQ(done.record.status, 200);
  EXPECT_TRUE(done.record.is_complete);
  EXPECT_EQ(done.record.num_response_bytes, std::string("GET /a?b=c|").size());
  EXPECT_EQ(server.done.take().record.num_request_bytes, 5u);
}

TEST(HttpServer, StreamsInChunks) {
  TestServer server;
  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->begin_stream(200, {{"Content-Type", "text/event-stream"}});
    exchange->write("data: 1\n\n");
    exchange->write("");
    exchange->write("data: 2\n\n");
    EXPECT_GT(exchange->num_pending_bytes(), 0u);
    EXPECT_TRUE(exchange->is_open());
    exchange->end_stream();
    EXPECT_FALSE(exchange->is_open());
  };
  RawClient client(server.port);
  const RawResponse response = client.exchange(kGet);
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(response.body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(client.exchange(kGet).body, response.body) << "the connection is kept";
  EXPECT_EQ(server.done.take().record.num_response_bytes, 18u);
}

TEST(HttpServer, SendsEachPieceOfAStreamWhenItIsWritten) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port);
  client.send(kGet);
  const auto exchange = server.kept.take();
  server.loop.call([&] { exchange->begin_stream(200, {}); });
  EXPECT_THAT(client.read_some(), HasSubstr("\r\n\r\n"));
  for (int i = 0; i < 3; ++i) {
    server.loop.call([&] { exchange->write("event"); });
    EXPECT_EQ(client.read_some(), "5\r\nevent\r\n");
  }
  server.loop.call([&] {
    exchange->write("a");
    exchange->write("b");
    exchange->end_stream();
  });
  EXPECT_EQ(client.read_some(), "1\r\na\r\n1\r\nb\r\n0\r\n\r\n") << "one write for one turn";
}

TEST(HttpServer, ReadsRequestsByteByByteAndAnswersEachOnce) {
  TestServer server;
  RawClient client(server.port);
  const std::string chunked =
      "POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "1\r\nh\r\n1\r\ne\r\n1\r\ny\r\n0\r\nTrailer: dropped\r\n\r\n";
  for (const std::string& request : {post("hello"), chunked}) {
    for (const char c : request) client.send(std::string(1, c));
    EXPECT_EQ(client.read_response().body, request == chunked ? "POST /p|hey" : "POST /p|hello");
  }
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port);
  client.send(post("1") + post("2") + kGet);
  for (int i = 0; i < 3; ++i) {
    const auto exchange = server.kept.take();
    EXPECT_TRUE(server.kept.is_empty()) << "one at a time";
    server.loop.call([&] { exchange->respond({200, {}, exchange->request().body + "."}); });
  }
  EXPECT_EQ(client.read_response().body, "1.");
  EXPECT_EQ(client.read_response().body, "2.");
  EXPECT_EQ(client.read_response().body, ".");
}

TEST(HttpServer, KeepsThousandsOfPipelinedRequestsWithoutLosingOne) {
  TestServer server;
  RawClient client(server.port);
  constexpr int kCount = 5000;
  std::thread sender([&] {
    std::string all;
    for (int i = 0; i < kCount; ++i) all += post(std::to_string(i));
    EXPECT_TRUE(client.send(all));
  });
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(client.read_response().body, "POST /p|" + std::to_string(i));
  }
  sender.join();
}

TEST(HttpServer, SaysContinueToWhoAsksBeforeTheBody) {
  TestServer server;
  RawClient client(server.port);
  client.send("POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 100);
  EXPECT_EQ(client.exchange("hi").body, "POST /p|hi");
}

TEST(HttpServer, RefusesABodyByItsHeaderBeforeItComes) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  TestServer server(limits);
  server.on_header = [](HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.header("authorization")) return std::nullopt;
    return HttpResponse{401, {{"WWW-Authenticate", "Bearer"}}, "no key"};
  };
  RawClient stranger(server.port);
  const RawResponse refused = stranger.exchange(
      "POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_TRUE(refused.has("Connection: close"));
  EXPECT_TRUE(refused.has("WWW-Authenticate: Bearer"));
  EXPECT_TRUE(stranger.is_closed());
  EXPECT_EQ(server.done.take().record.status, 401);

  RawClient too_large(server.port);
  const RawResponse large = too_large.exchange(
      "POST /p HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(large.body, HasSubstr("1000 bytes"));
  EXPECT_TRUE(too_large.is_closed());
  const Done done = server.done.take();
  EXPECT_EQ(done.path, "/p") << "it was read that far";
}

TEST(HttpServer, ARefusalWithoutABodyKeepsTheConnection) {
  TestServer server;
  server.on_header = [](HttpRequest&) { return HttpResponse{404, {}, "nothing"}; };
  RawClient client(server.port);
  EXPECT_EQ(client.exchange(kGet).status, 404);
  EXPECT_EQ(client.exchange(kGet).status, 404);
}

TEST(HttpServer, HeadersThatOnHeaderAddsAreSeenByTheHandler) {
  TestServer server;
  server.on_header = [](HttpRequest& request) -> std::optional<HttpResponse> {
    request.headers.emplace_back("x-request-id", "7");
    return std::nullopt;
  };
  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {}, *exchange->request().header("x-request-id")});
  };
  RawClient client(server.port);
  EXPECT_EQ(client.exchange(post("x")).body, "7");
}

TEST(HttpServer, MalformedRequestsGetAnAnswerAndTheConnectionEnds) {
  TestServer server;
  for (const auto& [request, status] : {
           std::pair<std::string, int>{"GET / HTTP/1.1\r\n\r\n", 400},
           {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505},
           {"GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(70'000, 'a') + "\r\n\r\n", 431},
           {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400},
           {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n", 413},
           {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400},
           {"\x16\x03\x01", 400},
       }) {
    RawClient client(server.port);
    const RawResponse response = client.exchange(request);
    EXPECT_EQ(response.status, status);
    EXPECT_THAT(response.body, HasSubstr("error: "));
    EXPECT_TRUE(response.has("Connection: close"));
    EXPECT_TRUE(client.is_closed());
    EXPECT_EQ(server.done.take().record.status, status);
  }
  server.wait_for_connections(0);
}

// Closing with bytes unread would make the system throw the answer away.
TEST(HttpServer, AClientThatGoesOnSendingCanStillReadWhyItWasRefused) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  TestServer server(limits);
  RawClient client(server.port);
  client.send("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n");
  EXPECT_TRUE(client.send(std::string(50'000'000, 'a'))) << "it is taken and dropped";
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 413);
  EXPECT_TRUE(response.is_complete);
  EXPECT_TRUE(client.is_closed());
  EXPECT_FALSE(client.was_reset());
  client.close();
  server.wait_for_connections(0);
}

TEST(HttpServer, HeadHasTheHeadersOfGetAndNoBody) {
  TestServer server;
  RawClient client(server.port);
  client.send("HEAD /abc HTTP/1.1\r\nHost: x\r\n\r\n");
  const RawResponse response = client.read_response(true);
  EXPECT_TRUE(response.has("Content-Length: 10\r\n")) << response.head;
  EXPECT_EQ(client.exchange(kGet).body, "GET /a?b=c|") << "no body was between them";

  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->begin_stream(200, {});
    exchange->write("nobody reads it");
    exchange->end_stream();
  };
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(client.read_response(true).has("Transfer-Encoding: chunked"));
  EXPECT_EQ(client.exchange(kGet).body, "nobody reads it");
}

TEST(HttpServer, AnswersWithoutABodyHaveNoLength) {
  TestServer server;
  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({exchange->request().path == "/304" ? 304 : 204, {}, ""});
  };
  RawClient client(server.port);
  for (const std::string path : {"/204", "/304"}) {
    const RawResponse response =
        client.exchange("OPTIONS " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ("/" + std::to_string(response.status), path);
    EXPECT_FALSE(response.has("Content-Length"));
  }
}

TEST(HttpServer, SpeaksHttp10) {
  TestServer server;
  {
    RawClient client(server.port);
    const RawResponse response = client.exchange("GET / HTTP/1.0\r\n\r\n");
    EXPECT_EQ(response.body, "GET /|");
    EXPECT_TRUE(response.has("Connection: close"));
    EXPECT_TRUE(client.is_closed());
  }
  RawClient client(server.port);
  for (int i = 0; i < 2; ++i) {
    const RawResponse kept = client.exchange("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_TRUE(kept.has("Connection: keep-alive"));
    EXPECT_EQ(kept.body, "GET /|");
  }
  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->begin_stream(200, {});
    exchange->write("until ");
    exchange->write("close");
    exchange->end_stream();
  };
  const RawResponse stream = client.exchange("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_FALSE(stream.has("Transfer-Encoding"));
  EXPECT_EQ(stream.body, "until close");
  EXPECT_FALSE(client.was_reset());
}

TEST(HttpServer, ClosesWhenTheClientAsksForIt) {
  TestServer server;
  RawClient client(server.port);
  const RawResponse response = client.exchange(post("x", "Connection: close\r\n"));
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.has("Connection: close"));
  EXPECT_TRUE(client.is_closed());
  server.wait_for_connections(0);
}

// The client of a request that waits, of one whose answer is under way, and of one that was still
// sending: the handler hears of the first two at once.
TEST(HttpServer, NoticesAtOnceThatAClientHasGone) {
  TestServer server;
  server.keep_requests();
  for (const bool resets : {false, true}) {
    for (const bool streams : {false, true}) {
      RawClient client(server.port);
      client.send(streams ? post("body") : kGet);
      const auto exchange = server.kept.take();
      std::promise<Clock::time_point> closed;
      server.loop.call([&] {
        if (streams) {
          exchange->begin_stream(200, {});
          exchange->write("first");
        }
        exchange->on_close([&] { closed.set_value(Clock::now()); });
      });
      if (streams) client.read_some();
      const Clock::time_point left = Clock::now();
      if (resets) client.reset();
      client.close();
      auto future = closed.get_future();
      ASSERT_EQ(future.wait_for(kPatience), std::future_status::ready);
      EXPECT_LT(future.get() - left, milliseconds(100));
      server.loop.call([&] {
        EXPECT_FALSE(exchange->is_open());
        EXPECT_EQ(exchange->num_pending_bytes(), 0u);
        if (streams) {
          exchange->write("nobody reads it");
          exchange->end_stream();
        } else {
          exchange->respond({200, {}, "nobody reads it"});
        }
        exchange->abort();
      });
      const Done done = server.done.take();
      EXPECT_FALSE(done.record.is_complete);
      EXPECT_EQ(done.record.status, streams ? 200 : 0);
    }
  }
  server.loop.call([&] { EXPECT_EQ(server.server->num_exchanges(), 0); });

  RawClient client(server.port);
  client.send("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf");
  server.wait_for_connections(1);
  client.close();
  const Done done = server.done.take();
  EXPECT_EQ(done.record.status, 0);
  EXPECT_EQ(done.record.num_request_bytes, 4u);
}

TEST(HttpServer, WhoAsksLateHearsThatTheClientHasGone) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port);
  client.send(kGet);
  const auto exchange = server.kept.take();
  client.close();
  server.wait_for_connections(0);
  std::promise<void> closed;
  server.loop.call([&] { exchange->on_close([&] { closed.set_value(); }); });
  EXPECT_EQ(closed.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(HttpServer, AClientThatSendsOnlyAndLeavesBehindPipelinedRequestsIsNoticed) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port);
  client.send(kGet);
  const auto exchange = server.kept.take();
  std::promise<void> closed;
  server.loop.call([&] { exchange->on_close([&] { closed.set_value(); }); });
  std::string more;
  while (more.size() < 100'000) more += kGet;  // more than is kept
  client.send(more);
  client.close();
  EXPECT_EQ(closed.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(HttpServer, AHalfClosedClientGetsAnAnswerThatIsComplete) {
  TestServer server;
  std::string body(8'000'000, 'b');
  server.on_request = [&](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {}, body});
  };
  RawClient client(server.port, 4096);
  client.send(kGet);
  const std::string first = client.read_some();
  client.shutdown_write();
  EXPECT_GE((first + client.read_all()).size(), body.size());
  EXPECT_TRUE(server.done.take().record.is_complete);
}

TEST(HttpServer, TellsHowMuchIsPendingAndWhenItIsGone) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port, 4096);
  client.send(kGet);
  const auto exchange = server.kept.take();
  std::promise<void> drained;
  const std::string event(100'000, 'e');
  int num_events = 0;
  server.loop.call([&] { exchange->begin_stream(200, {}); });
  do {
    server.loop.call([&] { exchange->write(event); });
    ++num_events;
  } while (server.loop.call([&] { return exchange->num_pending_bytes(); }) < 3 * event.size());
  server.loop.call([&] { exchange->on_drained([&] { drained.set_value(); }); });
  std::thread reader([&] {
    const RawResponse response = client.read_response();
    EXPECT_TRUE(response.is_complete);
    EXPECT_EQ(response.body.size(), size_t(num_events) * event.size());
  });
  ASSERT_EQ(drained.get_future().wait_for(kPatience), std::future_status::ready);
  server.loop.call([&] {
    EXPECT_EQ(exchange->num_pending_bytes(), 0u);
    exchange->end_stream();
  });
  reader.join();
}

TEST(HttpServer, FlushSendsAtOnceAndDrainedIsToldAllTheSame) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port);
  client.send(kGet);
  const auto exchange = server.kept.take();
  std::promise<void> drained;
  size_t num_pending_before = 0, num_pending_after = 0;
  server.loop.call([&] {
    exchange->on_drained([&] {
      exchange->on_drained(nullptr);
      drained.set_value();
    });
    exchange->begin_stream(200, {});
    exchange->write("event");
    num_pending_before = exchange->num_pending_bytes();
    exchange->flush();
    num_pending_after = exchange->num_pending_bytes();
  });
  EXPECT_GT(num_pending_before, 0u);
  EXPECT_EQ(num_pending_after, 0u) << "not only behind the turn";
  EXPECT_EQ(drained.get_future().wait_for(kPatience), std::future_status::ready);
  server.loop.call([&] { exchange->end_stream(); });
  EXPECT_EQ(client.read_response().body, "event");
}

TEST(HttpServer, WhatFlushCannotSendIsSentAsTheClientReads) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port, 4096);
  client.send(kGet);
  const auto exchange = server.kept.take();
  std::promise<void> drained;
  const std::string event(20'000'000, 'e');
  size_t num_pending = 0;
  server.loop.call([&] {
    exchange->on_drained([&] {
      exchange->on_drained(nullptr);
      drained.set_value();
    });
    exchange->begin_stream(200, {});
    exchange->write(event);
    exchange->flush();
    num_pending = exchange->num_pending_bytes();
    exchange->flush();  // nothing more fits
  });
  EXPECT_GT(num_pending, 0u);
  EXPECT_LT(num_pending, event.size());
  std::thread reader([&] { EXPECT_EQ(client.read_response().body, event); });
  EXPECT_EQ(drained.get_future().wait_for(kPatience), std::future_status::ready);
  server.loop.call([&] { exchange->end_stream(); });
  reader.join();
}

TEST(HttpServer, WhatOneAnswerFlushedIsNotDrainedForTheNext) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port);
  client.send(kGet + kGet);
  const auto first = server.kept.take();
  int num_drained = 0;
  server.loop.call([&] {
    first->begin_stream(200, {});
    first->write("a");
    first->flush();
    first->write("b");
    first->end_stream();
    server.on_request = [&](std::shared_ptr<HttpExchange> exchange) {
      exchange->on_drained([&] { ++num_drained; });
      server.kept.put(std::move(exchange));
    };
  });
  EXPECT_EQ(client.read_response().body, "ab");
  const auto second = server.kept.take();
  server.loop.call([&] {  // behind the turn that ended the first and brought it
    EXPECT_EQ(num_drained, 0) << "nothing was written yet";
    second->respond({200, {}, "c"});
  });
  EXPECT_EQ(client.read_response().body, "c");
}

TEST(HttpServer, DrainedIsCalledEachTimeAsLongAsItIsSet) {
  TestServer server;
  server.keep_requests();
  RawClient client(server.port);
  client.send(kGet);
  const auto exchange = server.kept.take();
  // The stream feeds itself and ends from within the callback.
  server.loop.call([&] {
    exchange->begin_stream(200, {});
    auto left = std::make_shared<int>(100);
    exchange->on_drained([exchange, left] {
      exchange->write("x");
      if (--*left == 0) exchange->end_stream();
    });
  });
  EXPECT_EQ(client.read_response().body, std::string(100, 'x'));
}

TEST(HttpServer, AReaderThatTakesNothingIsAborted) {
  HttpLimits limits;
  limits.write_timeout = milliseconds(200);
  TestServer server(limits);
  server.keep_requests();
  RawClient client(server.port, 4096), normal(server.port);
  client.send(kGet);
  const auto exchange = server.kept.take();
  std::promise<void> closed;
  server.loop.call([&] {
    exchange->begin_stream(200, {});
    exchange->write(std::string(20'000'000, 'x'));
    exchange->on_close([&] { closed.set_value(); });
  });
  // A hundred times as long: what the system moves by itself does not go on as long as that.
  ASSERT_EQ(closed.get_future().wait_for(kPatience), std::future_status::ready);
  client.read_all();
  EXPECT_TRUE(client.was_reset()) << "the system must not go on offering it";
  const ExchangeRecord record = server.done.take().record;
  EXPECT_FALSE(record.is_complete);
  EXPECT_TRUE(record.was_unread);
  server.on_request = nullptr;
  EXPECT_EQ(normal.exchange(kGet).status, 200);
}

TEST(HttpServer, AReaderThatTakesLittleIsServed) {
  HttpLimits limits;
  limits.write_timeout = milliseconds(400);
  TestServer server(limits);
  const std::string body(3'000'000, 'b');
  server.on_request = [&](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {}, body});
  };
  RawClient client(server.port, 4096);
  client.send(kGet);
  const Clock::time_point begin = Clock::now();
  size_t num_bytes = 0;
  while (Clock::now() - begin < 3 * limits.write_timeout) {  // a little at a time
    const std::string some = client.read_some();
    ASSERT_FALSE(some.empty());
    num_bytes += some.size();
    ::poll(nullptr, 0, 10);
  }
  while (num_bytes < body.size()) {
    const std::string some = client.read_some();
    ASSERT_FALSE(some.empty());
    num_bytes += some.size();
  }
}

TEST(HttpServer, SlowRequestsAreRefusedAndIdleConnectionsClosed) {
  HttpLimits limits;
  limits.header_timeout = milliseconds(200);
  limits.body_timeout = milliseconds(200);
  limits.idle_timeout = milliseconds(500);
  TestServer server(limits);
  RawClient header(server.port), body(server.port), idle(server.port), fresh(server.port);
  header.send("GET / HT");
  body.send("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabc");
  EXPECT_EQ(idle.exchange(kGet).status, 200);
  // A byte of the header now and then does not help, one of the body does.
  std::thread dripping([&] {
    while (header.send("x")) ::poll(nullptr, 0, 20);
  });
  const RawResponse late = header.read_response();
  EXPECT_EQ(late.status, 408);
  EXPECT_TRUE(late.has("Connection: close"));
  EXPECT_EQ(body.read_response().status, 408);
  EXPECT_TRUE(body.is_closed());
  EXPECT_EQ(idle.read_all(), "") << "no answer to a question that nobody asked";
  EXPECT_EQ(fresh.read_all(), "");
  header.shutdown_write();
  dripping.join();
  header.close();
  body.close();
  server.wait_for_connections(0);
}

TEST(HttpServer, ABodyThatComesSlowlyButComesIsRead) {
  HttpLimits limits;
  limits.body_timeout = milliseconds(300);
  TestServer server(limits);
  RawClient client(server.port);
  client.send("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n");
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < 20; ++i) {
    client.send("x");
    ::poll(nullptr, 0, 30);
  }
  ASSERT_GT(Clock::now() - begin, limits.body_timeout);
  EXPECT_EQ(client.read_response().body, "POST /p|" + std::string(20, 'x'));
}

TEST(HttpServer, ARequestThatWaitsForItsAnswerHasNoTimeout) {
  HttpLimits limits;
  limits.idle_timeout = limits.header_timeout = limits.body_timeout = limits.write_timeout =
      milliseconds(50);
  TestServer server(limits);
  server.keep_requests();
  RawClient client(server.port);
  client.send(kGet);
  const auto exchange = server.kept.take();
  ::poll(nullptr, 0, 300);
  server.loop.call([&] { exchange->respond({200, {}, "at last"}); });
  EXPECT_EQ(client.read_response().body, "at last");
}

TEST(HttpServer, BodiesThatComeInTogetherHaveALimit) {
  HttpLimits limits;
  limits.max_total_body_bytes = 1000;
  TestServer server(limits);
  RawClient first(server.port);
  const std::string head = "POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: ";
  first.send(head + "700\r\n\r\n" + std::string(600, 'a'));
  // It is a rule about bytes that are here: only when they are, the next one is refused.
  const auto end = Clock::now() + kPatience;
  int status = 0;
  while (status != 503 && Clock::now() < end) {
    RawClient second(server.port);
    status = second.exchange(head + "500\r\n\r\n" + std::string(500, 'b')).status;
  }
  EXPECT_EQ(status, 503);
  RawClient chunked(server.port);
  chunked.send("POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(chunked.exchange("1f4\r\n" + std::string(500, 'c')).status, 503);
  first.send(std::string(100, 'a'));
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_EQ(first.exchange(post(std::string(1000, 'd'))).status, 200) << "the room is free again";
}

TEST(HttpServer, ConnectionsBeyondTheLimitWaitUntilOneHasGone) {
  HttpLimits limits;
  limits.max_connections = 2;
  TestServer server(limits);
  RawClient first(server.port), second(server.port);
  EXPECT_EQ(first.exchange(kGet).status, 200);
  EXPECT_EQ(second.exchange(kGet).status, 200);
  RawClient third(server.port);
  third.send(kGet);
  EXPECT_EQ(first.exchange(kGet).status, 200);
  EXPECT_EQ(server.num_connections(), 2);
  second.close();
  EXPECT_EQ(third.read_response().status, 200);
}

TEST(HttpServer, GoesOnWhenThereAreDescriptorsAgain) {
  TestServer server;
  RawClient client(server.port), waiting(server.port);
  EXPECT_EQ(client.exchange(kGet).status, 200);
  server.wait_for_connections(2);
  // No descriptor is left for the third one.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  RawClient third(server.port, [&] {
    const int lowest_free = ::dup(0);
    ::close(lowest_free);
    const rlimit none{rlim_t(lowest_free), old.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  });
  third.send(kGet);
  const clock_t before = std::clock();
  ::poll(nullptr, 0, 250);
  EXPECT_LT(double(std::clock() - before) / CLOCKS_PER_SEC, 0.1) << "it must not spin";
  EXPECT_EQ(client.exchange(kGet).status, 200);
  EXPECT_EQ(server.num_connections(), 2);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(third.read_response().status, 200);
}

TEST(HttpServer, AbortCutsTheAnswerSoThatTheClientSeesIt) {
  TestServer server;
  server.keep_requests();
  for (const std::string version : {"1.1", "1.0"}) {
    RawClient client(server.port);
    client.send("GET / HTTP/" + version + "\r\nHost: x\r\n\r\n");
    const auto exchange = server.kept.take();
    server.loop.call([&] {
      exchange->begin_stream(200, {});
      exchange->write("some");
    });
    EXPECT_NE(client.read_some(), "");
    bool was_closed = false;
    server.loop.call([&] {
      exchange->on_close([&] { was_closed = true; });
      exchange->abort();
      EXPECT_FALSE(exchange->is_open());
      exchange->write("more");
    });
    const std::string rest = client.read_all();
    EXPECT_THAT(rest, testing::Not(HasSubstr("0\r\n\r\n")));
    EXPECT_EQ(client.was_reset(), version == "1.0") << "a close would be its proper end";
    EXPECT_FALSE(server.done.take().record.is_complete);
    server.wait_for_connections(0);
    EXPECT_FALSE(was_closed) << "the client has not gone";
  }
}

TEST(HttpServer, StopsAcceptingFinishesAndClosesWhatIsIdle) {
  TestServer server;
  server.keep_requests();
  RawClient idle(server.port), busy(server.port), late(server.port);
  busy.send(kGet);
  const auto exchange = server.kept.take();
  server.wait_for_connections(3);
  server.loop.call([&] {
    server.server->stop_accepting(milliseconds(300));
    EXPECT_EQ(server.server->port(), 0);
    EXPECT_TRUE(server.server->listener_fds().empty());
  });
  late.send(kGet);
  const auto last = server.kept.take();
  server.loop.call([&] { last->respond({503, {}, "draining"}); });
  const RawResponse draining = late.read_response();
  EXPECT_EQ(draining.status, 503);
  EXPECT_TRUE(draining.has("Connection: close"));
  EXPECT_TRUE(idle.is_closed());
  server.loop.call([&] { exchange->respond({200, {}, "done"}); });
  EXPECT_EQ(busy.read_response().body, "done") << "requests go on, however long they take";
  EXPECT_TRUE(busy.is_closed());
  server.wait_for_connections(0);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in to = loopback(server.port);
  EXPECT_NE(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  ::close(fd);
}

TEST(HttpServer, AnotherServerTakesOverTheListener) {
  TestServer first, second({}, false);
  const std::vector<int> fds = first.loop.call([&] { return first.server->listener_fds(); });
  ASSERT_EQ(fds.size(), 1u);
  const int fd = ::dup(fds[0]);
  second.loop.call([&] { EXPECT_TRUE(second.server->adopt(fd).ok()); });
  first.loop.call([&] { first.server->stop_accepting(milliseconds(0)); });
  second.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {}, "second"});
  };
  RawClient client(first.port);
  EXPECT_EQ(client.exchange(kGet).body, "second");
  second.loop.call([&] {
    EXPECT_EQ(second.server->port(), first.port);
    const Status status = second.server->adopt(::dup(0));
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("no listening socket"));
  });
}

TEST(HttpServer, ListensOnUnixSocketsAndReplacesThoseThatNobodyServes) {
  const TestFolder folder;
  const std::string path = folder / "socket";
  {
    TestServer server({}, false);
    server.loop.call([&] {
      const Status status = server.server->listen_unix(path);
      ASSERT_TRUE(status.ok()) << status.error().message;
      const Status again = server.server->listen_unix(path);
      ASSERT_FALSE(again.ok());
      EXPECT_THAT(again.error().message, HasSubstr("already in use"));
    });
    server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
      exchange->respond({200, {}, exchange->request().peer});
    };
    RawClient client(path);
    EXPECT_EQ(client.exchange(post("x")).body, "unix");
  }
  TestServer next({}, false);
  next.loop.call([&] { EXPECT_TRUE(next.server->listen_unix(path).ok()); });
  std::ofstream(folder / "file") << "precious";
  next.loop.call([&] {
    EXPECT_EQ(next.server->listen_unix(folder / "file").error().code, Code::kInvalidArgument);
    EXPECT_EQ(next.server->listen_unix(std::string(200, 'a')).error().code,
              Code::kInvalidArgument);
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "file"));
}

TEST(HttpServer, SaysWhatItCannotListenOn) {
  TestServer server;
  server.loop.call([&] {
    const Status taken = server.server->listen("127.0.0.1", server.port);
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.error().code, Code::kUnavailable);
    EXPECT_EQ(taken.error().message,
              "cannot listen on 127.0.0.1:" + std::to_string(server.port) + ": already in use");
    EXPECT_FALSE(server.server->listen("127.0.0.1", 65536).ok());
    EXPECT_FALSE(server.server->listen("no such host", 0).ok());
    EXPECT_FALSE(server.server->listen("192.0.2.1", 0).ok());
  });
}

TEST(HttpServer, APeerIsItsAddressAndPort) {
  TestServer server;
  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {}, exchange->request().peer});
  };
  RawClient client(server.port);
  sockaddr_in own{};
  socklen_t size = sizeof own;
  ::getsockname(client.fd(), reinterpret_cast<sockaddr*>(&own), &size);
  EXPECT_EQ(client.exchange(kGet).body, "127.0.0.1:" + std::to_string(ntohs(own.sin_port)));
}

TEST(HttpServer, ANameCanStandForSeveralAddressesOnOnePort) {
  TestServer server({}, false);
  server.loop.call([&] {
    const Status status = server.server->listen("localhost", 0);
    ASSERT_TRUE(status.ok()) << status.error().message;
    server.port = server.server->port();
  });
  RawClient client(server.port);
  EXPECT_EQ(client.exchange(kGet).status, 200);
}

TEST(HttpServer, DestroyedWithRequestsOpenItCallsNobody) {
  std::shared_ptr<HttpExchange> exchange;
  RawClient client = [&] {
    TestServer server;
    server.keep_requests();
    RawClient made(server.port);
    made.send(kGet);
    exchange = server.kept.take();
    server.loop.call([&] {
      exchange->on_close([] { ADD_FAILURE(); });
      exchange->begin_stream(200, {});
      exchange->write("some");
    });
    return made;
  }();
  client.read_all();
  EXPECT_FALSE(exchange->is_open());
  exchange->write("more");
  exchange->end_stream();
  exchange->on_close([] { ADD_FAILURE(); });
}

TEST(HttpServer, TwoHundredSlowClientsAndFiftyThatNeverReadDoNotHoldUpANormalOne) {
  HttpLimits limits;
  limits.header_timeout = milliseconds(3'000);
  limits.write_timeout = milliseconds(3'000);
  TestServer server(limits);
  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    if (exchange->request().path != "/endless") return exchange->respond({200, {}, "x"});
    exchange->begin_stream(200, {});
    const std::string piece(50'000, 'x');
    exchange->write(piece);
    HttpExchange* const held = exchange.get();  // by the server, for as long as it calls
    exchange->on_drained([held, piece] {
      held->write(piece);
      EXPECT_LT(held->num_pending_bytes(), 2 * piece.size());
    });
  };
  std::vector<RawClient> slow, deaf;
  for (int i = 0; i < 200; ++i) slow.emplace_back(server.port).send("G");
  for (int i = 0; i < 50; ++i) {
    deaf.emplace_back(server.port, 4096).send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  RawClient normal(server.port);
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(normal.exchange(kGet).status, 200);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  for (RawClient& each : slow) EXPECT_EQ(each.read_response().status, 408);
  slow.clear();
  server.wait_for_connections(1);  // before anybody reads
  for (RawClient& each : deaf) EXPECT_FALSE(each.read_response().is_complete);
}

}  // namespace
}  // namespace millrace::net
