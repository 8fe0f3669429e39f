#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/format.h"
#include "commands.h"
#include "console.h"
#include "model_flags.h"
#include "named_files.h"
#include "server/api_keys.h"
#include "server/log.h"
#include "server/server.h"
#include "sys/file.h"

namespace millrace {
namespace {

constexpr size_t kMaxKeyFileBytes = size_t(1) << 20;

// SIGINT and SIGTERM, taken by a thread that waits for them, so that they interrupt nothing.
class StopSignals {
 public:
  // Blocks them in the caller's thread and in those it creates from now on, for good: one that
  // comes when the server has ended must not make a failure of it.
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }

  // Runs the server; each signal tells it to stop.
  void run(Server& server) {
    std::atomic<bool> is_over{false};
    std::thread waiter([&] {
      for (int signal = 0; sigwait(&signals_, &signal) == 0 && !is_over;) server.stop();
    });
    server.run();
    is_over = true;
    pthread_kill(waiter.native_handle(), SIGTERM);
    waiter.join();
  }

 private:
  sigset_t signals_;
};

// A connection each takes a descriptor.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// A key; none: the variable is not there. One that is there and empty is a mistake, of a secret
// that was not filled in: it must not open the server.
Result<std::optional<std::string>> key_of_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::optional<std::string>();
  if (*value == '\0') {
    return Error{
        Code::kInvalidArgument,
        format(name, ": found nothing, expected a key; without one the variable is unset")};
  }
  return std::optional<std::string>(value);
}

Result<std::vector<ApiKey>> collect_keys(const ServeCommandOptions& options) {
  std::vector<ApiKey> keys;
  if (!options.api_key_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, read_file(options.api_key_file, kMaxKeyFileBytes));
    Result<std::vector<ApiKey>> parsed = parse_api_keys(text);
    if (!parsed.has_value()) {
      return Error{parsed.error().code,
                   format(options.api_key_file, ": ", parsed.error().message)};
    }
    keys = std::move(parsed.value());
  }
  std::vector<std::string> plain = options.api_keys;
  ASSIGN_OR_RETURN(const std::optional<std::string> of_environment,
                   key_of_environment("MILLRACE_API_KEY"));
  if (of_environment) plain.push_back(*of_environment);
  for (size_t i = 0; i < plain.size(); ++i) {
    ApiKey key;
    key.name = format("key-", i + 1);
    key.secret = plain[i];
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<ServerOptions> make_server_options(const ServeCommandOptions& options,
                                          const std::string& model_dir) {
  ServerOptions server = options.server;
  if (server.served_model_names.empty()) {
    const std::filesystem::path folder = std::filesystem::weakly_canonical(model_dir);
    server.served_model_names.push_back(folder.filename().string());
  }
  server.model_root = model_dir;
  ASSIGN_OR_RETURN(server.api_keys, collect_keys(options));
  ASSIGN_OR_RETURN(const std::optional<std::string> admin_key,
                   key_of_environment("MILLRACE_ADMIN_KEY"));
  server.admin_key = options.admin_key.empty() ? admin_key.value_or("") : options.admin_key;
  if (!options.certificate_file.empty()) {
    server.tls = net::TlsOptions{options.certificate_file, options.key_file, options.ca_file,
                                 options.requires_client_certificate, options.ciphers};
  }
  if (!server.max_open_requests) {
    server.max_open_requests = options.engine.max_num_seqs + options.engine.max_waiting;
  }
  return server;
}

// `log`: for lines of a program's log in place of those for people.
Status serve(const ServeCommandOptions& options, StopSignals& signals, Log* log) {
  ASSIGN_OR_RETURN(const std::string model_dir, resolve_model_dir(options.model.model_dir));
  ASSIGN_OR_RETURN(ServerOptions server_options, make_server_options(options, model_dir));
  ASSIGN_OR_RETURN(EngineOptions engine_options,
                   make_engine_options(options.model, options.engine));
  engine_options.load.serves = true;
  if (log != nullptr) {
    log->write(LogLevel::kInfo, "loading", {{"model", model_dir}});
    engine_options.on_warning = [log](const std::string& what) {
      log->write(LogLevel::kWarning, what);
    };
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Llm> llm,
                   log == nullptr ? open_llm(engine_options) : Llm::open(engine_options));
  ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                   Server::create(*llm, std::move(server_options), MILLRACE_VERSION));
  signals.run(*server);
  return {};
}

}  // namespace

int run_serve(const ServeCommandOptions& options) {
  std::vector<NamedFile> inputs{{"--api-key-file", options.api_key_file},
                                {"--ssl-certfile", options.certificate_file},
                                {"--ssl-keyfile", options.key_file},
                                {"--ssl-ca-certs", options.ca_file},
                                {"--engine", options.model.script_file}};
  for (const std::string& file : options.config_files) inputs.push_back({"--config", file});
  const Status apart = check_apart(inputs, {{"--usage-log", options.server.usage_log_file},
                                            {"--record", options.model.record_file}});
  if (!apart.ok()) return fail_usage(apart.error());
  StopSignals signals;
  raise_file_limit();
  std::optional<Log> log;  // outlives the engine, which may warn at any time
  if (options.server.log_json) log.emplace(/*json=*/true);
  const Status status = serve(options, signals, log ? &*log : nullptr);
  if (status.ok()) return kExitOk;
  if (!log) return fail(status.error());
  log->write_always(LogLevel::kError, status.error().message);
  return kExitError;
}

}  // namespace millrace
