// What the server adds to its engine, as JSON lines. The engine is a script with a token every 10
// ms, or a model; the server is the real program, in a process of its own; the client is that of
// `millrace bench`.
//
//   idle      the server's share of a core with nothing to do
//   latency   of an event: when the client read it against when the script had it due, above the
//             quickest of all. "bare": the same of as many bytes that one thread writes to as many
//             sockets and another reads. "added": what the server and the client add to that
//   cpu       of the server for an event, and in writes of as many bytes to a loopback socket, 64
//             every 10 ms as well
//   engine    tokens for a second of the engine's processor time, in process and through the server
//
// As in the steps of a model, the script's streams have their tokens at the same times: they start
// together, when a request that holds all places ends. Medians of five rounds, and the lowest.
//
// usage: bench-server PROGRAM [SECONDS [STREAMS [MODEL_DIR]]]

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "bench/loopback.h"
#include "bench/temporary_file.h"
#include "bench_engine.h"
#include "chat/json.h"
#include "llm/llm.h"
#include "loadgen/corpus.h"
#include "loadgen/http_target.h"
#include "loadgen/metrics.h"
#include "loadgen/prompt_source.h"
#include "loadgen/runner.h"

extern char** environ;

namespace millrace {
namespace {

constexpr double kStepMs = 10;
constexpr double kHoldMs = 1500;  // by then all requests must have been submitted
constexpr const char* kHoldKey = "@@hold@@";
constexpr int64_t kPromptTokens = 32;
constexpr int64_t kWarmUpTokens = 20;
constexpr int64_t kModelTokens = 64;
constexpr int kRounds = 5;
constexpr size_t kTypicalEventBytes = 250;

pid_t server_pid = 0;  // of the server that runs; 0: none

[[noreturn]] void stop(const std::string& why) {
  if (server_pid > 0) ::kill(server_pid, SIGTERM);  // exit() destroys nothing of run()
  std::fprintf(stderr, "bench-server: %s\n", why.c_str());
  std::exit(1);
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  MR_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  MR_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

class ServerProcess {
 public:
  ServerProcess(const std::string& program, const std::string& engine, const std::string& model_dir,
                int64_t max_num_seqs)
      : port_(free_port()) {
    std::vector<std::string> arguments = {program,           "serve",
                                          "--port",          format(port_),
                                          "--engine",        engine,
                                          "--model",         model_dir,
                                          "--max-num-seqs",  format(max_num_seqs),
                                          "--no-access-log", "--disable-log-stats"};
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, pointers.data(), environ) != 0) {
      stop("cannot start " + program);
    }
    posix_spawn_file_actions_destroy(&actions);
    server_pid = pid_;
  }
  ~ServerProcess() {
    server_pid = 0;
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  std::string url() const { return format("http://127.0.0.1:", port_); }

 private:
  int port_;
  pid_t pid_ = 0;
};

// ---- Counters of the server.

struct Cpu {
  int64_t process_ns = 0, network_ns = 0, workers_ns = 0, engine_ns = 0, output_tokens = 0;
};

Cpu operator-(const Cpu& a, const Cpu& b) {
  return {a.process_ns - b.process_ns, a.network_ns - b.network_ns, a.workers_ns - b.workers_ns,
          a.engine_ns - b.engine_ns, a.output_tokens - b.output_tokens};
}

Result<Cpu> read_cpu(net::EventLoop& loop, const ServerAddress& address) {
  ASSIGN_OR_RETURN(const PlainAnswer answer,
                   ask(loop, address, "GET", "/v1/millrace/stats", "", 5));
  ASSIGN_OR_RETURN(const JsonValue json, parse_json(answer.body));
  const auto number = [&](const char* group, const char* name) {
    const JsonValue* object = json.find(group);
    const JsonValue* value = object == nullptr ? nullptr : object->find(name);
    if (value == nullptr) stop(format("no ", group, ".", name, " in /v1/millrace/stats"));
    return int64_t(std::atoll(value->text.c_str()));
  };
  return Cpu{number("cpu", "process_ns"), number("cpu", "network_ns"), number("cpu", "workers_ns"),
             number("cpu", "engine_ns"), number("tokens", "output")};
}

Cpu wait_for_cpu(net::EventLoop& loop, const ServerAddress& address) {
  for (int i = 0; i < 600; ++i) {
    const Result<Cpu> cpu = read_cpu(loop, address);
    if (cpu.has_value()) return cpu.value();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  stop("the server does not answer");
}

int64_t process_cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// ---- A batch: so many requests at once.

struct Batch {
  RequestMix mix;
  int64_t num_streams = 64;
};

// `hold` is called first: it takes all places for a while.
RunOutcome run_batch(net::EventLoop& loop, Target& target, const Batch& batch,
                     const std::function<void()>& hold) {
  if (hold) hold();
  ClosedLoop workload(batch.mix, batch.num_streams, batch.num_streams);
  const RunOutcome run = run_workload(loop, workload, target, {});
  for (const RequestRecord& record : run.records) {
    if (!is_success(record)) stop(format("a request failed: ", record.error, ": ", record.message));
  }
  return run;
}

void warm_up(net::EventLoop& loop, Target& target, Batch batch) {
  batch.mix.lengths.output_tokens = kWarmUpTokens;
  (void)run_batch(loop, target, batch, {});
}

RequestFields greedy_fields() {
  RequestFields fields;
  fields.temperature = 0;
  return fields;
}

// ---- The two sides of a comparison. Both are there all the time, and take turns.

struct Measured {
  RunOutcome run;
  Cpu used;  // of a server
  double tokens_per_cpu_s = 0;
};

class ServerSide {
 public:
  // `holds`: the engine is a script that knows kHoldKey.
  ServerSide(net::EventLoop& loop, const std::string& url, const Batch& batch,
             const PromptSource& prompts, const Tokenizer& tokenizer, bool holds)
      : loop_(loop),
        address_(parse_server_address(url, "").value()),
        batch_(batch),
        target_(loop, address_, greedy_fields(), prompts, &tokenizer),
        holder_(loop, address_.origin) {
    if (holds) hold_ = [this] { hold(); };
    (void)cpu();  // waits until it is there
  }

  Cpu cpu() { return wait_for_cpu(loop_, address_); }
  void warm_up() { millrace::warm_up(loop_, target_, batch_); }
  Measured measure() {
    Measured m;
    const Cpu before = cpu();
    m.run = run_batch(loop_, target_, batch_, hold_);
    m.used = cpu() - before;
    m.tokens_per_cpu_s = double(m.used.output_tokens) / (double(m.used.engine_ns) / 1e9);
    return m;
  }

 private:
  void hold() {
    net::HttpRequest request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.headers = {{"Content-Type", "application/json"}};
    request.body = format("{\"prompt\": \"", kHoldKey,
                          "\", \"max_tokens\": 1, \"n\": ", batch_.num_streams, "}");
    net::HttpClient::Handlers handlers;
    handlers.on_done = [](const Status& status) {
      if (!status.ok()) stop(status.error().message);
    };
    holder_.send(std::move(request), std::move(handlers));
    // It must be there before the others.
    const net::EventLoop::Timer timer =
        loop_.after(std::chrono::milliseconds(300), [this] { loop_.stop(); });
    loop_.run();
  }

  net::EventLoop& loop_;
  const ServerAddress address_;
  const Batch batch_;
  HttpTarget target_;
  net::HttpClient holder_;
  std::function<void()> hold_;
};

class EngineSide {
 public:
  EngineSide(net::EventLoop& loop, const EngineOptions& options, const Batch& batch,
             const PromptSource& prompts)
      : loop_(loop), batch_(batch) {
    Result<std::unique_ptr<Llm>> llm = Llm::open(options);
    if (!llm.has_value()) stop(llm.error().message);
    llm_ = std::move(llm.value());
    target_ = std::make_unique<EngineTarget>(loop, *llm_, greedy_fields(), prompts);
    if (!options.script_file.empty()) hold_ = [this] { hold(); };
  }

  void warm_up() { millrace::warm_up(loop_, *target_, batch_); }
  Measured measure() {
    Measured m;
    const int64_t process_ns = process_cpu_ns(), own_ns = thread_cpu_ns();
    m.run = run_batch(loop_, *target_, batch_, hold_);
    const int64_t engine_ns = process_cpu_ns() - process_ns - (thread_cpu_ns() - own_ns);
    held_.reset();
    m.tokens_per_cpu_s = double(compute_metrics(m.run).output_tokens) / (double(engine_ns) / 1e9);
    return m;
  }

 private:
  void hold() {
    AnswerRequest request;
    request.prompt = llm_->encode_text(kHoldKey, SpecialTokens::kPlainText, /*add_bos=*/true);
    request.sampling.max_tokens = 1;
    request.num_choices = int32_t(batch_.num_streams);
    Result<std::unique_ptr<AnswerStream>> stream = llm_->submit(std::move(request));
    if (!stream.has_value()) stop(stream.error().message);
    held_ = std::move(stream.value());
  }

  net::EventLoop& loop_;
  const Batch batch_;
  std::unique_ptr<Llm> llm_;
  std::unique_ptr<EngineTarget> target_;
  std::unique_ptr<AnswerStream> held_;
  std::function<void()> hold_;
};

// ---- The cases.

double median(const std::vector<double>& values) { return distribution(values).p50; }

void print_idle(ServerSide& server, double seconds) {
  const Cpu begin = server.cpu();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const Cpu idle = server.cpu() - begin;
  std::printf("{\"case\": \"idle\", \"server_cpu\": %.5f}\n",
              double(idle.process_ns) / 1e9 / seconds);
}

// Against the quickest of all: what they have in common is nobody's delay.
Distribution above_best(std::vector<double> late_ms) {
  if (late_ms.empty()) stop("found no event whose delay could be measured, expected some");
  const double best = *std::min_element(late_ms.begin(), late_ms.end());
  for (double& late : late_ms) late -= best;
  return distribution(std::move(late_ms));
}

// How late the events were read.
Distribution lateness(const RunOutcome& run) {
  std::vector<double> late_ms;
  for (const RequestRecord& record : run.records) {
    for (size_t k = 0; k < record.chunks.size(); ++k) {
      late_ms.push_back(double(record.chunks[k].at_ns) / 1e6 - double(k) * kStepMs);
    }
  }
  return above_best(std::move(late_ms));
}

// The figures of all rounds: the median, and the lowest.
class Figures {
 public:
  void add(const char* name, double value) {
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
    values_[name].push_back(value);
  }
  void print(const char* what, int64_t num_streams) const {
    std::printf("{\"case\": \"%s\", \"streams\": %lld", what, static_cast<long long>(num_streams));
    for (const std::string& name : names_) {
      const std::vector<double>& all = values_.at(name);
      std::printf(", \"%s\": %.4g, \"%s_lowest\": %.4g", name.c_str(), median(all), name.c_str(),
                  *std::min_element(all.begin(), all.end()));
    }
    std::printf("}\n");
  }

 private:
  std::vector<std::string> names_;  // in the order in which they are printed
  std::map<std::string, std::vector<double>> values_;
};

void bench_script(ServerSide& server, EngineSide& engine, int64_t num_streams, double seconds) {
  server.warm_up();
  engine.warm_up();
  Figures latency, cpu, rates;
  for (int round = 0; round < kRounds; ++round) {
    const LoopbackWrites writes =
        write_to_loopback(int(num_streams), kTypicalEventBytes, seconds / 2,
                          std::chrono::microseconds(int64_t(kStepMs * 1000)));
    const Distribution bare = above_best(writes.late_ms);
    const Measured m = server.measure();
    const Distribution late = lateness(m.run);
    const Measured alone = engine.measure();

    latency.add("p50_ms", late.p50);
    latency.add("p99_ms", late.p99);
    latency.add("bare_p50_ms", bare.p50);
    latency.add("bare_p99_ms", bare.p99);
    latency.add("added_p50_ms", late.p50 - bare.p50);
    latency.add("added_p99_ms", late.p99 - bare.p99);
    latency.add("client_cpu", double(m.run.client_cpu_ns) / double(m.run.wall_ns));
    const double events = double(m.used.output_tokens);
    const double process_us = double(m.used.process_ns) / 1e3 / events;
    cpu.add("write_us", writes.cpu_us);
    cpu.add("network_us", double(m.used.network_ns) / 1e3 / events);
    cpu.add("process_us", process_us);
    cpu.add("process_writes", process_us / writes.cpu_us);
    rates.add("in_process_tok_per_cpu_s", alone.tokens_per_cpu_s);
    rates.add("server_tok_per_cpu_s", m.tokens_per_cpu_s);
    rates.add("server_over_in_process", m.tokens_per_cpu_s / alone.tokens_per_cpu_s);
  }
  latency.print("latency", num_streams);
  cpu.print("cpu", num_streams);
  rates.print("engine, script", num_streams);
}

void bench_model(ServerSide& server, EngineSide& engine, int64_t num_streams) {
  server.warm_up();
  engine.warm_up();
  Figures rates;
  for (int round = 0; round < kRounds; ++round) {
    const Measured m = server.measure(), alone = engine.measure();
    rates.add("in_process_tok_per_cpu_s", alone.tokens_per_cpu_s);
    rates.add("server_tok_per_cpu_s", m.tokens_per_cpu_s);
    rates.add("server_over_in_process", m.tokens_per_cpu_s / alone.tokens_per_cpu_s);
  }
  rates.print("engine, model", num_streams);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench-server PROGRAM [SECONDS [STREAMS [MODEL_DIR]]]\n");
    return 2;
  }
  const std::string program = argv[1];
  const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
  const int64_t num_streams = argc > 3 ? std::atoll(argv[3]) : 64;
  const std::string model_dir = argc > 4 ? argv[4] : "models/nano";
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);

