#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "net/http_server.h"
#include "openai/completion_response.h"

namespace millrace {

struct ServerContext;

// Whose errors a path answers with.
enum class ApiFamily { kOpenAi, kAnthropic };

// One request and its answer, with what every answer has in common: ids, CORS, the form of errors.
// Belongs to the network's thread.
class Call {
 public:
  Call(ServerContext& context, std::shared_ptr<net::HttpExchange> exchange, std::string path);

  const net::HttpRequest& request() const { return exchange_->request(); }
  const std::string& path() const { return path_; }  // without the root path, aliases resolved
  const std::string& id() const { return id_; }      // the client's, or one of our own
  void set_id(std::string id) { id_ = std::move(id); }  // the client's, from the body
  net::HttpExchange& exchange() { return *exchange_; }
  ServerContext& context() { return context_; }

  void respond(int status, std::string content_type, std::string body);
  void respond_json(std::string body) { respond(200, "application/json", std::move(body)); }
  void respond_error(const openai::ApiError& error);
  void begin_event_stream();

  std::optional<size_t> key_idx;  // of the KeyRing; none: no key was needed

 private:
  ServerContext& context_;
  std::shared_ptr<net::HttpExchange> exchange_;
  std::string path_, id_;
};

ApiFamily family_of(std::string_view path);

// Headers of any answer, and the body of an error with what goes with its status.
net::Headers common_headers(const ServerContext& context, const net::HttpRequest* request,
                            const std::string& request_id);
net::HttpResponse error_response(const ServerContext& context, const net::HttpRequest* request,
                                 const std::string& request_id, ApiFamily family,
                                 const openai::ApiError& error);

inline constexpr std::string_view kRequestIdHeader = "X-Request-Id";
std::string make_request_id();
// Visible ASCII, 1 to 128.
bool is_request_id(std::string_view text);

}  // namespace millrace
