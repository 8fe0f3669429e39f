#include "loadgen/http_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loadgen/runner.h"
#include "net/test_http.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kEvent = "data: {\"choices\":[{\"index\":0,\"text\":\" a\"}]}\n\n";
constexpr const char* kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":3,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
constexpr const char* kDone = "data: [DONE]\n\n";

RequestMix small_mix() {
  RequestMix mix;
  mix.lengths.prompt_tokens = 20;
  mix.lengths.output_tokens = 3;
  return mix;
}

PromptSource token_prompts() {
  std::vector<int32_t> corpus;
  for (int32_t i = 0; i < 1000; ++i) corpus.push_back(i);
  return PromptSource::of_tokens(corpus, 0);
}

RunOutcome run_against(net::TestServer& server, int64_t num_requests, int64_t concurrency,
                       const RunOptions& options = {}) {
  net::EventLoop loop;
  const PromptSource prompts = token_prompts();
  const ServerAddress address =
      parse_server_address("http://127.0.0.1:" + std::to_string(server.port), "").value();
  HttpTarget target(loop, address, {}, prompts, nullptr);
  ClosedLoop workload(small_mix(), num_requests, concurrency);
  return run_workload(loop, workload, target, options);
}

net::Headers stream_headers() { return {{"Content-Type", "text/event-stream; charset=utf-8"}}; }

// ---- Bodies.

PlannedRequest planned(int64_t id) { return small_mix().request(id); }

JsonValue body_of(const RequestFields& fields, const std::vector<int32_t>& tokens,
                  const std::string& text) {
  const std::string body = request_body(fields, planned(7), tokens, text);
  const Result<JsonValue> json = parse_json(body);
  EXPECT_TRUE(json.has_value()) << body;
  return json.has_value() ? json.value() : JsonValue();
}

TEST(RequestBody, CompletionsSendTokensOrText) {
  RequestFields fields;
  fields.model = "m";
  fields.seed = 100;
  JsonValue json = body_of(fields, {1, 2, 3}, "");
  EXPECT_EQ(json.find("model")->text, "m");
  EXPECT_EQ(json.find("prompt")->items.size(), 3u);
  EXPECT_EQ(json.find("max_tokens")->text, "3");
  EXPECT_EQ(json.find("seed")->text, "107");
  EXPECT_TRUE(json.find("stream")->boolean);
  EXPECT_TRUE(json.find("ignore_eos")->boolean);
  EXPECT_TRUE(json.find("stream_options")->find("include_usage")->boolean);
  EXPECT_EQ(json.find("stream_options")->find("continuous_usage_stats"), nullptr);
  EXPECT_EQ(json.find("temperature"), nullptr);

  fields.sends_text = fields.counts_tokens = true;
  fields.ignores_eos = false;
  fields.temperature = 0.5;
  json = body_of(fields, {}, "some \"text\"");
  EXPECT_EQ(json.find("prompt")->text, "some \"text\"");
  EXPECT_EQ(json.find("ignore_eos"), nullptr);
  EXPECT_EQ(json.find("temperature")->text, "0.5");
  EXPECT_TRUE(json.find("stream_options")->find("continuous_usage_stats")->boolean);
}

TEST(RequestBody, AChatSendsOneMessage) {
  RequestFields fields;
  fields.endpoint = BenchEndpoint::kChat;
  const JsonValue json = body_of(fields, {1}, "hello");
  const JsonValue& message = json.find("messages")->items.at(0);
  EXPECT_EQ(message.find("role")->text, "user");
  EXPECT_EQ(message.find("content")->text, "hello");
  EXPECT_EQ(json.find("max_completion_tokens")->text, "3");
  EXPECT_EQ(json.find("max_tokens"), nullptr);
  EXPECT_EQ(json.find("prompt"), nullptr);
}

TEST(RequestBody, ExtraFieldsReplaceThoseOfTheSameName) {
  RequestFields fields;
  fields.extra =
      parse_json(R"({"top_p": 0.9, "ignore_eos": false, "a": {"b": [1, null]}})").value();
  const JsonValue json = body_of(fields, {1}, "");
  EXPECT_EQ(json.find("top_p")->text, "0.9");
  EXPECT_FALSE(json.find("ignore_eos")->boolean);
  EXPECT_FALSE(json.find("ignore_eos")->is_repeated);
  EXPECT_EQ(json.find("a")->find("b")->items.size(), 2u);
}

