#include "server/operations.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "base/distribution.h"
#include "base/format.h"
#include "chat/json_writer.h"
#include "chat/request_parser.h"
#include "engine/watchdog.h"
#include "server/completion_call.h"
#include "server/context.h"
#include "server/routes.h"
#include "server/web_files.h"

namespace millrace {
namespace {

double uptime_s(const ServerContext& context) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - context.start_time)
      .count();
}

void write_model(const ServerContext& context, const std::string& name, JsonWriter& json) {
  json.begin_object().member("id", name).member("object", "model");
  json.member("created", context.created).member("owned_by", "millrace");
  json.member("root", context.options.model_root).key("parent").null();
  json.member("max_model_len", context.llm.engine().max_model_len());
  json.key("permission").begin_array().end_array().end_object();
}

// Why the server should get no traffic; empty: it should.
std::string unhealthy_reason(const ServerContext& context) {
  if (context.is_draining) return "draining";
  return find_stall(context.llm.engine().health(), context.options.watchdog_s * 1000).value_or("");
}

void answer_health(std::unique_ptr<Call> call, const std::string& reason) {
  if (reason.empty()) {
    call->respond(200, "", "");
    return;
  }
  JsonWriter json;
  json.begin_object().member("status", "unavailable").member("reason", reason);
  call->respond(503, "application/json", json.end_object().text());
}

int64_t cpu_ns(clockid_t clock) {
  timespec used{};
  ::clock_gettime(clock, &used);
  return int64_t(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
}

// Processor time by what it was used for. The engine's is what the server's own threads left.
void write_cpu(const ServerContext& context, JsonWriter& json) {
  const int64_t process_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  const int64_t network_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);  // the caller is its thread
  const int64_t workers_ns = context.workers.cpu_ns();
  json.key("cpu").begin_object().member("process_ns", process_ns);
  json.member("network_ns", network_ns).member("workers_ns", workers_ns);
  json.member("engine_ns", process_ns - network_ns - workers_ns).end_object();
}

void write_percentiles(const std::deque<double>& values, JsonWriter& json) {
  const Distribution d = distribution({values.begin(), values.end()});
  json.begin_object();
  for (const auto& [name, value] : {std::pair{"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}}) {
    json.key(name);
    if (values.empty()) {
      json.null();
    } else {
      json.value(value);
    }
  }
  json.end_object();
}

// A list of media types names this one, or everything.
bool accepts(const net::HttpRequest& request, std::string_view type) {
  const std::string* accept = request.header("accept");
  return accept != nullptr && accept->find(type) != accept->npos;
}

void respond_file(Call& call, std::string_view path) {
  const WebFile* file = find_web_file(path);
  if (file == nullptr) {
    openai::ApiError error;
    error.status = 404, error.type = "not_found_error";
    error.message = "there is nothing under this path";
    call.respond_error(error);
    return;
  }
  net::HttpResponse response;
  response.headers = common_headers(call.context(), &call.request(), call.id());
  response.headers.emplace_back("Content-Type", std::string(file->content_type));
  response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
      "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.body = std::string(file->content);
  call.exchange().respond(std::move(response));
}

}  // namespace

void list_models(std::unique_ptr<Call> call) {
  JsonWriter json;
  json.begin_object().member("object", "list").key("data").begin_array();
  for (const std::string& name : call->context().options.served_model_names) {
    write_model(call->context(), name, json);
  }
  call->respond_json(json.end_array().end_object().text());
}

void get_model(std::unique_ptr<Call> call) {
  const std::string name = call->path().substr(std::string_view("/v1/models/").size());
  const std::vector<std::string>& names = call->context().options.served_model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    call->respond_error(openai::model_not_found(name, names.front()));
    return;
  }
  JsonWriter json;
  write_model(call->context(), name, json);
  call->respond_json(json.text());
}

void health(std::unique_ptr<Call> call) {
  const std::string reason = unhealthy_reason(call->context());
  answer_health(std::move(call), reason);
}

