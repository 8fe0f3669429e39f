#include "server/server.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/format.h"
#include "base/sha256.h"
#include "net/http_server.h"
#include "server/call.h"
#include "server/completion_call.h"
#include "server/context.h"
#include "server/handover.h"
#include "server/process_stats.h"
#include "server/routes.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxSmallBody = size_t(64) << 10;  // larger bodies are refused unread
constexpr milliseconds kStatsInterval{10'000};
constexpr milliseconds kTlsInterval{10'000};  // between looks at the certificate's files
constexpr milliseconds kDrainPoll{20};
constexpr milliseconds kHandoverInterval{50};
constexpr int kHandoverTries = 100;
constexpr milliseconds kLastWords{2000};       // for answers that were cut off
constexpr milliseconds kIdleWhileDraining{200};
// After a hand-over clients may be about to use a connection that they kept.
constexpr milliseconds kIdleAfterHandover{3000};

// A file that lines are appended to, whole.
class LineFile {
 public:
  static Result<std::unique_ptr<LineFile>> open(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "ae");
    if (file == nullptr) {
      return Error{Code::kUnavailable, format(path, ": cannot be written: ", std::strerror(errno))};
    }
    return std::unique_ptr<LineFile>(new LineFile(file));
  }
  ~LineFile() { std::fclose(file_); }
  void write(const std::string& line) {
    std::fwrite((line + "\n").data(), 1, line.size() + 1, file_);
    std::fflush(file_);
  }

 private:
  explicit LineFile(std::FILE* file) : file_(file) {}
  std::FILE* file_;
};

int64_t modified_ns(const std::string& path) {
  struct stat info {};
  if (path.empty() || stat(path.c_str(), &info) != 0) return 0;
  return int64_t(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

std::string lower(std::string text) {
  for (char& c : text) c = char(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  return text;
}

bool is_json(const net::HttpRequest& request) {
  const std::string* type = request.header("content-type");
  if (type == nullptr) return false;
  std::string name = lower(type->substr(0, type->find(';')));
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name == "application/json" || name.ends_with("+json");
}

bool is_loopback(std::string_view host) {
  const bool is_of_net_127 =  // 127.0.0.1.example is a name like any other
      host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "::1" || is_of_net_127;
}

// The name in a Host header, without port and brackets.
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// Whether a request may call a server at a loopback address so.
bool is_own_name(std::string_view name, const std::vector<std::string>& allowed) {
  if (is_loopback(name) || name.empty()) return true;
  const auto is_allowed = [&](const std::string& host) { return host == "*" || host == name; };
  return std::any_of(allowed.begin(), allowed.end(), is_allowed);
}

// Bodies are read as they come.
bool has_coding(const net::HttpRequest& request) {
  return std::any_of(request.headers.begin(), request.headers.end(), [](const auto& header) {
    return header.first == "content-encoding" && !header.second.empty() &&
           lower(header.second) != "identity";
  });
}

// What is read of it is memory before anything is said about the request.
bool has_large_body(const net::HttpRequest& request) {
  const std::string* length = request.header("content-length");
  return request.header("transfer-encoding") != nullptr ||
         (length != nullptr && std::strtoull(length->c_str(), nullptr, 10) > kMaxSmallBody);
}

std::string http_error_type(int status) {
  switch (status) {
    case 404: return "not_found_error";
    case 501: return "not_implemented_error";
    case 503: return "service_unavailable_error";
    case 505: return "invalid_request_error";  // of HTTP itself: the client's, as 400 is
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

struct Server::Impl {
  Impl(Llm& llm, ServerOptions wish, std::string version)
      : options(std::move(wish)),
        log(options.log_json),
        keys(options.api_keys),
        metrics({options.metrics_prefix, options.served_model_names.front(),
                 llm.engine().max_model_len()}),
        admission(options.max_open_requests, options.max_queued_tokens),
        context{.options = options,
                .llm = llm,
                .loop = loop,
                .workers = workers,
                .ready = std::make_shared<ReadyQueue>(loop),
                .log = log,
                .metrics = metrics,
                .keys = keys,
                .admission = admission,
                .version = std::move(version),
                .system_fingerprint = {},
                .start_time = std::chrono::steady_clock::now(),
                .created = std::time(nullptr),
                .is_draining = false,
                .write_usage = {},
                .open_calls = {}},
        server(loop, options.http, handlers()),
        workers(options.num_workers) {
    context.system_fingerprint =
        "fp_" + sha256(format(context.version, ' ', llm.engine().info().numerics_id, ' ',
                              options.served_model_names.front()))
                    .substr(0, 16);
  }

  ~Impl() { context.ready->close(); }

  net::HttpHandlers handlers();
  std::optional<net::HttpResponse> on_header(net::HttpRequest& request);
  void on_request(std::shared_ptr<net::HttpExchange> exchange);
  void on_done(const net::HttpRequest& request, const net::ExchangeRecord& record);
  std::optional<openai::ApiError> refuse(const net::HttpRequest& request, const std::string& path,
                                         const FoundRoute& found, std::optional<size_t>& key_idx);
  // As an answer.
  std::optional<net::HttpResponse> refusal(const net::HttpRequest& request,
                                           const std::string& path, const FoundRoute& found,
                                           std::optional<size_t>& key_idx);
  net::HttpResponse preflight(const net::HttpRequest& request);

  Status listen();
  Status use_tls();
  void watch_tls();
  void log_stats();
  void offer_handover(int num_tries);
  void begin_stop();
  void stop_after_handover();
  void wait_until_drained();
  void finish_stop();

  // What the context refers to comes before it, what uses the context behind it.
  const ServerOptions options;
  net::EventLoop loop;
  Log log;
  KeyRing keys;
  Metrics metrics;
  Admission admission;
  ServerContext context;
  net::HttpServer server;
  std::unique_ptr<LineFile> usage_log;
  std::unique_ptr<HandoverOffer> handover;
  std::optional<Takeover> takeover;
  net::EventLoop::Timer stats_timer, tls_timer, handover_timer, drain_timer, end_timer;
  int64_t certificate_ns = 0;
  SchedulerStats logged_stats;
  bool is_told = false;  // to end
  bool is_handed_over = false;
  // Last: workers use everything else.
  WorkPool workers;
};

net::HttpHandlers Server::Impl::handlers() {
  net::HttpHandlers handlers;
  handlers.on_header = [this](net::HttpRequest& request) { return on_header(request); };
  handlers.on_request = [this](std::shared_ptr<net::HttpExchange> exchange) {
    on_request(std::move(exchange));
  };
  handlers.make_error = [this](int status, const std::string& message,
                               const net::HttpRequest& request) {
    openai::ApiError error;
    error.status = status, error.type = http_error_type(status), error.message = message;
    const std::string* id = request.header("x-request-id");
    const std::string path =
        canonical_path(request.path, options.root_path).value_or(request.path);
    return error_response(context, &request,
                          id != nullptr && is_request_id(*id) ? *id : make_request_id(),
                          family_of(path), error);
  };
  handlers.on_done = [this](const net::HttpRequest& request, const net::ExchangeRecord& record) {
    on_done(request, record);
  };
  return handlers;
}

// Everything that can be said without the body.
std::optional<openai::ApiError> Server::Impl::refuse(const net::HttpRequest& request,
                                                     const std::string& path,
                                                     const FoundRoute& found,
                                                     std::optional<size_t>& key_idx) {
  openai::ApiError error;
  const std::string* host = request.header("host");
  if (host != nullptr && options.unix_socket.empty() && is_loopback(options.host) &&
      !is_own_name(host_name(*host), options.allowed_hosts)) {
    error.status = 403, error.type = "permission_error";
    error.message = "Host: found a name that is not this server's; --allowed-hosts adds names";
    return error;
  }
  const Access access = found.route == nullptr ? Access::kKey : found.route->access;
  if (access == Access::kAdmin) {
    const std::string* presented = request.header("authorization");
    if (options.admin_key.empty()) {
      error.status = 403, error.type = "permission_error";
      error.message = "closed: the server was started without an admin key";
      return error;
    }
    if (presented == nullptr ||
        sha256(*presented) != sha256("Bearer " + options.admin_key)) {
      error.status = 401, error.type = "authentication_error", error.code = "invalid_api_key";
      error.message = "this path needs the admin key";
      return error;
    }
  }
  if (access == Access::kKey && !keys.is_open()) {
    key_idx = keys.find(request);
    if (!key_idx) {
      error.status = 401, error.type = "authentication_error", error.code = "invalid_api_key";
      error.message =
          "no API key was given, or not a right one; expected Authorization: Bearer KEY";
      return error;
    }
  }
  if (found.route == nullptr) return found.error;
  if (access == Access::kOpen && has_large_body(request)) {
    error.status = 413, error.type = "invalid_request_error";
    const std::string* length = request.header("content-length");
    error.message = format("body: found ", length == nullptr ? "chunks" : *length + " bytes",
                           ", expected at most ", kMaxSmallBody,
                           " bytes and a Content-Length: this path needs no key");
    return error;
  }
  if (request.method != "POST") return std::nullopt;
  if (access == Access::kKey && context.is_draining && path != "/abort_requests") {
    context.metrics.on_rejection("draining");
    error.status = 503, error.type = "service_unavailable_error", error.code = "draining";
    error.message = "the server takes no new requests";
    return error;
  }
  if (has_coding(request)) {
    error.status = 415, error.type = "invalid_request_error";
    error.message = "Content-Encoding: expected identity: compressed bodies are not read";
    return error;
  }
  const bool needs_json = access == Access::kKey;
  if (needs_json && !is_json(request)) {
    error.status = 400, error.type = "invalid_request_error", error.code = "invalid_value";
    error.message = "Content-Type: expected application/json";
    return error;
  }
  return std::nullopt;
}

std::optional<net::HttpResponse> Server::Impl::on_header(net::HttpRequest& request) {
  // Every request has an id from here on: the client's if it is one, or one of our own.
  const std::string* given = request.header("x-request-id");
  if (given == nullptr || !is_request_id(*given)) {
    std::erase_if(request.headers,
                  [](const auto& header) { return header.first == "x-request-id"; });
    request.headers.emplace_back("x-request-id", make_request_id());
  }
  if (request.method == "OPTIONS") return preflight(request);
  const bool is_early = has_large_body(request) ||
                        request.header("expect") != nullptr;  // waits for our word
  if (!is_early) return std::nullopt;
  const std::string path = canonical_path(request.path, options.root_path).value_or(request.path);
  std::optional<size_t> key_idx;
  const FoundRoute found = find_route(request.method, path);
  return refusal(request, path, found, key_idx);
}

std::optional<net::HttpResponse> Server::Impl::refusal(const net::HttpRequest& request,
                                                       const std::string& path,
                                                       const FoundRoute& found,
                                                       std::optional<size_t>& key_idx) {
  const std::optional<openai::ApiError> error = refuse(request, path, found, key_idx);
  if (!error) return std::nullopt;
  net::HttpResponse response = error_response(context, &request, *request.header("x-request-id"),
                                              family_of(path), *error);
  if (error->status == 405) response.headers.emplace_back("Allow", found.allowed_methods);
  if (error->status == 415) response.headers.emplace_back("Accept-Encoding", "identity");
  return response;
}

// Of OPTIONS, whatever the path: browsers ask so before they ask with a key.
net::HttpResponse Server::Impl::preflight(const net::HttpRequest& request) {
  net::HttpResponse response;
  response.status = 204;
  response.headers = common_headers(context, &request, *request.header("x-request-id"));
  // For browsers a * leaves out Authorization, and everything where there are credentials.
  const auto allow = [&](const char* name, const std::string& allowed, std::string_view asked) {
    const std::string* wanted = request.header(asked);
    response.headers.emplace_back(name, allowed == "*" && wanted != nullptr ? *wanted : allowed);
  };
  allow("Access-Control-Allow-Methods", options.cors.allowed_methods,
        "access-control-request-method");
  allow("Access-Control-Allow-Headers", options.cors.allowed_headers,
        "access-control-request-headers");
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

void Server::Impl::on_request(std::shared_ptr<net::HttpExchange> exchange) {
  const net::HttpRequest& request = exchange->request();
  const std::optional<std::string> path = canonical_path(request.path, options.root_path);
  auto call = std::make_unique<Call>(context, exchange, path.value_or(request.path));
  const FoundRoute found = find_route(request.method, call->path());
  if (auto response = refusal(request, call->path(), found, call->key_idx)) {
    exchange->respond(std::move(*response));
    return;
  }
  found.route->handle(std::move(call));
}

void Server::Impl::on_done(const net::HttpRequest& request, const net::ExchangeRecord& record) {
  const std::string path = canonical_path(request.path, options.root_path).value_or(request.path);
  const FoundRoute found = find_route(request.method, path);
  const double seconds = std::chrono::duration<double>(record.duration).count();
  if (record.was_unread) metrics.on_unread_answer();
  if (is_probe(path)) return;
  metrics.on_http(found.route == nullptr ? "none" : std::string(found.route->path), request.method,
                  record.status == 0 ? 499 : record.status, seconds, record.num_request_bytes,
                  record.num_response_bytes);
  if (!options.access_log) return;
  const auto id = std::find_if(record.headers.begin(), record.headers.end(),
                               [](const auto& header) { return header.first == kRequestIdHeader; });
  // A client that went before its answer had none: what it sent, or what it would have got.
  const std::string* sent = request.header("x-request-id");
  const std::string request_id = id != record.headers.end() ? id->second
                                 : sent != nullptr          ? *sent
                                                            : "-";
  Log::Fields fields{{"method", shortened(request.method)},
                     {"path", shortened(request.path)},
                     {"status", record.status},
                     {"bytes", record.num_response_bytes},
                     {"ms", seconds * 1000},
                     {"request_id", shortened(request_id)},
                     {"peer", request.peer}};
  if (!record.is_complete) fields.emplace_back("end", "client gone");
  if (const auto key_idx = keys.find(request)) fields.emplace_back("key", keys.key(*key_idx).name);
  log.write(LogLevel::kInfo, "request", fields);
}

Status Server::Impl::use_tls() {
  if (!options.tls) return {};
  certificate_ns = modified_ns(options.tls->certificate_file) + modified_ns(options.tls->key_file);
  return server.use_tls(*options.tls);
}

void Server::Impl::watch_tls() {
  if (!options.tls) return;
  tls_timer = loop.after(kTlsInterval, [this] {
    const int64_t now_ns =
        modified_ns(options.tls->certificate_file) + modified_ns(options.tls->key_file);
    if (now_ns != certificate_ns) {
      const Status status = use_tls();
      if (status.ok()) {
        log.write(LogLevel::kInfo, "certificate loaded again");
      } else {
        log.write(LogLevel::kError, "certificate not loaded, the old one stays",
                  {{"reason", status.error().message}});
      }
    }
    watch_tls();
  });
}

Status Server::Impl::listen() {
  const std::string name = handover_name(options.host, options.port, options.unix_socket);
  if (options.takes_over) {
    Result<Takeover> asked = Takeover::ask(name);
    if (asked.has_value()) {
      takeover.emplace(std::move(asked.value()));
      for (int fd : takeover->take_fds()) RETURN_IF_ERROR(server.adopt(fd));
      return {};
    }
    if (asked.error().code != Code::kNotFound) return asked.error();
  }
  if (!options.unix_socket.empty()) return server.listen_unix(options.unix_socket);
  return server.listen(options.host, options.port);
}

void Server::Impl::log_stats() {
  if (!options.log_stats) return;
  stats_timer = loop.after(kStatsInterval, [this] {
    const SchedulerStats stats = context.llm.engine().stats();
    const double interval_s = std::chrono::duration<double>(kStatsInterval).count();
    const auto rate = [&](int64_t now, int64_t before) {
      return double(now - before) / interval_s;
    };
    if (stats.num_steps != logged_stats.num_steps) {
      const int64_t used = stats.num_blocks - stats.num_free_blocks;
      log.write(LogLevel::kInfo, "engine",
                {{"prompt_tokens_per_s",
                  rate(stats.num_prompt_tokens, logged_stats.num_prompt_tokens)},
                 {"output_tokens_per_s",
                  rate(stats.num_output_tokens, logged_stats.num_output_tokens)},
                 {"running", stats.num_running_requests},
                 {"waiting", stats.num_waiting_requests},
                 {"paused", stats.num_paused_requests},
                 {"kv_used_percent",
                  stats.num_blocks == 0 ? 0 : 100 * used / stats.num_blocks}});
    }
    logged_stats = stats;
    log_stats();
  });
}

// The name is free when the process before this one has let go of it.
void Server::Impl::offer_handover(int num_tries) {
  const std::string name = handover_name(options.host, options.port, options.unix_socket);
  Result<std::unique_ptr<HandoverOffer>> offer = HandoverOffer::create(
      name, server.listener_fds(), [this] { loop.post([this] { stop_after_handover(); }); });
  if (offer.has_value()) {
    handover = std::move(offer.value());
  } else if (num_tries == kHandoverTries) {
    log.write(LogLevel::kWarning, "no other process can take over from this one",
              {{"reason", offer.error().message}});
  } else {
    handover_timer = loop.after(kHandoverInterval, [=, this] { offer_handover(num_tries + 1); });
  }
}

// ---- The end.

void Server::Impl::begin_stop() {
  if (std::exchange(is_told, true)) {
    log.write(LogLevel::kWarning, "told to end again: ends now");
    finish_stop();
    return;
  }
  log.write(LogLevel::kInfo, "draining",
            {{"open_requests", admission.num_open_requests()},
             {"timeout_s", options.shutdown_timeout_s}});
  context.is_draining = true;
  is_handed_over = false;  // what clients send from now on is refused
  handover.reset();
  server.stop_accepting(kIdleWhileDraining);
  end_timer = loop.after(std::chrono::nanoseconds(int64_t(options.shutdown_timeout_s * 1e9)),
                         [this] { finish_stop(); });
  wait_until_drained();
}

// The newcomer has the sockets. What clients send on connections that they have with us is served.
void Server::Impl::stop_after_handover() {
  if (is_told) return;
  is_handed_over = true;
  handover.reset();  // the name is the newcomer's now
  log.write(LogLevel::kInfo, "another process has taken over: draining",
            {{"open_requests", admission.num_open_requests()}});
  server.stop_accepting(kIdleAfterHandover);
  wait_until_drained();
}

void Server::Impl::wait_until_drained() {
  const bool is_drained = admission.num_open_requests() == 0 && server.num_exchanges() == 0 &&
                          (!is_handed_over || server.num_connections() == 0);
  if (is_drained) {
    loop.stop();
    return;
  }
  drain_timer = loop.after(kDrainPoll, [this] { wait_until_drained(); });
}

void Server::Impl::finish_stop() {
  std::vector<std::shared_ptr<CompletionCall>> open;
  for (const auto& [id, call] : context.open_calls) open.push_back(call->shared_from_this());
  if (!open.empty()) {
    log.write(LogLevel::kWarning, "requests given up", {{"count", open.size()}});
  }
  for (const std::shared_ptr<CompletionCall>& call : open) call->abort();
  open.clear();
  end_timer = loop.after(kLastWords, [this] { loop.stop(); });
}

Result<std::unique_ptr<Server>> Server::create(Llm& llm, ServerOptions options,
                                               std::string version) {
  MR_CHECK(!options.served_model_names.empty());
  auto impl = std::make_unique<Impl>(llm, std::move(options), std::move(version));
  RETURN_IF_ERROR(impl->use_tls());
  if (!impl->options.usage_log_file.empty()) {
    ASSIGN_OR_RETURN(impl->usage_log, LineFile::open(impl->options.usage_log_file));
    impl->context.write_usage = [file = impl->usage_log.get()](const std::string& line) {
      file->write(line);
    };
  }
  RETURN_IF_ERROR(impl->listen());
  std::unique_ptr<Server> server(new Server(std::move(impl)));
  const EngineInfo& info = llm.engine().info();
  server->impl_->log.write_always(LogLevel::kInfo, "serving",
                                  {{"address", server->address()},
                                   {"model", server->impl_->options.model_root},
                                   {"numerics", info.numerics_id},
                                   {"threads", info.num_threads},
                                   {"max_model_len", llm.engine().max_model_len()}});
  return server;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

void Server::run() {
  Impl& impl = *impl_;
  impl.loop.post([&impl] {
    // Now this process accepts: the one before may stop.
    if (impl.takeover) impl.takeover->finish();
    impl.takeover.reset();
    const double now_s =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    impl.metrics.on_start(impl.context.llm.engine().info().open_s,
                          now_s - process_stats().start_time_s);
    const ServerOptions& options = impl.options;
    if (options.port != 0 || !options.unix_socket.empty()) impl.offer_handover(0);
    impl.watch_tls();
    impl.log_stats();
  });
  impl.loop.run();
  impl.handover.reset();
}

void Server::stop() {
  impl_->loop.post([impl = impl_.get()] { impl->begin_stop(); });
}

std::string Server::address() const {
  const ServerOptions& options = impl_->options;
  if (!options.unix_socket.empty()) return "unix:" + options.unix_socket;
  const bool is_v6 = options.host.find(':') != options.host.npos;
  return format(options.tls ? "https://" : "http://", is_v6 ? "[" : "", options.host,
                is_v6 ? "]" : "", ':', impl_->server.port());
}

}  // namespace millrace