TEST(ServerAddress, IsTheSameWithAndWithoutTheVersion) {
  const struct {
    const char* url;
    const char* base_path;
  } cases[] = {{"http://h:1", ""},
               {"http://h:1/", ""},
               {"http://h:1/v1", ""},
               {"http://h:1/v1/", ""},
               {"http://h:1/a/v1", "/a"},
               {"http://h:1/a/", "/a"},
               {"https://h/prefix", "/prefix"},
               {"unix:/run/socket", ""}};
  for (const auto& each : cases) {
    const Result<ServerAddress> address = parse_server_address(each.url, "k");
    ASSERT_TRUE(address.has_value()) << each.url;
    EXPECT_EQ(address.value().base_path, each.base_path) << each.url;
  }
  EXPECT_FALSE(parse_server_address("h:1", "").has_value());
  EXPECT_FALSE(parse_server_address("http://h/?a=b", "").has_value());
}

// ---- Answers.

TEST(HttpTarget, RecordsEveryEventAndTheServersCounts) {
  net::TestServer server;
  server.on_request = [&](std::shared_ptr<net::HttpExchange> exchange) {
    EXPECT_EQ(exchange->request().path, "/v1/completions");
    EXPECT_NE(exchange->request().header("x-request-id"), nullptr);
    exchange->begin_stream(200, stream_headers());
    for (int i = 0; i < 3; ++i) exchange->write(kEvent);
    exchange->write(kUsage);
    exchange->write(kDone);
    exchange->end_stream();
  };
  const RunOutcome run = run_against(server, 20, 4);
  ASSERT_EQ(run.records.size(), 20u);
  for (const RequestRecord& record : run.records) {
    EXPECT_EQ(record.error, "") << record.message;
    EXPECT_EQ(record.http_status, 200);
    ASSERT_EQ(record.chunks.size(), 3u);
    EXPECT_EQ(record.prompt_tokens, 20);
    EXPECT_EQ(record.cached_tokens, 4);
    EXPECT_EQ(record.output_tokens, 3);
    EXPECT_EQ(record.planned_prompt_tokens, 20);
    EXPECT_LE(record.send_ns, *record.head_ns);
    EXPECT_LE(*record.head_ns, record.chunks[0].at_ns);
    EXPECT_EQ(record.visible_ns, record.chunks[0].at_ns);
    EXPECT_LE(record.chunks[2].at_ns, record.done_ns);
    EXPECT_LE(record.done_ns, run.wall_ns);
  }
}

TEST(HttpTarget, EveryWayToFailHasItsName) {
  using Answer = std::function<void(net::HttpExchange&)>;
  const auto stream = [](std::vector<std::string> pieces) -> Answer {
    return [pieces](net::HttpExchange& exchange) {
      exchange.begin_stream(200, stream_headers());
      for (const std::string& piece : pieces) exchange.write(piece);
      exchange.end_stream();
    };
  };
  const struct {
    const char* error;
    const char* message;
    Answer answer;
  } cases[] = {
      {"HTTP 503 Service Unavailable", "too busy",
       [](net::HttpExchange& e) {
         e.respond({503,
                    {{"Content-Type", "application/json"}},
                    R"({"error": {"message": "too busy", "code": "overloaded"}})"});
       }},
      {"HTTP 404 Not Found", "plain words?",
       [](net::HttpExchange& e) {
         e.respond({404, {}, "plain words\n"});
       }},
      {"not a stream", "{}",
       [](net::HttpExchange& e) {
         e.respond({200, {{"Content-Type", "application/json"}}, "{}"});
       }},
      {"error in the stream", "it broke",
       stream({kEvent, "data: {\"error\": {\"message\": \"it broke\"}}\n\n", kDone})},
      {"malformed stream", "byte 0", stream({"data: nonsense\n\n", kDone})},
      {"stream without [DONE]", "", stream({kEvent})},
      {"no text", "", stream({kUsage, kDone})},
      {"answer cut off", "closed the connection",
       [](net::HttpExchange& e) {
         e.begin_stream(200, stream_headers());
         e.write(kEvent);
         e.abort();
       }},
  };
  for (const auto& each : cases) {
    net::TestServer server;
    server.on_request = [&](std::shared_ptr<net::HttpExchange> exchange) {
      each.answer(*exchange);
    };
    const RunOutcome run = run_against(server, 1, 1);
    ASSERT_EQ(run.records.size(), 1u);
    // One that is reset may be so before its first byte has been read.
    if (std::string_view(each.error) == "answer cut off") {
      EXPECT_NE(run.records[0].error, "");
      continue;
    }
    EXPECT_EQ(run.records[0].error, each.error);
    EXPECT_THAT(run.records[0].message, HasSubstr(each.message)) << each.error;
  }
}