void health_live(std::unique_ptr<Call> call) { answer_health(std::move(call), ""); }

void version(std::unique_ptr<Call> call) {
  JsonWriter json;
  json.begin_object().member("version", call->context().version);
  call->respond_json(json.end_object().text());
}

void load(std::unique_ptr<Call> call) {
  JsonWriter json;
  json.begin_object().member("server_load", call->context().admission.num_open_requests());
  call->respond_json(json.end_object().text());
}

void metrics(std::unique_ptr<Call> call) {
  const bool open_metrics = accepts(call->request(), "application/openmetrics-text");
  ServerContext& context = call->context();
  double oldest_waiting_s = 0;
  for (const auto& [id, open] : context.open_calls) {
    oldest_waiting_s = std::max(oldest_waiting_s, open->waiting_s());
  }
  std::string text = context.metrics.text(context.llm.engine(), oldest_waiting_s, open_metrics);
  call->respond(200,
                open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                             : "text/plain; version=0.0.4; charset=utf-8",
                std::move(text));
}

void server_info(std::unique_ptr<Call> call) {
  const ServerContext& context = call->context();
  const ServerOptions& options = context.options;
  const Engine& engine = context.llm.engine();
  const EngineInfo& info = engine.info();
  JsonWriter json;
  json.begin_object().member("version", context.version);
  json.member("system_fingerprint", context.system_fingerprint);
  json.member("uptime_s", uptime_s(context));
  json.key("models").begin_array();
  for (const std::string& name : options.served_model_names) json.value(name);
  json.end_array();
  json.key("engine").begin_object().member("numerics_id", info.numerics_id);
  json.member("isa", info.isa).member("threads", info.num_threads);
  json.member("max_model_len", engine.max_model_len()).member("max_num_seqs", info.max_num_seqs);
  json.member("vocab_size", engine.vocab_size()).member("mapped_bytes", info.mapped_bytes);
  json.member("copied_bytes", info.copied_bytes).member("kv_bytes", info.kv_bytes);
  json.member("expert_reads", info.expert_reads);
  json.member("expert_cache_bytes", engine.counters().expert_reads.cache_bytes).end_object();
  json.key("server").begin_object().member("host", options.host).member("port", options.port);
  json.member("unix_socket", options.unix_socket).member("root_path", options.root_path);
  json.member("tls", options.tls.has_value());
  json.member("num_api_keys", int64_t(options.api_keys.size()));
  json.member("max_body_bytes", int64_t(options.http.max_body_bytes));
  json.member("shutdown_timeout_s", options.shutdown_timeout_s).end_object();
  json.member("chat_encoding", "DeepSeek-V4.1").key("reasoning_effort").begin_object();
  for (const EffortLevel& level : default_effort_levels()) json.member(level.name, level.effort);
  json.end_object();
  call->respond_json(json.end_object().text());
}

void openapi(std::unique_ptr<Call> call) {
  JsonWriter json;
  json.begin_object().member("openapi", "3.1.0").key("info").begin_object();
  json.member("title", "Millrace").member("version", call->context().version).end_object();
  json.key("paths").begin_object();
  std::vector<std::string_view> written;
  for (const Route& route : routes()) {
    if (std::find(written.begin(), written.end(), route.path) != written.end()) continue;
    written.push_back(route.path);
    const bool has_rest = route.path.ends_with('*');
    std::string path(route.path.substr(0, route.path.size() - has_rest));
    json.key(has_rest ? path + "{id}" : path).begin_object();
    for (const Route& other : routes()) {
      if (other.path != route.path) continue;
      std::string method(other.method);
      for (char& c : method) c = char(c + ('a' - 'A'));
      json.key(method).begin_object().member("summary", other.summary);
      if (has_rest) {
        json.key("parameters").begin_array().begin_object().member("name", "id");
        json.member("in", "path").member("required", true).key("schema").begin_object();
        json.member("type", "string").end_object().end_object().end_array();
      }
      json.key("responses").begin_object().key("200").begin_object();
      json.member("description", "as docs/server.md says").end_object().end_object().end_object();
    }
    json.end_object();
  }
  call->respond_json(json.end_object().end_object().text());
}

