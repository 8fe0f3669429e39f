#include "server/call.h"

#include <algorithm>
#include <random>

#include "base/format.h"
#include "chat/json_writer.h"
#include "server/context.h"

namespace millrace {
namespace {

std::string anthropic_error_body(const openai::ApiError& error, const std::string& request_id) {
  struct Row {
    int status;
    const char* type;
  };
  constexpr Row kTypes[] = {{401, "authentication_error"}, {403, "permission_error"},
                            {404, "not_found_error"},      {413, "request_too_large"},
                            {429, "rate_limit_error"},     {500, "api_error"},
                            {503, "overloaded_error"},     {505, "invalid_request_error"}};
  const char* type = error.status >= 500 ? "api_error" : "invalid_request_error";
  for (const Row& row : kTypes) {
    if (row.status == error.status) type = row.type;
  }
  JsonWriter json;
  json.begin_object().member("type", "error").key("error").begin_object();
  json.member("type", type).member("message", error.message).end_object();
  return json.member("request_id", request_id).end_object().text();
}

void add_cors(const CorsOptions& cors, const net::HttpRequest* request, net::Headers& headers) {
  const std::string* origin = request == nullptr ? nullptr : request->header("origin");
  if (origin == nullptr) return;
  const bool is_any = std::find(cors.allowed_origins.begin(), cors.allowed_origins.end(), "*") !=
                      cors.allowed_origins.end();
  if (!is_any && std::find(cors.allowed_origins.begin(), cors.allowed_origins.end(), *origin) ==
                     cors.allowed_origins.end()) {
    return;
  }
  // With credentials browsers want the origin itself.
  const bool names_origin = !is_any || cors.allows_credentials;
  headers.emplace_back("Access-Control-Allow-Origin", names_origin ? *origin : "*");
  if (names_origin) headers.emplace_back("Vary", "Origin");
  if (cors.allows_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

}  // namespace

ApiFamily family_of(std::string_view path) {
  return path.starts_with("/v1/messages") ? ApiFamily::kAnthropic : ApiFamily::kOpenAi;
}

std::string make_request_id() {
  static thread_local std::mt19937_64 random{[] {
    std::random_device device;
    return (uint64_t(device()) << 32) ^ device();
  }()};
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (int half = 0; half < 2; ++half) {
    uint64_t bits = random();
    for (int i = 0; i < 16; ++i, bits >>= 4) id += kDigits[bits & 15];
  }
  return id;
}

bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= 128 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

net::Headers common_headers(const ServerContext& context, const net::HttpRequest* request,
                            const std::string& request_id) {
  net::Headers headers;
  headers.emplace_back(kRequestIdHeader, request_id);
  add_cors(context.options.cors, request, headers);
  return headers;
}

net::HttpResponse error_response(const ServerContext& context, const net::HttpRequest* request,
                                 const std::string& request_id, ApiFamily family,
                                 const openai::ApiError& error) {
  net::HttpResponse response;
  response.status = error.status;
  response.headers = common_headers(context, request, request_id);
  response.headers.emplace_back("Content-Type", "application/json");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) {
    response.headers.emplace_back("Retry-After", format(error.retry_after_s));
  }
  if (family == ApiFamily::kAnthropic) {
    response.headers.emplace_back("request-id", request_id);
    response.body = anthropic_error_body(error, request_id);
  } else {
    response.body = openai::error_body(error);
  }
  return response;
}

Call::Call(ServerContext& context, std::shared_ptr<net::HttpExchange> exchange, std::string path)
    : context_(context), exchange_(std::move(exchange)), path_(std::move(path)) {
  // on_header gave every request one.
  const std::string* id = request().header("x-request-id");
  id_ = id == nullptr ? make_request_id() : *id;
}

void Call::respond(int status, std::string content_type, std::string body) {
  net::HttpResponse response;
  response.status = status;
  response.headers = common_headers(context_, &request(), id_);
  if (!content_type.empty()) response.headers.emplace_back("Content-Type", std::move(content_type));
  response.body = std::move(body);
  exchange_->respond(std::move(response));
}

void Call::respond_error(const openai::ApiError& error) {
  exchange_->respond(error_response(context_, &request(), id_, family_of(path_), error));
}

void Call::begin_event_stream() {
  net::Headers headers = common_headers(context_, &request(), id_);
  headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");
  exchange_->begin_stream(200, std::move(headers));
}

}  // namespace millrace