TEST(HttpTarget, AServerThatIsNotThereIsAnErrorOfEveryRequest) {
  int port = 0;
  {
    net::TestServer server;
    port = server.port;
  }
  net::EventLoop loop;
  const PromptSource prompts = token_prompts();
  const ServerAddress address =
      parse_server_address("http://127.0.0.1:" + std::to_string(port), "").value();
  HttpTarget target(loop, address, {}, prompts, nullptr);
  ClosedLoop workload(small_mix(), 5, 2);
  const RunOutcome run = run_workload(loop, workload, target, {});
  ASSERT_EQ(run.records.size(), 5u);
  for (const RequestRecord& record : run.records) EXPECT_EQ(record.error, "no answer");
}

TEST(HttpTarget, TokensOfAnEventAreThoseThatTheUsageGrewBy) {
  net::TestServer server;
  server.on_request = [&](std::shared_ptr<net::HttpExchange> exchange) {
    exchange->begin_stream(200, stream_headers());
    const auto write = [&](const char* text, int tokens) {
      exchange->write(std::string("data: {\"choices\":[{\"text\":\"") + text +
                      "\"}],\"usage\":{\"completion_tokens\":" + std::to_string(tokens) + "}}\n\n");
    };
    write("a", 2);
    write("", 3);  // shows nothing: its token belongs to what is shown next
    write("b", 4);
    write("", 5);  // nothing follows: to what was shown last
    exchange->write("data: {\"choices\":[],\"usage\":{\"completion_tokens\":5}}\n\n");
    exchange->write(kDone);
    exchange->end_stream();
  };
  const RunOutcome run = run_against(server, 1, 1);
  const RequestRecord& record = run.records.at(0);
  EXPECT_EQ(record.error, "");
  ASSERT_EQ(record.chunks.size(), 2u);
  EXPECT_EQ(record.chunks[0].num_tokens, 2);
  EXPECT_EQ(record.chunks[1].num_tokens, 3);
}

TEST(Runner, AnInterruptGivesUpWhatRunsAndSendsNothingMore) {
  net::TestServer server;
  server.keep_requests();  // and never answers
  RunOptions options;
  int num_asked = 0;
  options.is_interrupted = [&] { return ++num_asked == 2; };
  const RunOutcome run = run_against(server, 100, 3, options);
  EXPECT_TRUE(run.was_interrupted);
  ASSERT_EQ(run.records.size(), 3u);
  for (const RequestRecord& record : run.records) {
    EXPECT_TRUE(record.was_cancelled);
    EXPECT_EQ(record.error, "");
  }
}

TEST(Ask, GetsAnAnswerOrSaysThatThereWasNone) {
  net::TestServer server;
  net::EventLoop loop;
  const std::string url = "http://127.0.0.1:" + std::to_string(server.port) + "/base";
  const ServerAddress address = parse_server_address(url, "").value();
  const Result<PlainAnswer> answer = ask(loop, address, "POST", "/v1/x", "body", 20);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer.value().status, 200);
  EXPECT_EQ(answer.value().body, "POST /base/v1/x|body");

  server.keep_requests();
  EXPECT_THAT(ask(loop, address, "GET", "/v1/x", "", 0.05).error().message,
              StartsWith("no answer within"));
}

}  // namespace
}  // namespace millrace