void engine_stats(std::unique_ptr<Call> call) {
  const ServerContext& context = call->context();
  const Engine& engine = context.llm.engine();
  const SchedulerStats stats = engine.stats();
  const EngineCounters counters = engine.counters();
  const EngineInfo& info = engine.info();
  JsonWriter json;
  json.begin_object().member("model", context.options.served_model_names.front());
  json.member("version", context.version).member("numerics_id", info.numerics_id);
  json.member("isa", info.isa).member("threads", info.num_threads);
  json.member("uptime_s", uptime_s(context)).member("max_model_len", engine.max_model_len());
  json.key("requests").begin_object().member("running", stats.num_running_requests);
  json.member("waiting", stats.num_waiting_requests).member("paused", stats.num_paused_requests);
  json.member("max_num_seqs", info.max_num_seqs);
  json.member("max_waiting",
              context.options.max_open_requests.value_or(info.max_num_seqs) - info.max_num_seqs);
  json.member("open", context.admission.num_open_requests()).end_object();
  json.key("tokens").begin_object().member("prompt_computed", stats.num_prompt_tokens);
  json.member("prompt_cached", 0).member("output", stats.num_output_tokens).end_object();
  json.key("kv").begin_object().member("blocks_used", stats.num_blocks - stats.num_free_blocks);
  json.member("blocks_total", stats.num_blocks).member("block_size", stats.block_size);
  json.member("bytes", info.kv_bytes).end_object();
  json.key("steps").begin_object().member("count", counters.num_steps);
  json.member("rows", counters.num_rows).member("step_ns", counters.step_ns);
  json.member("region_ns", counters.region_ns).end_object();
  const ExpertReads& reads = counters.expert_reads;
  json.key("expert_cache").begin_object().member("reads", info.expert_reads);
  json.member("bytes", reads.cache_bytes).member("hits", reads.num_hits);
  json.member("misses", reads.num_misses).member("bytes_read", reads.num_bytes);
  json.member("wait_ns", reads.wait_ns).end_object();
  write_cpu(context, json);
  json.key("experts").begin_array();
  const ExpertLoad load = engine.expert_load();
  for (int64_t layer = 0; layer < load.num_layers; ++layer) {
    const auto first = load.num_tokens.begin() + layer * load.num_experts;
    json.begin_object().member("layer", layer).key("tokens");
    json.value(std::vector<int64_t>(first, first + load.num_experts)).end_object();
  }
  json.end_array().key("latency_s").begin_object();
  const Metrics::Recent& recent = context.metrics.recent();
  json.key("ttft");
  write_percentiles(recent.ttft_s, json);
  json.key("itl");
  write_percentiles(recent.itl_s, json);
  json.key("e2e");
  write_percentiles(recent.e2e_s, json);
  call->respond_json(json.end_object().end_object().text());
}

void drain(std::unique_ptr<Call> call) {
  call->context().is_draining = true;
  call->respond_json(R"({"draining": true})");
}

void undrain(std::unique_ptr<Call> call) {
  call->context().is_draining = false;
  call->respond_json(R"({"draining": false})");
}

void index(std::unique_ptr<Call> call) {
  if (accepts(call->request(), "text/html")) {
    respond_file(*call, "index.html");
    return;
  }
  JsonWriter json;
  json.begin_object().member("name", "millrace").member("version", call->context().version);
  call->respond_json(json.end_object().text());
}

void web_file(std::unique_ptr<Call> call) {
  respond_file(*call, std::string_view(call->path()).substr(std::string_view("/web/").size()));
}

}  // namespace millrace