  const TemporaryFile script(format(
      "{\"delay_ms\": ", kStepMs, ", \"first_delay_ms\": 0, \"repeat\": \"forever\", ",
      "\"pieces\": [{\"text\": \" word\"}]}\n{\"key\": \"", kHoldKey, "\", \"delay_ms\": ", kHoldMs,
      ", \"pieces\": [{\"text\": \".\"}]}\n"));
  const std::string scripted = format("scripted=", script.path());

  Result<Tokenizer> tokenizer = open_tokenizer(model_dir);
  if (!tokenizer.has_value()) stop(tokenizer.error().message);
  const PromptSource prompts = PromptSource::of_tokens(
      tokenizer.value().encode(built_in_corpus(), SpecialTokens::kPlainText), 0);
  net::EventLoop loop;

  Batch batch;
  batch.num_streams = num_streams;
  batch.mix.lengths.prompt_tokens = kPromptTokens;
  batch.mix.lengths.output_tokens = int64_t(seconds * 1000 / kStepMs);

  EngineOptions options;
  options.load.model_dir = model_dir;
  options.max_num_seqs = num_streams;
  {
    const ServerProcess process(program, scripted, model_dir, num_streams);
    ServerSide server(loop, process.url(), batch, prompts, tokenizer.value(), /*holds=*/true);
    options.script_file = script.path();
    EngineSide engine(loop, options, batch, prompts);
    print_idle(server, seconds);
    bench_script(server, engine, num_streams, seconds);
  }

  options.script_file.clear();
  batch.mix.lengths.output_tokens = kModelTokens;
  const ServerProcess process(program, "model", model_dir, num_streams);
  ServerSide server(loop, process.url(), batch, prompts, tokenizer.value(), /*holds=*/false);
  EngineSide engine(loop, options, batch, prompts);
  bench_model(server, engine, num_streams);
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::run(argc, argv); }
