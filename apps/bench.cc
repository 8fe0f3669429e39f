#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

#include "base/format.h"
#include "base/sha256.h"
#include "bench_engine.h"
#include "chat/json.h"
#include "chat/json_writer.h"
#include "commands.h"
#include "console.h"
#include "loadgen/corpus.h"
#include "loadgen/http_target.h"
#include "loadgen/metrics.h"
#include "loadgen/prompt_source.h"
#include "loadgen/report.h"
#include "loadgen/runner.h"
#include "model_flags.h"
#include "named_files.h"
#include "sys/file.h"

namespace millrace {
namespace {

constexpr std::string_view kBuiltInCorpus = "documentation and headers of this program";
constexpr std::string_view kProbeText = "The quick brown fox jumps over the lazy dog. ";
constexpr size_t kMaxLengthsBytes = size_t(64) << 20;
constexpr double kAskTimeoutS = 30;

// ---- What the flags say.

Result<std::vector<std::pair<int64_t, int64_t>>> read_lengths(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxLengthsBytes));
  std::vector<std::pair<int64_t, int64_t>> samples;
  size_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t comma = line.find(',');
    std::pair<int64_t, int64_t> sample;
    const bool is_fine = comma != line.npos && parse_number(line.substr(0, comma), sample.first) &&
                         parse_number(line.substr(comma + 1), sample.second) && sample.first > 0 &&
                         sample.second > 0;
    if (!is_fine && line_number == 1) continue;  // names of the columns
    if (!is_fine) {
      return Error{Code::kCorrupt, format(file, ": line ", line_number, ": found \"", line,
                                          "\", expected PROMPT,OUTPUT, both above 0")};
    }
    samples.push_back(sample);
  }
  if (samples.empty()) return Error{Code::kCorrupt, format(file, ": no lengths")};
  return samples;
}

Result<JsonValue> read_extra_body(const std::string& text) {
  if (text.empty()) return JsonValue();
  Result<JsonValue> extra = parse_json(text);
  if (!extra.has_value()) {
    return Error{Code::kInvalidArgument, format("--extra-body: ", extra.error().message)};
  }
  if (!extra.value().is(JsonValue::Kind::kObject)) {
    return Error{Code::kInvalidArgument, "--extra-body: expected a JSON object"};
  }
  return extra;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// ---- What is written beside the figures.

std::string host_text() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "unknown processor";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != line.npos) name = line.substr(colon + 2);
    break;
  }
  return format(name, ", ", std::thread::hardware_concurrency(), " processors");
}

// As it was given, without the key.
std::string command_line(const std::string& api_key) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.ends_with('\0')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  for (char& c : text) {
    if (uint8_t(c) < ' ' || uint8_t(c) > '~') c = '?';
  }
  for (size_t at; !api_key.empty() && (at = text.find(api_key)) != text.npos;) {
    text.replace(at, api_key.size(), "***");
  }
  return text;
}

std::string utc_now() {
  const time_t now = ::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string describe_load(const BenchCommandOptions& options) {
  if (!options.is_open_loop) return format("closed loop, ", options.concurrency, " at a time");
  const RequestRate& rate = options.rate;
  std::string text = format("open loop, ", number(rate.rate), " requests/s, burstiness ",
                            number(options.burstiness));
  if (rate.ramp != RequestRate::Ramp::kNone) {
    text += format(rate.ramp == RequestRate::Ramp::kLinear ? ", linear" : ", exponential", " from ",
                   number(rate.ramp_from), " within ", number(rate.ramp_s), " s");
  }
  if (options.max_concurrency) text += format(", at most ", *options.max_concurrency, " at a time");
  return text;
}

std::string describe_lengths(const BenchCommandOptions& options) {
  const Lengths& lengths = options.mix.lengths;
  std::string text;
  if (!lengths.samples.empty()) {
    text = format("drawn from ", options.lengths_file, " (", lengths.samples.size(), " pairs)");
  } else {
    text = format(lengths.prompt_tokens, " in, ", lengths.output_tokens, " out");
    if (lengths.range_ratio < 1) text += format(", uniform from ", lengths.range_ratio, " of it");
  }
  if (options.mix.shared_prefix_tokens > 0) {
    text += format(", behind a shared prefix of ", options.mix.shared_prefix_tokens);
  }
  return text;
}

// "12 s: 34 of 100 requests, 8 running": over itself on a terminal, now and then elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(bool is_quiet) : is_quiet_(is_quiet) {}
  ~ProgressLine() { clear(); }

  void show(const RunProgress& progress) {
    if (is_quiet_) return;
    const int64_t seconds = progress.elapsed_ns / 1'000'000'000;
    std::string text = format(seconds, " s: ", progress.num_done, " of ", progress.num_all,
                              " requests, ", progress.num_running, " running");
    if (progress.num_failed > 0) text += format(", ", progress.num_failed, " failed");
    if (stderr_is_terminal()) {
      std::fprintf(stderr, "\r\033[K%s", text.c_str());
      std::fflush(stderr);
      is_open_ = true;
    } else if (seconds >= next_s_) {
      warn(text);
      next_s_ = seconds + std::max<int64_t>(10, seconds / 10);
    }
  }
  void clear() {
    if (is_open_) std::fputs("\r\033[K", stderr);
    is_open_ = false;
  }

 private:
  const bool is_quiet_;
  bool is_open_ = false;
  int64_t next_s_ = 10;
};

