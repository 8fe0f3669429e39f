#include "loadgen/http_target.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "base/format.h"
#include "chat/json_writer.h"
#include "loadgen/sse_reader.h"
#include "loadgen/stream_chunk.h"

namespace millrace {
namespace {

constexpr size_t kMaxErrorBytes = size_t(64) << 10;  // of a body that is no stream
constexpr size_t kMaxPlainBytes = size_t(64) << 20;
constexpr size_t kMaxMessageBytes = 500;

bool is_replaced(const JsonValue& extra, std::string_view name) {
  return extra.find(name) != nullptr;
}

net::HttpRequest make_request(const ServerAddress& address, const std::string& method,
                              const std::string& path, std::string body) {
  net::HttpRequest request;
  request.method = method;
  request.path = address.base_path + path;
  if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
  if (!address.api_key.empty()) {
    request.headers.emplace_back("Authorization", "Bearer " + address.api_key);
  }
  request.body = std::move(body);
  return request;
}

const char* path_of(BenchEndpoint endpoint) {
  return endpoint == BenchEndpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
}

// What a server wrote, so that a report can show it whatever it is.
std::string printable(std::string text) {
  if (text.size() > kMaxMessageBytes) text.resize(kMaxMessageBytes);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

// The message of an error body, or the body itself.
std::string error_message(const std::string& body) {
  const Result<StreamChunk> chunk = parse_stream_chunk(body);
  return chunk.has_value() && chunk.value().error ? *chunk.value().error : body;
}

// One request on its way.
struct Exchange {
  Exchange(Target::Clock clock, Target::OnDone on_done)
      : clock(std::move(clock)),
        on_done(std::move(on_done)),
        events([this](std::string_view data) { on_event(data); }) {}

  void on_head(int status, const net::Headers& headers) {
    record.head_ns = clock();
    record.http_status = status;
    for (const auto& [name, value] : headers) {
      if (name == "content-type") is_stream = value.starts_with("text/event-stream");
    }
  }

  void on_body(std::string_view bytes) {
    read_ns = clock();  // of all events that these bytes end
    if (record.http_status != 200 || !is_stream) {
      body.append(bytes.substr(0, kMaxErrorBytes - std::min(body.size(), kMaxErrorBytes)));
      return;
    }
    const Status status = events.read(bytes);
    if (!status.ok()) fail("malformed stream", status.error().message);
  }

  void on_event(std::string_view data) {
    if (data == "[DONE]") {
      is_complete = true;
      return;
    }
    Result<StreamChunk> parsed = parse_stream_chunk(data);
    if (!parsed.has_value()) return fail("malformed stream", parsed.error().message);
    StreamChunk& chunk = parsed.value();
    if (chunk.error) return fail("error in the stream", *chunk.error);
    if (chunk.has_choices && !chunk.usage) num_untold_tokens += chunk.num_token_ids;
    if (chunk.usage) {
      const StreamUsage& usage = *chunk.usage;
      const auto replace = [](auto& value, const auto& other) {
        if (other) value = other;
      };
      if (usage.output_tokens && chunk.has_choices) {
        num_untold_tokens += *usage.output_tokens - record.output_tokens.value_or(0);
      }
      replace(record.prompt_tokens, usage.prompt_tokens);
      replace(record.cached_tokens, usage.cached_tokens);
      replace(record.output_tokens, usage.output_tokens);
      replace(record.reasoning_tokens, usage.reasoning_tokens);
    }
    if (!chunk.finish_reason.empty()) record.finish_reason = printable(chunk.finish_reason);
    // An answer whose tokens leave no text has its only time at its end.
    const bool is_only = record.chunks.empty() && !chunk.finish_reason.empty();
    if (!chunk.has_text && !chunk.has_reasoning && !is_only) return;
    if (chunk.has_text && !record.visible_ns) record.visible_ns = read_ns;
    record.chunks.push_back({read_ns, take_untold_tokens()});
  }

  int32_t take_untold_tokens() {
    return int32_t(std::max<int64_t>(std::exchange(num_untold_tokens, 0), 0));
  }

  void fail(std::string error, std::string message) {
    if (!record.error.empty()) return;
    record.error = std::move(error);
    record.message = printable(std::move(message));
  }

  void end(const Status& status) {
    record.done_ns = clock();
    if (!record.chunks.empty()) record.chunks.back().num_tokens += take_untold_tokens();
    if (!status.ok()) {
      fail(record.http_status == 0 ? "no answer" : "answer cut off", status.error().message);
    } else if (record.http_status != 200) {
      fail(format("HTTP ", record.http_status, " ", net::reason_phrase(record.http_status)),
           error_message(body));
    } else if (!is_stream) {
      fail("not a stream", error_message(body));
    } else if (!is_complete) {
      fail("stream without [DONE]", "");
    } else if (record.chunks.empty()) {
      fail("no text", "");
    }
  }

  Target::Clock clock;
  Target::OnDone on_done;
  SseReader events;
  RequestRecord record;
  net::HttpClient::RequestId call = 0;
  int64_t read_ns = 0;
  int64_t num_untold_tokens = 0;  // that belong to no event with text yet
  bool is_stream = false, is_complete = false;
  std::string body;
};

}  // namespace

std::string request_body(const RequestFields& fields, const PlannedRequest& request,
                         const std::vector<int32_t>& tokens, const std::string& text) {
  JsonWriter json;
  json.begin_object();
  const auto member = [&](std::string_view name, const auto& value) {
    if (!is_replaced(fields.extra, name)) json.member(name, value);
  };
  const bool is_chat = fields.endpoint == BenchEndpoint::kChat;
  member("model", std::string_view(fields.model));
  if (!is_chat && fields.sends_text) {
    member("prompt", std::string_view(text));
  } else if (!is_chat) {
    member("prompt", tokens);
  } else if (!is_replaced(fields.extra, "messages")) {
    json.key("messages").begin_array().begin_object().member("role", "user");
    json.member("content", std::string_view(text)).end_object().end_array();
  }
  member(is_chat ? "max_completion_tokens" : "max_tokens", request.num_output_tokens);
  member("stream", true);
  if (!is_replaced(fields.extra, "stream_options")) {
    json.key("stream_options").begin_object().member("include_usage", true);
    if (fields.counts_tokens) json.member("continuous_usage_stats", true);
    json.end_object();
  }
  if (fields.ignores_eos) member("ignore_eos", true);
  if (fields.temperature) member("temperature", *fields.temperature);
  if (fields.seed) member("seed", int64_t((*fields.seed + uint64_t(request.id)) & INT64_MAX));
  for (size_t i = 0; i < fields.extra.keys.size(); ++i) {
    std::string value;
    if (write_json(fields.extra.items[i], value).ok()) json.key(fields.extra.keys[i]).json(value);
  }
  return json.end_object().text();
}

Result<ServerAddress> parse_server_address(const std::string& url, const std::string& api_key) {
  ASSIGN_OR_RETURN(const net::ParsedUrl parsed, net::parse_url(url));
  ServerAddress address{parsed.origin, parsed.path, api_key};
  if (address.base_path.find('?') != address.base_path.npos) {
    return Error{Code::kInvalidArgument, format("URL ", url, ": expected no '?'")};
  }
  const auto strip = [&](std::string_view end) {
    if (address.base_path.ends_with(end)) {
      address.base_path.resize(address.base_path.size() - end.size());
    }
  };
  strip("/");
  strip("/v1");
  return address;
}

struct HttpTarget::Impl {
  Impl(net::EventLoop& loop, ServerAddress address, RequestFields fields,
       const PromptSource& prompts, const Tokenizer* tokenizer)
      : loop(loop),
        address(std::move(address)),
        fields(std::move(fields)),
        prompts(prompts),
        tokenizer(tokenizer),
        client(loop, this->address.origin) {}

