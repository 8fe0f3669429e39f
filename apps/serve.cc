#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/format.h"
#include "commands.h"
#include "console.h"
#include "model_flags.h"
#include "server/api_keys.h"
#include "server/server.h"
#include "sys/file.h"

namespace millrace {
namespace {

constexpr size_t kMaxKeyFileBytes = size_t(1) << 20;

// SIGINT and SIGTERM, taken by a thread that waits for them, so that they interrupt nothing.
class StopSignals {
 public:
  // Blocks them in the caller's thread and in those it creates from now on, for good: one that comes
  // when the server has ended must not make a failure of it.
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

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
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
  if (std::string key = environment("MILLRACE_API_KEY"); !key.empty()) plain.push_back(key);
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
  server.admin_key =
      options.admin_key.empty() ? environment("MILLRACE_ADMIN_KEY") : options.admin_key;
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return Error{Code::kInvalidArgument, "TLS needs both --ssl-certfile and --ssl-keyfile"};
  }
  if (!options.certificate_file.empty()) {
    server.tls = net::TlsOptions{options.certificate_file, options.key_file, options.ca_file,
                                 options.requires_client_certificate, options.ciphers};
  }
  if (!server.max_open_requests) {
    server.max_open_requests = options.engine.max_num_seqs + options.engine.max_waiting;
  }
  return server;
}

}  // namespace

int run_serve(const ServeCommandOptions& options) {
  StopSignals signals;
  raise_file_limit();
  const Result<std::string> model_dir = resolve_model_dir(options.model.model_dir);
  if (!model_dir.has_value()) return fail(model_dir.error());
  Result<ServerOptions> server_options = make_server_options(options, model_dir.value());
  if (!server_options.has_value()) return fail(server_options.error());

  Result<std::unique_ptr<Llm>> llm = open_llm(options.model, options.engine);
  if (!llm.has_value()) return fail(llm.error());
  Result<std::unique_ptr<Server>> server =
      Server::create(*llm.value(), std::move(server_options.value()), MILLRACE_VERSION);
  if (!server.has_value()) return fail(server.error());
  const EngineInfo& info = llm.value()->engine().info();
  warn(format("serving ", model_dir.value(), " at ", server.value()->address(), " (",
              info.numerics_id, ", ", info.num_threads, " threads, ",
              llm.value()->engine().max_model_len(), " tokens); Ctrl-C ends it"));
  signals.run(*server.value());
  return kExitOk;
}

}  // namespace millrace
