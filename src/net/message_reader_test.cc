#include "net/message_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"

namespace millrace::net {
namespace {

// What the reader makes of a stream of requests that comes in pieces that end where `cuts` say.
std::string read_requests(std::string_view bytes, const std::vector<size_t>& cuts,
                          const HttpLimits& limits = {}) {
  using State = RequestReader::State;
  RequestReader reader(limits);
  std::string seen;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : bytes.size();
    while (begin < end) {
      const size_t num_used = reader.read(bytes.substr(begin, end - begin));
      begin += num_used;
      if (reader.state() == State::kHeaderDone) reader.begin_body();
      if (reader.state() == State::kFailed) return seen + format(reader.status());
      if (reader.state() == State::kDone) {
        const HttpRequest& request = reader.request();
        seen += request.method + " " + request.path + "?" + request.query;
        seen += " " + request.body + ";";
        reader.reset();
      } else if (num_used == 0) {
        break;
      }
    }
  }
  return seen;
}

std::vector<size_t> every_byte(std::string_view bytes) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < bytes.size(); ++i) cuts.push_back(i);
  return cuts;
}

const std::string kChunked =
    "POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5;name=\"va;l\\\"ue\"\r\nhello\r\n1\r\n \r\nA\r\nworld\r\n\r\n!\r\n000\r\n"
    "Trailer: x\r\nOther: y\r\n\r\n";
const std::string kChunkedSeen = "POST /p? hello world\r\n\r\n!;";

TEST(RequestReader, FindsTheSameRequestsHoweverTheyAreCut) {
  const std::string stream = kChunked + "\r\nGET /a?b?c HTTP/1.1\r\nHOST: x\r\n\r\n" +
                             "PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc" +
                             "POST / HTTP/1.1\r\nhost: x\r\n" +
                             "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n";
  const std::string seen = kChunkedSeen + "GET /a?b?c ;PUT /? abc;POST /? ;";
  EXPECT_EQ(read_requests(stream, {}), seen);
  EXPECT_EQ(read_requests(stream, every_byte(stream)), seen);
  for (size_t first = 1; first < kChunked.size(); ++first) {
    ASSERT_EQ(read_requests(kChunked, {first}), kChunkedSeen) << "cut at " << first;
  }
  for (size_t first = 60; first < kChunked.size(); ++first) {
    for (size_t second = first + 1; second < kChunked.size(); ++second) {
      ASSERT_EQ(read_requests(kChunked, {first, second}), kChunkedSeen)
          << "cut at " << first << " and " << second;
    }
  }
}

TEST(RequestReader, LowersNamesOfHeadersAndKeepsTheirValues) {
  RequestReader reader({});
  const std::string bytes =
      "GET / HTTP/1.1\r\nHost: x\r\nX-REQUEST-ID:\t A b \xc3\xa4 \r\nx-request-id: second\r\n\r\n";
  EXPECT_EQ(reader.read(bytes), bytes.size());
  ASSERT_EQ(reader.state(), RequestReader::State::kHeaderDone);
  EXPECT_EQ(*reader.request().header("x-request-id"), "A b \xc3\xa4");
  EXPECT_EQ(reader.request().headers.size(), 3u);
  EXPECT_EQ(reader.request().header("cookie"), nullptr);
}

struct Case {
  std::string bytes, seen;
};

// Each in one piece and byte by byte.
void expect_cases(const std::vector<Case>& cases, const HttpLimits& limits = {}) {
  for (const Case& c : cases) {
    EXPECT_EQ(read_requests(c.bytes, {}, limits), c.seen) << c.bytes;
    EXPECT_EQ(read_requests(c.bytes, every_byte(c.bytes), limits), c.seen) << c.bytes;
  }
}

TEST(RequestReader, RefusesWhatTwoReadersCouldUnderstandInTwoWays) {
  const auto with = [](const std::string& headers, const std::string& rest = "") {
    return "POST / HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + rest;
  };
  const std::string length = "Content-Length: 3\r\n", chunked = "Transfer-Encoding: chunked\r\n";
  expect_cases({
      {with(length + chunked, "0\r\n\r\n"), "400"},
      {with(chunked + length, "0\r\n\r\n"), "400"},
      {with(length + "Content-Length: 4\r\n", "abcd"), "400"},
      {with("Content-Length: 3, 4\r\n", "abcd"), "400"},
      {with(length + length, "abc"), "POST /? abc;"},
      {with("Content-Length: +3\r\n", "abc"), "400"},
      {with("Content-Length: -1\r\n"), "400"},
      {with("Content-Length: 0x3\r\n", "abc"), "400"},
      {with("Content-Length:\r\n"), "400"},
      {with("Content-Length: 99999999999999999999\r\n"), "400"},
      {with("Content-Length : 3\r\n", "abc"), "400"},
      {with(" Content-Length: 3\r\n", "abc"), "400"},
      {with("X: a\r\n b\r\n"), "400"},
      {with("X: a\r\n\tb\r\n"), "400"},
      {with("X: a\n"), "400"},
      {with("X: a\rb\r\n"), "400"},
      {with(std::string("X: a\0b\r\n", 8)), "400"},
      {with("X\r\n"), "400"},
      {with(": x\r\n"), "400"},
      {with("X Y: x\r\n"), "400"},
      {with("Host: y\r\n"), "400"},
      {"GET / HTTP/1.1\r\n\r\n", "400"},
      {"GET / HTTP/1.0\r\n\r\n", "GET /? ;"},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {with("Transfer-Encoding: gzip, chunked\r\n"), "501"},
      {with("Transfer-Encoding: chunked, identity\r\n"), "501"},
      {with("Transfer-Encoding: identity\r\n"), "501"},
      {with(chunked + chunked, "0\r\n\r\n"), "400"},
      {with("Expect: a-miracle\r\n"), "417"},
  });
}