  void finish(const std::shared_ptr<Exchange>& exchange) {
    open.erase(exchange->record.id);
    exchange->on_done(std::move(exchange->record));
  }

  net::EventLoop& loop;
  const ServerAddress address;
  const RequestFields fields;
  const PromptSource& prompts;
  const Tokenizer* const tokenizer;
  std::unordered_map<int64_t, std::shared_ptr<Exchange>> open;  // by the request's id
  net::HttpClient client;
};

HttpTarget::HttpTarget(net::EventLoop& loop, ServerAddress address, RequestFields fields,
                       const PromptSource& prompts, const Tokenizer* tokenizer)
    : impl_(std::make_unique<Impl>(loop, std::move(address), std::move(fields), prompts,
                                   tokenizer)) {}

HttpTarget::~HttpTarget() = default;

void HttpTarget::send(const PlannedRequest& request, const Clock& clock, OnDone on_done) {
  const RequestFields& fields = impl_->fields;
  std::vector<int32_t> tokens;
  std::string text;
  const bool sends_text = fields.sends_text || fields.endpoint == BenchEndpoint::kChat;
  if (impl_->prompts.has_tokens()) {
    tokens = impl_->prompts.tokens(request);
    const size_t room = tokens.size() - std::min(tokens.size(), size_t(fields.num_template_tokens));
    tokens.resize(std::max<size_t>(room, 1));
    if (sends_text) text = impl_->tokenizer->decode(tokens);
  } else {
    text = impl_->prompts.text(request);
  }
  net::HttpRequest http = make_request(impl_->address, "POST", path_of(fields.endpoint),
                                       request_body(fields, request, tokens, text));
  http.headers.emplace_back("X-Request-Id", format("bench-", request.id));

  auto exchange = std::make_shared<Exchange>(clock, std::move(on_done));
  exchange->record.id = request.id;
  exchange->record.planned_prompt_tokens = num_prompt_tokens(request);
  exchange->record.planned_output_tokens = request.num_output_tokens;
  net::HttpClient::Handlers handlers;
  handlers.on_head = [exchange](int status, const net::Headers& headers) {
    exchange->on_head(status, headers);
  };
  handlers.on_body = [exchange](std::string_view bytes) { exchange->on_body(bytes); };
  handlers.on_done = [impl = impl_.get(), exchange](const Status& status) {
    exchange->end(status);
    impl->finish(exchange);
  };
  impl_->open.emplace(request.id, exchange);
  exchange->record.send_ns = clock();
  exchange->call = impl_->client.send(std::move(http), std::move(handlers));
}

void HttpTarget::cancel_all() {
  std::vector<std::shared_ptr<Exchange>> open;
  for (const auto& [id, exchange] : impl_->open) open.push_back(exchange);
  for (const std::shared_ptr<Exchange>& exchange : open) {
    impl_->client.cancel(exchange->call);
    exchange->record.done_ns = exchange->clock();
    exchange->record.was_cancelled = true;
    impl_->finish(exchange);
  }
}

Result<PlainAnswer> ask(net::EventLoop& loop, const ServerAddress& address,
                        const std::string& method, const std::string& path, const std::string& body,
                        double timeout_s) {
  net::HttpClient client(loop, address.origin);
  PlainAnswer answer;
  Status outcome = Error{Code::kUnavailable, format("no answer within ", timeout_s, " s")};
  net::HttpClient::Handlers handlers;
  handlers.on_head = [&](int status, const net::Headers&) { answer.status = status; };
  handlers.on_body = [&](std::string_view bytes) {
    answer.body.append(
        bytes.substr(0, kMaxPlainBytes - std::min(answer.body.size(), kMaxPlainBytes)));
  };
  handlers.on_done = [&](const Status& status) {
    outcome = status;
    loop.stop();
  };
  client.send(make_request(address, method, path, body), std::move(handlers));
  const net::EventLoop::Timer timer =
      loop.after(std::chrono::nanoseconds(int64_t(timeout_s * 1e9)), [&] { loop.stop(); });
  loop.run();
  RETURN_IF_ERROR(outcome);
  return answer;
}

}  // namespace millrace
