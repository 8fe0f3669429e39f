#include "server/routes.h"

#include <algorithm>

#include "base/format.h"
#include "server/completion_call.h"
#include "server/operations.h"
#include "server/token_routes.h"

namespace millrace {
namespace {

void chat_completions(std::unique_ptr<Call> call) {
  CompletionCall::start(std::move(call), openai::Endpoint::kChatCompletions);
}
void completions(std::unique_ptr<Call> call) {
  CompletionCall::start(std::move(call), openai::Endpoint::kCompletions);
}
void generate(std::unique_ptr<Call> call) {
  CompletionCall::start(std::move(call), openai::Endpoint::kGenerate);
}

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Access::kKey, "Answer a conversation", chat_completions},
    {"POST", "/v1/completions", Access::kKey, "Continue a text", completions},
    {"POST", "/inference/v1/generate", Access::kKey, "Tokens in, tokens out", generate},
    {"POST", "/abort_requests", Access::kKey, "Give requests up, by id", abort_requests},
    {"POST", "/v1/tokenize", Access::kKey, "Text or messages to token ids", tokenize},
    {"POST", "/v1/detokenize", Access::kKey, "Token ids to text", detokenize},
    {"GET", "/v1/models", Access::kKey, "The models served", list_models},
    {"GET", "/v1/models/*", Access::kKey, "One of them", get_model},
    {"GET", "/v1/millrace/stats", Access::kKey, "What the engine is doing", engine_stats},
    {"GET", "/health", Access::kOpen, "200 while the engine works", health},
    {"GET", "/health/live", Access::kOpen, "200 while the process lives", health_live},
    {"GET", "/health/ready", Access::kOpen, "As /health", health},
    {"GET", "/ping", Access::kOpen, "As /health", health},
    {"POST", "/ping", Access::kOpen, "As /health", health},
    {"GET", "/version", Access::kOpen, "The program's version", version},
    {"GET", "/load", Access::kKey, "Requests in the server", load},
    {"GET", "/metrics", Access::kOpen, "Metrics for Prometheus", metrics},
    {"GET", "/server_info", Access::kKey, "Configuration, model, memory", server_info},
    {"GET", "/openapi.json", Access::kKey, "This list", openapi},
    {"GET", "/tokenizer_info", Access::kAdmin, "The tokenizer", tokenizer_info},
    {"POST", "/drain", Access::kAdmin, "Take no more requests", drain},
    {"POST", "/undrain", Access::kAdmin, "Take requests again", undrain},
    {"GET", "/", Access::kOpen, "The web page, or name and version", index},
    {"GET", "/web/*", Access::kOpen, "Files of the web page", web_file},
};

// Of APIs that clients know: to be told apart from a mistyped path.
struct Missing {
  std::string_view path;  // or everything below, with a '*'
  std::string_view reason;
};
constexpr Missing kMissing[] = {
    {"/v1/responses*", "the Responses API is not there yet"},
    {"/v1/messages*", "the Messages API is not there yet"},
    {"/v1/embeddings", "the model makes no embeddings"},
    {"/v1/score", "the model does not score"},
    {"/score", "the model does not score"},
    {"/v1/rerank", "the model does not rank"},
    {"/rerank", "the model does not rank"},
    {"/pooling", "the model makes no embeddings"},
    {"/classify", "the model does not classify"},
    {"/v1/audio/*", "the model makes text only"},
    {"/v1/images/*", "the model makes text only"},
    {"/v1/files*", "there are no files here; `millrace batch` runs batch files"},
    {"/v1/batches*", "there are no files here; `millrace batch` runs batch files"},
    {"/v1/load_lora_adapter", "there are no adapters"},
    {"/v1/unload_lora_adapter", "there are no adapters"},
    {"/start_profile", "there is no profiler"},
    {"/stop_profile", "there is no profiler"},
    {"/reset_prefix_cache", "there is no prefix cache yet"},
    {"/reset_mm_cache", "there are no images"},
    {"/reset_encoder_cache", "there are no images"},
    {"/pause", "not supported; /drain is"},
    {"/resume", "not supported; /undrain is"},
    {"/is_paused", "not supported"},
    {"/sleep", "not supported"},
    {"/wake_up", "not supported"},
    {"/is_sleeping", "not supported"},
    {"/scale_elastic_ep", "not supported"},
    {"/is_scaling_elastic_ep", "not supported"},
    {"/v1/chat/completions/batch", "not supported; `millrace batch` runs batch files"},
    {"/v1/chat/completions/render", "not supported; /tokenize takes messages"},
    {"/v1/completions/render", "not supported; /tokenize is"},
};

struct Alias {
  std::string_view path, canonical;
};
constexpr Alias kAliases[] = {
    {"/chat/completions", "/v1/chat/completions"},
    {"/beta/chat/completions", "/v1/chat/completions"},
    {"/completions", "/v1/completions"},
    {"/beta/completions", "/v1/completions"},
    {"/models", "/v1/models"},
    {"/responses", "/v1/responses"},
    {"/tokenize", "/v1/tokenize"},
    {"/detokenize", "/v1/detokenize"},
    {"/anthropic/v1/messages", "/v1/messages"},
    {"/anthropic/v1/messages/count_tokens", "/v1/messages/count_tokens"},
};

bool path_matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.starts_with(pattern);
}

}  // namespace

bool Route::matches(std::string_view other) const {
  return path_matches(path, other) && other.size() >= path.size();  // a '*' is not empty
}

std::span<const Route> routes() { return kRoutes; }

bool is_probe(std::string_view path) {
  constexpr std::string_view kProbes[] = {"/metrics", "/health", "/health/live", "/health/ready",
                                          "/load",    "/ping",   "/version"};
  return std::find(std::begin(kProbes), std::end(kProbes), path) != std::end(kProbes);
}

std::optional<std::string> canonical_path(std::string_view path, std::string_view root_path) {
  if (!root_path.empty()) {
    // A proxy may have taken the prefix off already.
    if (path.starts_with(root_path)) path.remove_prefix(root_path.size());
    if (path.empty()) path = "/";
    if (!path.starts_with('/')) return std::nullopt;
  }
  for (const Alias& alias : kAliases) {
    if (alias.path == path) return std::string(alias.canonical);
  }
  return std::string(path);
}

FoundRoute find_route(std::string_view method, std::string_view path) {
  FoundRoute found;
  for (const Route& route : kRoutes) {
    if (!route.matches(path)) continue;
    if (route.method == method || (method == "HEAD" && route.method == "GET")) {
      found.route = &route;
      return found;
    }
    found.allowed_methods +=
        (found.allowed_methods.empty() ? "" : ", ") + std::string(route.method);
    if (route.method == "GET") found.allowed_methods += ", HEAD";
  }
  openai::ApiError& error = found.error;
  if (!found.allowed_methods.empty()) {
    error.status = 405, error.type = "invalid_request_error";
    error.message = format("found method ", method, ", expected ", found.allowed_methods);
    return found;
  }
  for (const Missing& missing : kMissing) {
    if (!path_matches(missing.path, path)) continue;
    error.status = 501, error.type = "not_implemented_error";
    error.message = std::string(missing.reason);
    return found;
  }
  error.status = 404, error.type = "not_found_error";
  error.message = "there is nothing under this path";
  return found;
}

}  // namespace millrace