TEST(RequestReader, RefusesWhatIsNotHttp) {
  expect_cases({
      {" GET / HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"GET /\r\nHost: x\r\n\r\n", "400"},
      {"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", "400"},
      {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
      {"GET / HTTP/1.2\r\nHost: x\r\n\r\n", "505"},
      {"GET / FTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"G(T / HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {std::string("\x16\x03\x01\x02\0\x01", 6), "400"},  // TLS: at once, no line comes
      {"GET / HTTP/1.1\nHost: x\n\n", "400"},
  });
}

TEST(RequestReader, TheHostOfTheTargetCountsBeforeThatOfTheHeader) {
  const auto host_of = [](const std::string& lines) {
    RequestReader reader({});
    reader.read(lines + "\r\n\r\n");
    EXPECT_EQ(reader.state(), RequestReader::State::kHeaderDone) << lines;
    const std::string* host = reader.request().header("host");
    return host == nullptr ? "none" : *host;
  };
  EXPECT_EQ(host_of("GET / HTTP/1.1\r\nHost: a"), "a");
  EXPECT_EQ(host_of("GET http://b/ HTTP/1.1\r\nHost: a"), "b");
  EXPECT_EQ(host_of("GET http://b:80?c HTTP/1.1\r\nA: b\r\nHost: a"), "b:80");
  EXPECT_EQ(host_of("GET https://[::1]:80/c HTTP/1.0"), "[::1]:80");
  EXPECT_EQ(host_of("GET / HTTP/1.0"), "none");
}

TEST(RequestReader, SplitsTargetsAndRefusesBadOnes) {
  const auto get = [](const std::string& target, const std::string& method = "GET") {
    return method + " " + target + " HTTP/1.1\r\nHost: x\r\n\r\n";
  };
  expect_cases({
      {get("/v1/models?beta=true"), "GET /v1/models?beta=true ;"},
      {get("/a%20b/../c"), "GET /a%20b/../c? ;"},
      {get("/?"), "GET /? ;"},
      {get("//x://y"), "GET //x://y? ;"},
      {get("http://host:80/a?b"), "GET /a?b ;"},
      {get("HTTPS://host"), "GET /? ;"},
      {get("http://host?b"), "GET /?b ;"},
      {get("*", "OPTIONS"), "OPTIONS *? ;"},
      {get("*"), "400"},
      {get("a"), "400"},
      {get("host:80", "CONNECT"), "400"},
      {get("http:///a"), "400"},
      {get("http://"), "400"},
      {get("http://user@host/a"), "400"},
      {get("http://user:word@/"), "400"},
      {get("ftp://host/a"), "400"},
      {get("/a#b"), "400"},
      {get("/\xc3\xa4"), "400"},
      {get("http://ho\xc3\xa4st/a#b"), "400"},
      {get("?a"), "400"},
  });
}

TEST(RequestReader, RefusesBrokenChunks) {
  const auto body = [](const std::string& chunks) {
    return "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks;
  };
  HttpLimits limits;
  limits.max_body_bytes = 64;
  expect_cases(
      {
          {body("g\r\n"), "400"},
          {body("-1\r\n"), "400"},
          {body("0x5\r\nhello\r\n0\r\n\r\n"), "400"},
          {body("\r\n\r\n"), "400"},
          {body("5\nhello\r\n0\r\n\r\n"), "400"},
          {body("5\rhello\r\n"), "400"},
          {body("5\r\nhelloX\r\n0\r\n\r\n"), "400"},
          {body("5 x\r\nhello\r\n"), "400"},
          {body("5;=\r\nhello\r\n"), "400"},
          {body("20;a=\"\r\n" + std::string(100, 'x')), ""},  // counted once, as long as it lasts
          {body("20;a=\"\r\n" + std::string(100, 'x') + "\"\r\n"), "400"},
          {body("FFFFFFFF\r\n"), "413"},
          {body("FFFFFFFFFFFFFFFF\r\n"), "413"},
          {body("FFFFFFFFFFFFFFFFF\r\n"), "400"},
          {body("40\r\n" + std::string(64, 'a') + "\r\n1\r\nb\r\n0\r\n\r\n"), "413"},
          {body("40\r\n" + std::string(64, 'a') + "\r\n0\r\n\r\n"),
           "POST /? " + std::string(64, 'a') + ";"},
          {body("0\r\nContent-Length: 5\r\n\r\n"), "400"},
          {body("0\r\nbad trailer\r\n\r\n"), "400"},
      },
      limits);
}

TEST(RequestReader, KeepsEveryLimit) {
  HttpLimits limits;
  limits.max_header_bytes = 200;
  limits.max_headers = 3;
  limits.max_body_bytes = 10;
  const std::string line = "GET / HTTP/1.1\r\nHost: x\r\n";
  const auto padded = [&](size_t size) {
    return line + "X: " + std::string(size - line.size() - 7, 'a') + "\r\n\r\n";
  };
  ASSERT_EQ(padded(200).size(), 200u);
  expect_cases(
      {
          {padded(200), "GET /? ;"},
          {padded(201), "431"},
          {"GET /" + std::string(300, 'a'), "431"},
          {line + "A: 1\r\nB: 2\r\n\r\n", "GET /? ;"},
          {line + "A: 1\r\nB: 2\r\nC: 3\r\n\r\n", "431"},
          {line + "Content-Length: 10\r\n\r\n0123456789", "GET /? 0123456789;"},
          {line + "Content-Length: 11\r\n\r\n", "413"},
          {line + "Transfer-Encoding: chunked\r\n\r\n5;" + std::string(300, 'a'), "431"},
          {line + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + std::string(300, 'a'), "431"},
          // Also if all of it is there at once, and before what is wrong with it.
          {line + "Transfer-Encoding: chunked\r\n\r\n5;" + std::string(300, 'a') +
               "\r\nhello\r\n0\r\n\r\n",
           "431"},
          {line + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + std::string(300, 'a') + "\r\n\r\n",
           "431"},
          {line + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: \1" + std::string(300, 'a') +
               "\r\n\r\n",
           "431"},
      },
      limits);
}

// What the reader makes of an answer; `ends`: the connection is closed behind it.
std::string read_response(std::string_view bytes, const std::vector<size_t>& cuts, bool ends,
                          bool is_for_head = false) {
  std::string seen;
  ResponseReader reader(
      is_for_head,
      [&](int status, const Headers& headers) {
        seen += format(status, " ", headers.size(), " ");
      },
      [&](std::string_view body) { seen += body; });
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size() && !reader.is_done() && !reader.has_failed(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : bytes.size();
    begin += reader.read(bytes.substr(begin, end - begin));
  }
  if (ends) reader.read_end();
  if (reader.has_failed()) return "failed";
  if (!reader.is_done()) return seen + " ...";
  return seen + (reader.keeps_alive() ? " kept" : " closed") +
         (begin < bytes.size() ? " more" : "");
}

TEST(ResponseReader, ReadsBodiesOfEveryKindHoweverTheyAreCut) {
  const struct {
    std::string bytes;
    bool ends, is_for_head;
    std::string seen;
  } cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, false, "200 1 hello kept"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", false, false, "200 1 hell ..."},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", true, false, "failed"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
       "3\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n",
       false, false, "200 1 hello kept"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", true, false, "failed"},
      {"HTTP/1.1 200 OK\r\n\r\nuntil the end", true, false, "200 0 until the end closed"},
      {"HTTP/1.1 200 OK\r\n\r\nuntil the end", false, false, "200 0 until the end ..."},
      {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", false, false, "200 1 hi closed"},
      {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", false, false,
       "200 2  closed"},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
       false, false, "204 0  kept"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false, true, "200 1  kept"},
      {"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", false, false, "304 1  kept"},
      {"HTTP/1.1 101 Switching\r\n\r\n", false, false, "failed"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", false, false, "failed"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", false, false,
       "failed"},
      {"HTTP/3 200 OK\r\n\r\n", false, false, "failed"},
      {"SSH-2.0-OpenSSH_9.2\r\n\r\n", false, false, "failed"},
      {"HTTP/1.1 200", true, false, "failed"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(read_response(c.bytes, {}, c.ends, c.is_for_head), c.seen) << c.bytes;
    for (size_t cut = 1; cut < c.bytes.size(); ++cut) {
      EXPECT_EQ(read_response(c.bytes, {cut}, c.ends, c.is_for_head), c.seen)
          << c.bytes << " cut at " << cut;
    }
    EXPECT_EQ(read_response(c.bytes, every_byte(c.bytes), c.ends, c.is_for_head), c.seen)
        << c.bytes;
  }
}

TEST(Headers, ValuesCannotBeginAnother) {
  std::string out;
  append_header(out, "X-Request-Id", std::string("a\r\nSet-Cookie: b\0c", 18));
  EXPECT_EQ(out, "X-Request-Id: a  Set-Cookie: b c\r\n");
}

}  // namespace
}  // namespace millrace::net
