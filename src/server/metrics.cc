#include "server/metrics.h"

#include <algorithm>

#include <prometheus/text_serializer.h>

#include "base/format.h"
#include "server/open_metrics.h"
#include "server/process_stats.h"
#include "server/routes.h"

namespace millrace {
namespace {

constexpr size_t kRecent = 1024;  // requests whose times are kept for percentiles

const std::vector<double> kFirstToken{.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,  .75,
                                      1,    2.5,  5,   7.5, 10,  20,  40,  80,  160, 640, 2560};
const std::vector<double> kToken{.001, .0015, .002, .003, .005, .01, .025, .05, .075, .1, .15, .2,
                                 .3,   .4,    .5,   .75,  1,    2.5, 5,    7.5, 10,   20, 40,  80};
const std::vector<double> kRequest{.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,  15,  20,
                                   30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kChoices{1, 2, 5, 10, 20};
const std::vector<double> kIteration{kStepRows.begin(), kStepRows.end()};
const std::vector<double> kBytes{1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8};
const std::vector<double> kHttpSeconds{.001, .01, .1, .5, 1, 5, 10, 30, 60, 300};
const std::vector<double> kLifetime{.001, .01, .1, 1, 10, 60, 300, 1800};

// 1, 2, 5, 10, 20, 50 ... up to the length of the context.
std::vector<double> token_buckets(int64_t max_model_len) {
  std::vector<double> buckets;
  for (double decade = 1; decade <= double(max_model_len); decade *= 10) {
    for (double factor : {1, 2, 5}) {
      if (decade * factor <= double(max_model_len)) buckets.push_back(decade * factor);
    }
  }
  return buckets;
}

void keep(std::deque<double>& values, double value) {
  values.push_back(value);
  if (values.size() > kRecent) values.pop_front();
}

// A counter that follows a total that something else keeps.
void follow(prometheus::Counter& counter, double total) {
  counter.Increment(std::max(0.0, total - counter.Value()));
}

std::string method_label(std::string_view method) {
  for (const char* known : {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    if (method == known) return known;
  }
  return "other";
}

}  // namespace

Metrics::Metrics(const MetricsOptions& options)
    : prefix_(options.prefix),
      common_{{"model_name", options.model_name}, {"engine", "0"}} {
  const std::vector<double> tokens = token_buckets(options.max_model_len);

  running_ = &gauge("num_requests_running", "Requests in the running batch.");
  waiting_ = &gauge("num_requests_waiting", "Requests that wait for room.");
  const std::string by_reason = "num_requests_waiting_by_reason";
  const std::string by_reason_help = "Requests that wait, by what they wait for.";
  waiting_for_room_ = &gauge(by_reason, by_reason_help, {{"reason", "capacity"}});
  gauge(by_reason, by_reason_help, {{"reason", "deferred"}});
  kv_usage_ = &gauge("kv_cache_usage_perc", "Part of the cache's blocks in use, 0 to 1.");
  preemptions_ = &counter("num_preemptions_total", "Sequences that lost their place.");
  prompt_tokens_ = &counter("prompt_tokens_total", "Prompt tokens of answered requests.");
  generation_tokens_ = &counter("generation_tokens_total", "Tokens generated.");
  const std::string by_source = "prompt_tokens_by_source_total";
  const std::string by_source_help = "Prompt tokens by where their state came from.";
  computed_tokens_ = &counter(by_source, by_source_help, {{"source", "local_compute"}});
  for (const char* source : {"local_cache_hit", "external_kv_transfer"}) {
    counter(by_source, by_source_help, {{"source", source}});
  }
  for (const char* reason : {"stop", "length", "abort", "error", "repetition"}) {
    finished_[reason] = &counter("request_success_total", "Choices by how they ended.",
                                 {{"finished_reason", reason}});
  }
  for (const bool streamed : {false, true}) {
    for (const char* outcome : {"tool_call", "no_tool_call", "parse_error"}) {
      prometheus::Counter& series =
          counter("tool_call_parser_invocations_total", "Choices of requests with tools.",
                  {{"mode", streamed ? "streaming" : "non_streaming"},
                   {"outcome", outcome},
                   {"request_type", "chat"}});
      if (std::string_view(outcome) != "parse_error") {
        tool_calls_[{streamed, std::string_view(outcome) == "tool_call"}] = &series;
      }
    }
  }

  ttft_ = &histogram("time_to_first_token_seconds",
                     "From the request's arrival to its first token.", kFirstToken);
  itl_ = &histogram("inter_token_latency_seconds", "Between two tokens of a choice.", kToken);
  time_per_token_ = &histogram("request_time_per_output_token_seconds",
                               "Mean time between tokens, by request.", kToken);
  e2e_ = &histogram("e2e_request_latency_seconds", "From arrival to the last token.", kRequest);
  queue_ = &histogram("request_queue_time_seconds", "From arrival to the engine's first step.",
                      kRequest);
  prefill_ = &histogram("request_prefill_time_seconds",
                        "From the engine's first step to the first token.", kRequest);
  decode_ = &histogram("request_decode_time_seconds", "From the first token to the last.",
                       kRequest);
  inference_ = &histogram("request_inference_time_seconds",
                          "From the engine's first step to the last token.", kRequest);
  num_prompt_ = &histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens);
  num_generated_ = &histogram("request_generation_tokens", "Tokens that a request generated.",
                              tokens);
  longest_generated_ = &histogram("request_max_num_generation_tokens",
                                  "Tokens of a request's longest choice.", tokens);
  max_tokens_ = &histogram("request_params_max_tokens", "max_tokens of requests.", tokens);
  num_choices_ = &histogram("request_params_n", "n of requests.", kChoices);
  num_computed_ = &histogram("request_prefill_kv_computed_tokens",
                             "Prompt tokens that had to be computed.", tokens);
  step_rows_ = &histogram("iteration_tokens_total", "Rows of a step, prompts and answers.",
                          kIteration);

  const auto own = [](std::string_view name) { return "millrace_" + std::string(name); };
  const auto own_gauge = [&](std::string_view name, const char* help) {
    return &prometheus::BuildGauge().Name(own(name)).Help(help).Register(registry_).Add(common_);
  };
  paused_ =
      own_gauge("num_requests_paused", "Requests that rest because nobody reads their answer.");
  blocks_used_ = own_gauge("kv_blocks_used", "Blocks of the cache in use.");
  in_place_ = own_gauge("engine_in_place_seconds",
                        "How long the engine's step has been where it is; 0 when it waits.");
  oldest_waiting_ = own_gauge("oldest_waiting_request_seconds",
                              "How long the request has waited that waits longest.");
  const auto start_gauge = [&](const char* phase) {
    return &prometheus::BuildGauge()
                .Name(own("startup_seconds"))
                .Help("What starting took, by phase.")
                .Register(registry_)
                .Add(with_common({{"phase", phase}}));
  };
  start_engine_ = start_gauge("engine");
  start_total_ = start_gauge("total");
  const auto own_counter = [&](std::string_view name, const char* help, Labels labels = {}) {
    return &prometheus::BuildCounter()
                .Name(own(name))
                .Help(help)
                .Register(registry_)
                .Add(with_common(std::move(labels)));
  };
  steps_ = own_counter("engine_steps_total", "Steps of the engine.");
  prefill_rows_ = own_counter("prefill_rows_total", "Rows of prompts in those steps.");
  decode_rows_ = own_counter("decode_rows_total", "Rows of generated tokens in those steps.");
  recomputed_rows_ = own_counter("recomputed_rows_total", "Prefill rows paid for a second time.");
  step_seconds_ = own_counter("engine_step_seconds_total", "Time in steps.");
  region_seconds_ = own_counter("engine_region_seconds_total",
                                "Of that, with all threads of the engine at work.");
  const auto phase_counter = [&](const char* phase) {
    return own_counter("engine_phase_seconds_total", "Time in steps, by phase.",
                       {{"phase", phase}});
  };
  plan_seconds_ = phase_counter("plan");
  run_seconds_ = phase_counter("run");
  commit_seconds_ = phase_counter("commit");
  engram_reads_ = own_counter("engram_reads_total", "Rows of Engram tables that were read.");
  engram_bytes_ = own_counter("engram_read_bytes_total", "Bytes of those rows.");
  expert_cache_ = own_gauge("expert_cache_bytes",
                            "Memory for experts that are read from the disk; 0: they are mapped.");
  const auto lookup_counter = [&](const char* outcome) {
    return own_counter("expert_cache_lookups_total", "Experts asked of the cache, by outcome.",
                       {{"outcome", outcome}});
  };
  expert_hits_ = lookup_counter("hit");
  expert_misses_ = lookup_counter("miss");
  expert_bytes_ = own_counter("expert_read_bytes_total", "Bytes of experts read from the disk.");
  expert_wait_ = own_counter("expert_wait_seconds_total",
                             "Time in steps in which no expert asked for had come.");
  unread_answers_ = own_counter("unread_answers_total",
                                "Answers that were cut off because their client took nothing.");
  slow_readers_ = own_counter("slow_reader_pauses_total",
                              "Times that an answer waited for its reader.");
  empty_answers_ = own_counter("empty_answers_total",
                               "Chats that stopped with neither answer nor call.");
  prometheus::Family<prometheus::Counter>& rejections =
      prometheus::BuildCounter()
          .Name(own("rejected_requests_total"))
          .Help("Requests refused for their number, by reason.")
          .Register(registry_);
  for (const char* reason : {"overloaded", "draining", "key_limit"}) {
    Labels labels = common_;
    labels["reason"] = reason;
    rejections_[reason] = &rejections.Add(labels);
  }

  http_requests_ = &prometheus::BuildCounter()
                        .Name("http_requests_total")
                        .Help("Requests by route, method and class of status.")
                        .Register(registry_);
  const auto http = [&](const char* name, const char* help) {
    return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  };
  http_seconds_ = http("http_request_duration_seconds", "From the header to the answer's end.");
  http_request_bytes_ = http("http_request_size_bytes", "Bytes of the request's body.");
  http_response_bytes_ = http("http_response_size_bytes", "Bytes of the answer's body.");

  add_http_series();

  const auto process_gauge = [this](const char* name, const char* help) {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add({});
  };
  const ProcessStats process = process_stats();
  process_gauge("process_start_time_seconds", "When the process began, in seconds since 1970.")
      ->Set(process.start_time_s);
  process_gauge("process_max_fds", "Descriptors that the process may have open.")
      ->Set(double(process.max_fds));
  resident_bytes_ =
      process_gauge("process_resident_memory_bytes", "Memory in use, mapped files too.");
  virtual_bytes_ = process_gauge("process_virtual_memory_bytes", "Addresses in use.");
  open_fds_ = process_gauge("process_open_fds", "Descriptors that are open.");
  cpu_seconds_ = &prometheus::BuildCounter()
                      .Name("process_cpu_seconds_total")
                      .Help("Processor time of all threads.")
                      .Register(registry_)
                      .Add({});

  add_series_of_parts_to_come();
}

// What a route's first request would add otherwise; other series that clients can cause are few.
void Metrics::add_http_series() {
  for (const Route& route : routes()) {
    if (is_probe(route.path)) continue;
    Labels labels{{"handler", std::string(route.path)}, {"method", std::string(route.method)}};
    http_seconds_->Add(labels, kHttpSeconds);
    http_request_bytes_->Add(labels, kBytes);
    http_response_bytes_->Add(labels, kBytes);
    for (const char* status : {"2xx", "4xx", "5xx"}) {
      labels["status"] = status;
      http_requests_->Add(labels);
    }
  }
}

// Dashboards ask for these names. Nothing counts them before the parts that they tell of are there.
void Metrics::add_series_of_parts_to_come() {
  for (const char* name :
       {"prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries",
        "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits", "prompt_tokens_cached",
        "corrupted_requests", "spec_decode_num_drafts", "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens", "nixl_num_failed_transfers",
        "nixl_num_failed_notifications", "nixl_num_kv_expired_reqs", "kv_offload_load_bytes",
        "kv_offload_store_bytes", "kv_offload_load_time", "kv_offload_store_time",
        "kv_offload_stores_skipped", "kv_offload_allocation_failure",
        "kv_offload_tiering_read_bytes", "kv_offload_tiering_read_time",
        "kv_offload_tiering_write_bytes", "kv_offload_tiering_write_time",
        "kv_offload_tiering_chunk_queries", "kv_offload_tiering_chunk_hits",
        "kv_offload_tiering_promotion_job_failures", "kv_offload_tiering_cascade_job_failures"}) {
    counter(std::string(name) + "_total", "0 until the part that counts it is there.");
  }
  counter("spec_decode_num_accepted_tokens_per_pos_total",
          "0 until the part that counts it is there.", {{"position", "0"}});
  for (const char* name :
       {"nixl_xfer_time_seconds", "nixl_post_time_seconds", "kv_block_lifetime_seconds",
        "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds",
        "kv_offload_lookup_sync_delay_seconds", "kv_offload_lookup_async_delay_seconds"}) {
    histogram(name, "Empty until the part that counts it is there.", kLifetime);
  }
  for (const char* name : {"nixl_bytes_transferred", "nixl_num_descriptors",
                           "kv_offload_load_size", "kv_offload_store_size"}) {
    histogram(name, "Empty until the part that counts it is there.", kBytes);
  }
  for (const char* name :
       {"kv_offload_cpu_cache_usage_perc", "kv_offload_cpu_cache_write_usage_perc",
        "kv_offload_cpu_cache_read_usage_perc"}) {
    gauge(name, "0 until the part that counts it is there.");
  }
  for (const char* state : {"awake", "weights_offloaded", "discard_all"}) {
    gauge("engine_sleep_state", "1 for the state that the engine is in.", {{"sleep_state", state}})
        .Set(std::string_view(state) == "awake");
  }
}

Metrics::Labels Metrics::with_common(Labels labels) const {
  labels.insert(common_.begin(), common_.end());
  return labels;
}

prometheus::Counter& Metrics::counter(const std::string& name, const std::string& help,
                                      Labels labels) {
  return prometheus::BuildCounter()
      .Name(full_name(name))
      .Help(help)
      .Register(registry_)
      .Add(with_common(std::move(labels)));
}

prometheus::Gauge& Metrics::gauge(const std::string& name, const std::string& help, Labels labels) {
  return prometheus::BuildGauge()
      .Name(full_name(name))
      .Help(help)
      .Register(registry_)
      .Add(with_common(std::move(labels)));
}

prometheus::Histogram& Metrics::histogram(const std::string& name, const std::string& help,
                                          const std::vector<double>& buckets, Labels labels) {
  return prometheus::BuildHistogram()
      .Name(full_name(name))
      .Help(help)
      .Register(registry_)
      .Add(with_common(std::move(labels)), buckets);
}

void Metrics::on_first_token(double seconds) {
  ttft_->Observe(seconds);
  keep(recent_.ttft_s, seconds);
}

void Metrics::on_token_gap(double seconds) { itl_->Observe(seconds); }

void Metrics::on_choice(const Ended& ended) {
  const auto found = finished_.find(ended.finished_reason);
  if (found != finished_.end()) found->second->Increment();
  if (ended.is_empty) empty_answers_->Increment();
  if (ended.is_chat_with_tools) {
    tool_calls_.at({ended.is_streamed, ended.has_tool_calls})->Increment();
  }
}

void Metrics::on_request(const Served& served) {
  const RequestTimes& times = served.times;
  e2e_->Observe(times.e2e_s);
  queue_->Observe(times.queue_s);
  prefill_->Observe(times.prefill_s);
  decode_->Observe(times.decode_s);
  inference_->Observe(times.prefill_s + times.decode_s);
  num_prompt_->Observe(double(served.num_prompt_tokens));
  num_computed_->Observe(double(served.num_prompt_tokens));
  num_generated_->Observe(double(served.num_output_tokens));
  longest_generated_->Observe(double(served.longest_output));
  max_tokens_->Observe(double(served.max_tokens));
  num_choices_->Observe(double(served.num_choices));
  prompt_tokens_->Increment(double(served.num_prompt_tokens));
  keep(recent_.e2e_s, times.e2e_s);
  if (served.longest_output < 2) return;
  const double per_token = times.decode_s / double(served.longest_output - 1);
  time_per_token_->Observe(per_token);
  keep(recent_.itl_s, per_token);
}

void Metrics::on_rejection(std::string_view reason) {
  const auto found = rejections_.find(reason);
  if (found != rejections_.end()) found->second->Increment();
}

void Metrics::on_http(const std::string& handler, std::string_view method, int status,
                      double seconds, size_t request_bytes, size_t response_bytes) {
  Labels labels{{"handler", handler}, {"method", method_label(method)}};
  http_seconds_->Add(labels, kHttpSeconds).Observe(seconds);
  http_request_bytes_->Add(labels, kBytes).Observe(double(request_bytes));
  http_response_bytes_->Add(labels, kBytes).Observe(double(response_bytes));
  labels["status"] = format(status / 100, "xx");
  http_requests_->Add(labels).Increment();
}

void Metrics::on_start(double engine_s, double total_s) {
  start_engine_->Set(engine_s);
  start_total_->Set(total_s);
}

void Metrics::set(const SchedulerStats& stats, const EngineCounters& counters,
                  const EngineInfo& info) {
  running_->Set(double(stats.num_running_requests));
  waiting_->Set(double(stats.num_waiting_requests));
  waiting_for_room_->Set(double(stats.num_waiting_requests));
  paused_->Set(double(stats.num_paused_requests));
  const int64_t used = stats.num_blocks - stats.num_free_blocks;
  blocks_used_->Set(double(used));
  kv_usage_->Set(stats.num_blocks == 0 ? 0 : double(used) / double(stats.num_blocks));
  follow(*preemptions_, double(stats.num_preemptions));
  follow(*computed_tokens_, double(stats.num_prompt_tokens));
  follow(*steps_, double(stats.num_steps));
  follow(*prefill_rows_, double(stats.num_prefill_rows));
  follow(*decode_rows_, double(stats.num_decode_rows));
  follow(*recomputed_rows_, double(stats.num_recomputed_rows));
  follow(*step_seconds_, double(counters.step_ns) * 1e-9);
  follow(*region_seconds_, double(counters.region_ns) * 1e-9);
  follow(*plan_seconds_, double(counters.plan_ns) * 1e-9);
  follow(*run_seconds_, double(counters.step_ns - counters.plan_ns - counters.commit_ns) * 1e-9);
  follow(*commit_seconds_, double(counters.commit_ns) * 1e-9);
  follow(*engram_reads_, double(counters.num_rows * info.engram_reads_per_row));
  follow(*engram_bytes_, double(counters.num_rows * info.engram_bytes_per_row));
  const ExpertReads& reads = counters.expert_reads;
  expert_cache_->Set(double(reads.cache_bytes));
  follow(*expert_hits_, double(reads.num_hits));
  follow(*expert_misses_, double(reads.num_misses));
  follow(*expert_bytes_, double(reads.num_bytes));
  follow(*expert_wait_, double(reads.wait_ns) * 1e-9);
  std::vector<double> steps;
  for (size_t i = 0; i < counters.num_steps_by_rows.size(); ++i) {
    steps.push_back(double(counters.num_steps_by_rows[i] - observed_.num_steps_by_rows[i]));
  }
  step_rows_->ObserveMultiple(steps, double(counters.num_rows - observed_.num_rows));
  observed_ = counters;
  if (cache_config_ != nullptr) return;
  cache_config_ = &gauge("cache_config_info", "1; the labels describe the cache.",
                         {{"block_size", format(stats.block_size)},
                          {"num_gpu_blocks", format(stats.num_blocks)},
                          {"cache_dtype", "auto"}});
  cache_config_->Set(1);
}

void Metrics::set_process() {
  const ProcessStats process = process_stats();
  resident_bytes_->Set(double(process.resident_bytes));
  virtual_bytes_->Set(double(process.virtual_bytes));
  open_fds_->Set(double(process.open_fds));
  follow(*cpu_seconds_, process.cpu_s);
}

std::string Metrics::text(const Engine& engine, double oldest_waiting_s, bool open_metrics) {
  set(engine.stats(), engine.counters(), engine.info());
  in_place_->Set(engine.health().in_place_ms.value_or(0) / 1000);
  oldest_waiting_->Set(oldest_waiting_s);
  set_process();
  const std::vector<prometheus::MetricFamily> families = registry_.Collect();
  if (open_metrics) return open_metrics_text(families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace millrace
