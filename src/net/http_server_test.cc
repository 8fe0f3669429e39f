#include "net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "net/test_http.h"

namespace millrace::net {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

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

TEST(HttpServer, StreamsInChunksAndGathersWhatOneTurnWrites) {
  TestServer server;
  server.on_request = [](std::shared_ptr<HttpExchange> exchange) {
    exchange->begin_stream(200, {{"Content-Type", "text/event-stream"}});
    exchange->write("data: 1\n\n");
    exchange->write("");
    exchange->write("data: 2\n\n");
    exchange->end_stream();
  };
  RawClient client(server.port);
  const RawResponse response = client.exchange(kGet);
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(response.body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(client.exchange(kGet).body, response.body) << "the connection is kept";
}

}  // namespace
}  // namespace millrace::net