// ---- The text that prompts are cut from.

struct Corpus {
  std::string name;
  std::string text;
};

Result<Corpus> open_corpus(const BenchCommandOptions& options) {
  if (options.corpus_file.empty()) {
    return Corpus{std::string(kBuiltInCorpus), std::string(built_in_corpus())};
  }
  ASSIGN_OR_RETURN(std::string text, read_file(options.corpus_file));
  if (text.empty()) {
    return Error{Code::kInvalidArgument, format(options.corpus_file, ": found an empty file")};
  }
  return Corpus{options.corpus_file, std::move(text)};
}

PromptSource prompts_of(const BenchCommandOptions& options, const Corpus& corpus,
                        const Tokenizer& tokenizer) {
  if (options.random_tokens) {
    return PromptSource::of_random_tokens(plain_tokens(tokenizer), options.mix.seed);
  }
  return PromptSource::of_tokens(tokenizer.encode(corpus.text, SpecialTokens::kPlainText),
                                 options.mix.seed);
}

// ---- One run, whatever the target.

std::unique_ptr<Workload> make_workload(const BenchCommandOptions& options) {
  if (options.is_open_loop) {
    return std::make_unique<OpenLoop>(options.mix, options.num_requests, options.rate,
                                      options.burstiness, options.max_concurrency);
  }
  return std::make_unique<ClosedLoop>(options.mix, options.num_requests, options.concurrency);
}

using ReadCounters = std::function<std::optional<ServerCounters>()>;

int measure(const BenchCommandOptions& options, net::EventLoop& loop, Target& target,
            RunSetup setup, const ReadCounters& read_counters) {
  Interrupts interrupts;
  ProgressLine progress(options.quiet);
  RunOptions run_options;
  run_options.is_interrupted = [] { return Interrupts::take(); };

  const int64_t num_at_once = options.is_open_loop ? 1 : options.concurrency;
  setup.num_warmup = options.num_warmup.value_or(num_at_once);
  ValidityRules rules;
  bool was_interrupted = false;
  if (setup.num_warmup > 0) {
    RequestMix other = options.mix;
    other.seed = mix64(other.seed);  // prompts that the run does not have
    ClosedLoop warmup(other, setup.num_warmup, std::min(num_at_once, setup.num_warmup));
    const RunOutcome run = run_workload(loop, warmup, target, run_options);
    was_interrupted = run.was_interrupted;
    rules.was_warmed_up = std::all_of(run.records.begin(), run.records.end(), is_success) &&
                          int64_t(run.records.size()) == setup.num_warmup;
  }

  setup.start_time = utc_now();
  setup.before = read_counters();
  RunOutcome run;
  if (was_interrupted) {
    run.was_interrupted = true;
    run.num_planned = options.num_requests;
  } else {
    run_options.on_progress = [&](const RunProgress& now) { progress.show(now); };
    if (options.duration_s) run_options.duration_ns = int64_t(*options.duration_s * 1e9);
    const std::unique_ptr<Workload> workload = make_workload(options);
    run = run_workload(loop, *workload, target, run_options);
  }
  progress.clear();
  setup.after = read_counters();

  const RunMetrics metrics = compute_metrics(run);
  rules.is_open_loop = options.is_open_loop;
  rules.mean_gap_ms = 1000 / options.rate.rate;
  rules.forces_output_length = options.fields.ignores_eos;
  rules.min_duration_s = options.min_duration_s;
  if (setup.before && setup.after) {
    rules.was_server_restarted = setup.after->uptime_s < setup.before->uptime_s;
  }
  const std::vector<std::string> invalid = find_invalid(run, metrics, rules);
  const std::string json = report_json(setup, run, metrics, invalid);
  print(options.json ? json : report_text(setup, run, metrics, invalid));
  if (!options.summary_file.empty()) {
    if (const Status status = write_file(options.summary_file, json); !status.ok()) {
      return fail(status.error());
    }
  }
  if (!options.requests_file.empty()) {
    const Status status = write_file(options.requests_file, requests_jsonl(run.records));
    if (!status.ok()) return fail(status.error());
  }
  if (run.was_interrupted) return kExitInterrupted;
  return invalid.empty() ? kExitOk : kExitError;
}

