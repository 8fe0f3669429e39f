#include "loadgen/report.h"

#include <cinttypes>

#include "base/format.h"
#include "base/print.h"
#include "chat/json_writer.h"

namespace millrace {
namespace {

constexpr double kShare = 100;

void add_setup(std::string& out, const char* name, const std::string& value) {
  if (!value.empty()) append_printf(out, "%-12s %s\n", name, value.c_str());
}

void add_distribution(std::string& out, const char* name, const Distribution& d) {
  if (d.n == 0) return;
  append_printf(out, "%-24s %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f %9" PRId64 "\n", name,
                d.mean, d.p50, d.p75, d.p90, d.p95, d.p99, d.max, d.n);
}

double client_cpu(const RunOutcome& run) {
  return run.wall_ns > 0 ? double(run.client_cpu_ns) / double(run.wall_ns) : 0;
}

void write_distribution(JsonWriter& json, const std::string& name, const Distribution& d) {
  json.member(name + "_n", d.n);
  if (d.n == 0) return;
  json.member(name + "_mean", d.mean).member(name + "_std", d.std);
  json.member(name + "_p50", d.p50).member(name + "_p75", d.p75).member(name + "_p90", d.p90);
  json.member(name + "_p95", d.p95).member(name + "_p99", d.p99).member(name + "_max", d.max);
}

// 1 / percentile, with the name of the percentile of the time.
void write_interactivity(JsonWriter& json, const std::string& name, const Distribution& d) {
  if (d.n == 0) return;
  json.member(name + "_p50", interactivity(d.p50)).member(name + "_p75", interactivity(d.p75));
  json.member(name + "_p90", interactivity(d.p90)).member(name + "_p95", interactivity(d.p95));
  json.member(name + "_p99", interactivity(d.p99));
}

void write_optional(JsonWriter& json, std::string_view name, const std::optional<int64_t>& value) {
  if (value) json.member(name, *value);
}

// What happened between two moments.
struct ServerWork {
  int64_t num_steps, output_tokens;
  double step_s, engine_cpu_s, network_cpu_s, process_cpu_s;
};

std::optional<ServerWork> server_work(const RunSetup& setup) {
  if (!setup.before || !setup.after) return std::nullopt;
  const ServerCounters &a = *setup.before, &b = *setup.after;
  const auto seconds = [](int64_t before, int64_t after) { return double(after - before) / 1e9; };
  return ServerWork{b.num_steps - a.num_steps,
                    b.output_tokens - a.output_tokens,
                    seconds(a.step_ns, b.step_ns),
                    seconds(a.engine_cpu_ns, b.engine_cpu_ns),
                    seconds(a.network_cpu_ns, b.network_cpu_ns),
                    seconds(a.process_cpu_ns, b.process_cpu_ns)};
}

}  // namespace

std::string report_text(const RunSetup& setup, const RunOutcome& run, const RunMetrics& m,
                        const std::vector<std::string>& invalid) {
  std::string out;
  append_printf(out, "==== setup ====\n");
  add_setup(out, "target", setup.target);
  add_setup(out, "model", setup.model);
  add_setup(out, "endpoint", setup.endpoint);
  add_setup(out, "workload", setup.workload + ": " + setup.load);
  add_setup(out, "lengths", setup.lengths);
  add_setup(out, "prompts", setup.prompts);
  if (!setup.corpus.empty()) {
    add_setup(out, "corpus", setup.corpus + ", sha256 " + setup.corpus_sha256.substr(0, 16));
  }
  add_setup(out, "tokenizer", setup.tokenizer);
  add_setup(out, "seed", std::to_string(setup.seed));
  add_setup(out, "warm-up", format(setup.num_warmup, " requests"));
  add_setup(out, "client", format("millrace ", setup.version, " on ", setup.host));
  if (setup.after && !setup.after->numerics_id.empty()) {
    const ServerCounters& server = *setup.after;
    add_setup(out, "engine",
              format("millrace ", server.version, ", ", server.isa, ", ", server.num_threads,
                     " threads, numerics ", server.numerics_id));
  }

  append_printf(out, "\n==== counts ====\n");
  append_printf(out,
                "requests     %" PRId64 " planned, %" PRId64 " sent, %" PRId64
                " succeeded, %" PRId64 " failed, %" PRId64 " given up\n",
                m.num_planned, m.num_sent, m.num_succeeded, m.num_failed, m.num_cancelled);
  for (const auto& [what, count] : m.errors) {
    append_printf(out, "error        %" PRId64 " x %s: %.300s\n", count, what.c_str(),
                  m.error_examples.at(what).c_str());
  }
  for (const auto& [reason, count] : m.finish_reasons) {
    append_printf(out, "finished     %" PRId64 " x %s\n", count,
                  reason.empty() ? "(none)" : reason.c_str());
  }
  append_printf(out, "duration     %.3f s, from the first sending to the last text\n",
                m.duration_s);
  append_printf(out,
                "concurrency  %.2f on average, at most %" PRId64 "; decoding %.2f, waiting %.2f\n",
                m.mean_concurrency, m.max_concurrency, m.mean_decoding, m.mean_waiting);
  if (m.num_without_usage > 0) {
    append_printf(
        out, "note         %" PRId64 " answers without usage: their tokens are counted in events\n",
        m.num_without_usage);
  }
  if (double(m.num_wrong_prompt_lengths) > 0.01 * double(m.num_succeeded)) {
    append_printf(out,
                  "note         %" PRId64
                  " prompts have more than 1 %% more or fewer tokens than planned\n",
                  m.num_wrong_prompt_lengths);
  }

  append_printf(out, "\n==== throughput ====%*s\n", setup.num_gpus ? 34 : 0,
                setup.num_gpus ? "per GPU" : "");
  const auto rate = [&](const char* name, double count) {
    append_printf(out, "%-28s %12.2f", name, m.per_second(count));
    if (setup.num_gpus)
      append_printf(out, " %12.2f", m.per_second(count) / double(*setup.num_gpus));
    out += '\n';
  };
  rate("total tokens/s", double(m.prompt_tokens + m.output_tokens));
  rate("  cached input tokens/s", double(m.cached_tokens));
  rate("  new input tokens/s", double(m.new_tokens()));
  rate("  output tokens/s", double(m.output_tokens));
  rate("work (new + output) tokens/s", double(m.new_tokens() + m.output_tokens));
  rate("requests/s", double(m.num_succeeded));
  if (m.steady_s > 0) {
    append_printf(
        out, "output tokens/s, steady      %12.2f  (%.3f s at 95 %% of the usual concurrency)\n",
        m.steady_output_tokens_per_s, m.steady_s);
  }

  append_printf(out, "\n==== latency, ms ====%14s %10s %10s %10s %10s %10s %10s %9s\n", "mean",
                "p50", "p75", "p90", "p95", "p99", "max", "n");
  add_distribution(out, "TTFT", m.ttft);
  add_distribution(out, "TTFT from schedule", m.ttft_scheduled);
  if (m.reasoning_tokens > 0) add_distribution(out, "first visible token", m.ttfv);
  add_distribution(out, "ITL (mean per request)", m.itl);
  add_distribution(out, m.knows_chunk_tokens ? "token gap" : "token gap (even)", m.token_gap);
  add_distribution(out, "event gap", m.chunk_gap);
  add_distribution(out, "largest gap", m.max_gap);
  add_distribution(out, "E2EL", m.e2el);
  add_distribution(out, "E2EL per output token", m.e2e_per_token);
  add_distribution(out, "lag", m.lag);
  append_printf(out, "\n==== lengths ====%18s %10s %10s %10s %10s %10s %10s %9s\n", "mean", "p50",
                "p75", "p90", "p95", "p99", "max", "n");
  add_distribution(out, "prompt tokens", m.prompt_length);
  add_distribution(out, "output tokens", m.output_length);

  append_printf(out, "\n==== tokens/s of a user: 1 / percentile ====\n");
  append_printf(out, "%-34s %10s %10s %10s %10s %10s\n", "", "p50", "p75", "p90", "p95", "p99");
  const auto add_rates = [&](const char* name, const Distribution& d) {
    if (d.n == 0) return;
    append_printf(out, "%-34s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, interactivity(d.p50),
                  interactivity(d.p75), interactivity(d.p90), interactivity(d.p95),
                  interactivity(d.p99));
  };
  add_rates("interactivity (1 / ITL)", m.itl);
  add_rates("E2E-normalised interactivity", m.e2e_per_token);
  if (m.prompt_tokens > 0) {
    append_printf(out, "\ncache hits   %.2f %% of the prompt tokens\n",
                  kShare * double(m.cached_tokens) / double(m.prompt_tokens));
  }
  if (m.output_tokens > 0) append_printf(out, "event size   %.3f tokens\n", m.mean_chunk_tokens);
  append_printf(out, "client CPU   %.1f %% of a core, busiest half second %.1f %%\n",
                kShare * client_cpu(run), kShare * run.peak_client_cpu);
  if (const std::optional<ServerWork> work = server_work(setup)) {
    append_printf(out, "engine       %" PRId64 " steps in %.3f s, %" PRId64 " output tokens\n",
                  work->num_steps, work->step_s, work->output_tokens);
    append_printf(out, "server CPU   engine %.3f s, network %.3f s, process %.3f s\n",
                  work->engine_cpu_s, work->network_cpu_s, work->process_cpu_s);
  }
  if (invalid.empty()) {
    out += "valid        yes\n";
  } else {
    for (const std::string& reason : invalid)
      append_printf(out, "valid        NO: %s\n", reason.c_str());
  }
  return out;
}

std::string report_json(const RunSetup& setup, const RunOutcome& run, const RunMetrics& m,
                        const std::vector<std::string>& invalid) {
  JsonWriter json;
  json.begin_object().member("valid", invalid.empty()).member("invalid_reasons", invalid);
  json.member("version", setup.version).member("start_time", setup.start_time);
  json.member("command_line", setup.command_line).member("target", setup.target);
  json.member("model", setup.model).member("endpoint", setup.endpoint);
  json.member("workload", setup.workload).member("load", setup.load);
  json.member("lengths", setup.lengths).member("prompts", setup.prompts);
  json.member("corpus", setup.corpus).member("corpus_sha256", setup.corpus_sha256);
  json.member("tokenizer", setup.tokenizer).member("host", setup.host).member("seed", setup.seed);
  json.member("warmup_requests", setup.num_warmup);

  json.member("requests_planned", m.num_planned).member("requests_sent", m.num_sent);
  json.member("requests_succeeded", m.num_succeeded).member("requests_failed", m.num_failed);
  json.member("requests_cancelled", m.num_cancelled);
  json.key("errors").begin_object();
  for (const auto& [what, count] : m.errors) json.member(what, count);
  json.end_object().key("finish_reasons").begin_object();
  for (const auto& [reason, count] : m.finish_reasons) json.member(reason, count);
  json.end_object();
  json.member("duration_s", m.duration_s).member("wall_s", double(run.wall_ns) / 1e9);
  json.member("input_tokens", m.prompt_tokens).member("cached_tokens", m.cached_tokens);
  json.member("new_tokens", m.new_tokens()).member("output_tokens", m.output_tokens);
  json.member("reasoning_tokens", m.reasoning_tokens);
  json.member("answers_without_usage", m.num_without_usage);
  json.member("prompts_off_plan", m.num_wrong_prompt_lengths);
  json.member("outputs_off_plan", m.num_wrong_output_lengths);

  const std::pair<const char*, double> rates[] = {
      {"total_tok_s", double(m.prompt_tokens + m.output_tokens)},
      {"input_tok_s", double(m.prompt_tokens)},
      {"cached_tok_s", double(m.cached_tokens)},
      {"new_tok_s", double(m.new_tokens())},
      {"output_tok_s", double(m.output_tokens)},
      {"work_tok_s", double(m.new_tokens() + m.output_tokens)},
  };
  for (const auto& [name, count] : rates) json.member(name, m.per_second(count));
  if (setup.num_gpus) {
    json.member("num_gpus", *setup.num_gpus);
    for (const auto& [name, count] : rates) {
      json.member(std::string(name) + "_per_gpu", m.per_second(count) / double(*setup.num_gpus));
    }
  }
  json.member("requests_per_s", m.per_second(double(m.num_succeeded)));
  json.member("steady_s", m.steady_s).member("steady_output_tok_s", m.steady_output_tokens_per_s);
  json.member("concurrency_mean", m.mean_concurrency);
  json.member("concurrency_max", m.max_concurrency);
  json.member("decoding_mean", m.mean_decoding).member("waiting_mean", m.mean_waiting);
  if (m.prompt_tokens > 0) {
    json.member("cache_hit_rate", double(m.cached_tokens) / double(m.prompt_tokens));
  }

  write_distribution(json, "ttft_ms", m.ttft);
  write_distribution(json, "ttft_from_schedule_ms", m.ttft_scheduled);
  write_distribution(json, "ttfv_ms", m.ttfv);
  write_distribution(json, "itl_ms", m.itl);
  write_distribution(json, "token_gap_ms", m.token_gap);
  json.member("token_gap_is_exact", m.knows_chunk_tokens);
  write_distribution(json, "event_gap_ms", m.chunk_gap);
  write_distribution(json, "max_gap_ms", m.max_gap);
  write_distribution(json, "e2el_ms", m.e2el);
  write_distribution(json, "e2el_per_output_token_ms", m.e2e_per_token);
  write_distribution(json, "lag_ms", m.lag);
  write_distribution(json, "prompt_tokens", m.prompt_length);
  write_distribution(json, "output_tokens", m.output_length);
  write_interactivity(json, "interactivity_tok_s", m.itl);
  write_interactivity(json, "e2e_normalised_interactivity_tok_s", m.e2e_per_token);
  json.member("tokens_per_event", m.mean_chunk_tokens);
  json.member("client_cpu", client_cpu(run)).member("client_cpu_peak", run.peak_client_cpu);

  if (const std::optional<ServerWork> work = server_work(setup)) {
    const ServerCounters& server = *setup.after;
    json.key("server").begin_object().member("version", server.version);
    json.member("numerics_id", server.numerics_id).member("isa", server.isa);
    json.member("threads", server.num_threads).member("steps", work->num_steps);
    json.member("output_tokens", work->output_tokens).member("step_s", work->step_s);
    json.member("engine_cpu_s", work->engine_cpu_s).member("network_cpu_s", work->network_cpu_s);
    json.member("process_cpu_s", work->process_cpu_s).end_object();
  }
  return json.end_object().text() + "\n";
}

std::string requests_jsonl(const std::vector<RequestRecord>& records) {
  std::string out;
  for (const RequestRecord& record : records) {
    JsonWriter json;
    json.begin_object().member("id", record.id).member("scheduled_ns", record.scheduled_ns);
    json.member("ready_ns", record.ready_ns).member("send_ns", record.send_ns);
    write_optional(json, "head_ns", record.head_ns);
    write_optional(json, "visible_ns", record.visible_ns);
    json.member("done_ns", record.done_ns);
    json.member("planned_prompt_tokens", record.planned_prompt_tokens);
    json.member("planned_output_tokens", record.planned_output_tokens);
    write_optional(json, "prompt_tokens", record.prompt_tokens);
    write_optional(json, "cached_tokens", record.cached_tokens);
    write_optional(json, "output_tokens", record.output_tokens);
    write_optional(json, "reasoning_tokens", record.reasoning_tokens);
    json.member("finish_reason", record.finish_reason).member("http_status", record.http_status);
    json.member("error", record.error).member("message", record.message);
    json.member("cancelled", record.was_cancelled);
    std::vector<int64_t> gaps, tokens;
    int64_t before = 0;
    for (const Chunk& chunk : record.chunks) {
      gaps.push_back(chunk.at_ns - before);
      tokens.push_back(chunk.num_tokens);
      before = chunk.at_ns;
    }
    json.member("event_ns", gaps).member("event_tokens", tokens);
    out += json.end_object().text() + "\n";
  }
  return out;
}

}  // namespace millrace