RunSetup describe(const BenchCommandOptions& options, const std::string& api_key) {
  RunSetup setup;
  setup.version = MILLRACE_VERSION;
  setup.command_line = command_line(api_key);
  setup.endpoint = options.fields.endpoint == BenchEndpoint::kChat ? "chat" : "completions";
  setup.workload = options.is_open_loop ? "open" : "fixed";
  setup.load = describe_load(options);
  setup.lengths = describe_lengths(options);
  setup.host = host_text();
  setup.seed = options.mix.seed;
  setup.num_gpus = options.num_gpus;
  return setup;
}

void describe_prompts(const BenchCommandOptions& options, const RequestFields& fields,
                      const Corpus& corpus, RunSetup& setup) {
  const bool sends_text = fields.sends_text || fields.endpoint == BenchEndpoint::kChat;
  setup.prompts =
      format(sends_text ? "text" : "token ids", options.random_tokens ? ", random tokens" : "");
  if (options.random_tokens) return;
  setup.corpus = corpus.name;
  setup.corpus_sha256 = sha256(corpus.text);
}

// ---- An engine in this process.

int bench_engine(const BenchCommandOptions& options, RequestFields fields) {
  const Result<std::string> model_dir = resolve_model_dir(options.model.model_dir);
  if (!model_dir.has_value()) return fail(model_dir.error());
  EngineFlags engine_flags = options.engine;
  engine_flags.max_waiting = std::max(engine_flags.max_waiting, options.num_requests);
  Result<std::unique_ptr<Llm>> llm = open_llm(options.model, engine_flags);
  if (!llm.has_value()) return fail(llm.error());
  Result<Corpus> corpus = open_corpus(options);
  if (!corpus.has_value()) return fail(corpus.error());
  const Tokenizer& tokenizer = llm.value()->tokenizer();
  const PromptSource prompts = prompts_of(options, corpus.value(), tokenizer);
  if (fields.endpoint == BenchEndpoint::kChat) {
    ChatRequest chat;
    chat.messages.push_back(
        {.role = Role::kUser, .content = {{Part::Kind::kText, std::string(kProbeText)}}});
    const Result<Prompt> prompt = llm.value()->encode_chat(chat);
    if (!prompt.has_value()) return fail(prompt.error());
    fields.num_template_tokens =
        int64_t(prompt.value().token_ids.size()) -
        int64_t(tokenizer.encode(kProbeText, SpecialTokens::kPlainText).size());
  }

  RunSetup setup = describe(options, "");
  setup.target = "in process";
  setup.model = setup.tokenizer = model_dir.value();
  describe_prompts(options, fields, corpus.value(), setup);
  const Engine& engine = llm.value()->engine();
  const auto read_counters = [&]() -> std::optional<ServerCounters> {
    ServerCounters counters;
    const EngineCounters work = engine.counters();
    const SchedulerStats stats = engine.stats();
    const EngineInfo& info = engine.info();
    timespec process{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &process);
    counters.version = MILLRACE_VERSION;
    counters.numerics_id = info.numerics_id;
    counters.isa = info.isa;
    counters.num_threads = info.num_threads;
    counters.uptime_s = double(monotonic_ns()) / 1e9;
    counters.num_steps = stats.num_steps;
    counters.output_tokens = stats.num_output_tokens;
    counters.prompt_tokens = stats.num_prompt_tokens;
    counters.step_ns = work.step_ns;
    counters.region_ns = work.region_ns;
    counters.process_cpu_ns = int64_t(process.tv_sec) * 1'000'000'000 + process.tv_nsec;
    counters.engine_cpu_ns = counters.process_cpu_ns - thread_cpu_ns();
    return counters;
  };
  net::EventLoop loop;
  EngineTarget target(loop, *llm.value(), std::move(fields), prompts);
  return measure(options, loop, target, std::move(setup), read_counters);
}

// ---- A server.

// A member, however deep; null when it is not there.
const JsonValue* find(const JsonValue& value, std::initializer_list<std::string_view> path) {
  const JsonValue* at = &value;
  for (const std::string_view name : path) {
    if (at == nullptr) return nullptr;
    at = at->find(name);
  }
  return at;
}

int64_t integer_at(const JsonValue& value, std::initializer_list<std::string_view> path) {
  const JsonValue* found = find(value, path);
  int64_t number = 0;
  if (found != nullptr && found->is(JsonValue::Kind::kNumber)) parse_number(found->text, number);
  return number;
}

std::string text_at(const JsonValue& value, std::initializer_list<std::string_view> path) {
  const JsonValue* found = find(value, path);
  return found != nullptr && found->is(JsonValue::Kind::kString) ? found->text : "";
}

Result<JsonValue> ask_json(net::EventLoop& loop, const ServerAddress& address,
                           const std::string& method, const std::string& path,
                           const std::string& body = "") {
  ASSIGN_OR_RETURN(const PlainAnswer answer, ask(loop, address, method, path, body, kAskTimeoutS));
  if (answer.status != 200) {
    return Error{Code::kUnavailable,
                 format(path, ": HTTP ", answer.status, ": ", answer.body.substr(0, 300))};
  }
  Result<JsonValue> json = parse_json(answer.body);
  if (!json.has_value()) {
    return Error{Code::kCorrupt, format(path, ": ", json.error().message)};
  }
  return json;
}

// What the server says of itself, if it is one of this program.
std::optional<ServerCounters> read_server_counters(net::EventLoop& loop,
                                                   const ServerAddress& address) {
  const Result<JsonValue> stats = ask_json(loop, address, "GET", "/v1/millrace/stats");
  if (!stats.has_value()) return std::nullopt;
  const JsonValue& json = stats.value();
  ServerCounters counters;
  counters.version = text_at(json, {"version"});
  counters.numerics_id = text_at(json, {"numerics_id"});
  counters.isa = text_at(json, {"isa"});
  counters.num_threads = integer_at(json, {"threads"});
  if (const JsonValue* uptime = json.find("uptime_s"))
    parse_number(uptime->text, counters.uptime_s);
  counters.num_steps = integer_at(json, {"steps", "count"});
  counters.step_ns = integer_at(json, {"steps", "step_ns"});
  counters.region_ns = integer_at(json, {"steps", "region_ns"});
  counters.output_tokens = integer_at(json, {"tokens", "output"});
  counters.prompt_tokens = integer_at(json, {"tokens", "prompt_computed"});
  counters.engine_cpu_ns = integer_at(json, {"cpu", "engine_ns"});
  counters.network_cpu_ns = integer_at(json, {"cpu", "network_ns"});
  counters.process_cpu_ns = integer_at(json, {"cpu", "process_ns"});
  return counters;
}

struct Served {
  std::string model_name, root;
  int64_t num_probe_tokens = 0;  // as the server counts them
};

std::string probe_body(const RequestFields& fields, const std::string& model_name) {
  JsonWriter json;
  json.begin_object().member("model", model_name);
  if (fields.endpoint == BenchEndpoint::kChat) {
    json.key("messages").begin_array().begin_object().member("role", "user");
    json.member("content", kProbeText).end_object().end_array().member("max_completion_tokens", 1);
  } else {
    json.member("prompt", kProbeText).member("max_tokens", 1);
  }
  return json.end_object().text();
}

Result<Served> probe_once(const BenchCommandOptions& options, net::EventLoop& loop,
                          const ServerAddress& address) {
  Served served;
  served.model_name = options.model_name;
  if (options.model_name.empty() || options.tokenizer_dir.empty()) {
    ASSIGN_OR_RETURN(const JsonValue models, ask_json(loop, address, "GET", "/v1/models"));
    const JsonValue* list = models.find("data");
    if (list == nullptr || list->items.empty()) {
      return Error{Code::kCorrupt, "/v1/models: found no model"};
    }
    if (served.model_name.empty()) served.model_name = text_at(list->items[0], {"id"});
    served.root = text_at(list->items[0], {"root"});
  }
  const bool is_chat = options.fields.endpoint == BenchEndpoint::kChat;
  ASSIGN_OR_RETURN(
      const JsonValue answer,
      ask_json(loop, address, "POST", is_chat ? "/v1/chat/completions" : "/v1/completions",
               probe_body(options.fields, served.model_name)));
  served.num_probe_tokens = integer_at(answer, {"usage", "prompt_tokens"});
  return served;
}

// Until a request has been answered.
Result<Served> wait_until_ready(const BenchCommandOptions& options, net::EventLoop& loop,
                                const ServerAddress& address) {
  constexpr std::chrono::milliseconds kPause{200};
  Interrupts interrupts;
  const int64_t deadline_ns = monotonic_ns() + int64_t(options.ready_timeout_s * 1e9);
  for (bool has_waited = false;; has_waited = true) {
    Result<Served> served = probe_once(options, loop, address);
    if (served.has_value()) return served;
    if (Interrupts::take()) return Error{Code::kCancelled, "interrupted"};
    if (monotonic_ns() > deadline_ns || served.error().code == Code::kInvalidArgument) {
      return Error{served.error().code, format("not ready within ", number(options.ready_timeout_s),
                                               " s: ", served.error().message)};
    }
    if (!has_waited) warn("waiting for the server: " + served.error().message);
    const net::EventLoop::Timer timer = loop.after(kPause, [&] { loop.stop(); });
    loop.run();
  }
}

int bench_server(const BenchCommandOptions& options, RequestFields fields) {
  const std::string api_key =
      options.api_key.empty() ? environment("MILLRACE_API_KEY") : options.api_key;
  const Result<ServerAddress> address = parse_server_address(options.url, api_key);
  if (!address.has_value()) return fail_usage(address.error());
  net::EventLoop loop;
  const Result<Served> served = wait_until_ready(options, loop, address.value());
  if (!served.has_value()) return fail(served.error());
  fields.model = served.value().model_name;

  Result<Corpus> corpus = open_corpus(options);
  if (!corpus.has_value()) return fail(corpus.error());
  std::optional<Tokenizer> tokenizer;
  const std::string dir =
      options.tokenizer_dir.empty() ? served.value().root : options.tokenizer_dir;
  if (!dir.empty()) {
    Result<Tokenizer> opened = open_tokenizer(dir);
    if (opened.has_value()) {
      tokenizer.emplace(std::move(opened.value()));
    } else if (!options.tokenizer_dir.empty()) {
      return fail(opened.error());
    }
  }
  if (!tokenizer && options.random_tokens) {
    return fail({Code::kInvalidArgument,
                 "--random-tokens needs a tokenizer: name one with "
                 "--tokenizer DIR"});
  }
  const int64_t num_probe_tokens = std::max<int64_t>(served.value().num_probe_tokens, 1);
  if (!tokenizer) fields.sends_text = true;
  if (tokenizer && fields.endpoint == BenchEndpoint::kChat) {
    fields.num_template_tokens = std::max<int64_t>(
        0, num_probe_tokens -
               int64_t(tokenizer->encode(kProbeText, SpecialTokens::kPlainText).size()));
  }
  const PromptSource prompts =
      tokenizer ? prompts_of(options, corpus.value(), *tokenizer)
                : PromptSource::of_text(corpus.value().text,
                                        double(kProbeText.size()) / double(num_probe_tokens),
                                        options.mix.seed);

  RunSetup setup = describe(options, api_key);
  setup.target = options.url;
  setup.model = fields.model;
  if (tokenizer) setup.tokenizer = dir;
  describe_prompts(options, fields, corpus.value(), setup);
  const auto read_counters = [&] { return read_server_counters(loop, address.value()); };
  HttpTarget target(loop, address.value(), std::move(fields), prompts,
                    tokenizer ? &*tokenizer : nullptr);
  return measure(options, loop, target, std::move(setup), read_counters);
}

}  // namespace

int run_bench(const BenchCommandOptions& given) {
  BenchCommandOptions options = given;
  const Status apart = check_apart({{"--lengths", options.lengths_file},
                                    {"--corpus", options.corpus_file},
                                    {"--engine", options.model.script_file}},
                                   {{"stdout", "-"},
                                    {"--summary", options.summary_file},
                                    {"--requests-file", options.requests_file}});
  if (!apart.ok()) return fail_usage(apart.error());
  for (const std::string& file : {options.summary_file, options.requests_file}) {
    const Status status = file.empty() ? Status() : check_writable(file);
    if (!status.ok()) return fail(status.error());
  }
  Result<JsonValue> extra = read_extra_body(options.extra_body);
  if (!extra.has_value()) return fail_usage(extra.error());
  options.fields.extra = std::move(extra.value());
  options.fields.seed = options.mix.seed;
  if (!options.lengths_file.empty()) {
    Result<std::vector<std::pair<int64_t, int64_t>>> samples = read_lengths(options.lengths_file);
    if (!samples.has_value()) return fail(samples.error());
    options.mix.lengths.samples = std::move(samples.value());
  }
  raise_file_limit();
  return options.in_process ? bench_engine(options, options.fields)
                            : bench_server(options, options.fields);
}

}  // namespace millrace
