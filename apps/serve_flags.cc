#include "serve_flags.h"

#include <algorithm>
#include <string>

#include "flag_groups.h"

namespace millrace {
namespace {

std::string check_seconds_from(double least, const std::string& text) {
  double number = 0;
  const bool is_fine = parse_number(text, number) && number >= least && number <= 1e7;
  return is_fine ? "" : format("found \"", text, "\", expected seconds from ", least, " to 1e7");
}

std::string check_seconds(const std::string& text) { return check_seconds_from(0, text); }
// Of times in milliseconds within which a client must do something: with none, no client could.
std::string check_some_seconds(const std::string& text) { return check_seconds_from(0.001, text); }

std::string check_root_path(const std::string& path) {
  const bool is_fine = path.starts_with('/') && !path.ends_with('/');
  return is_fine ? "" : "found \"" + path + "\", expected /NAME without a slash at the end";
}

// It begins names of Prometheus.
std::string check_metrics_prefix(const std::string& prefix) {
  const auto is_fine = [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_' ||
           c == ':';
  };
  const bool begins_with_digit = !prefix.empty() && '0' <= prefix[0] && prefix[0] <= '9';
  if (!begins_with_digit && std::all_of(prefix.begin(), prefix.end(), is_fine)) return "";
  return format("found \"", prefix, "\", expected letters, digits, _ and :, no digit first");
}

template <class Unit>
CLI::Option* add_seconds(CLI::App& command, const char* name, Unit& value, const char* help,
                         const std::string& group) {
  return command
      .add_option_function<double>(
          name, [&value](double seconds) { value = Unit(int64_t(seconds * 1000)); }, help)
      ->type_name("S")
      ->default_str(format(double(value.count()) / 1000))
      ->group(group);
}

void add_address_flags(CLI::App& command, ServerOptions& options) {
  const std::string group = "Address";
  command.add_option("--host", options.host, "address to listen at; 0.0.0.0: every network")
      ->check(check_text)
      ->capture_default_str()
      ->group(group);
  command.add_option("--port", options.port, "0: any that is free")
      ->transform(integer<int>(0, 65535))
      ->capture_default_str()
      ->group(group);
  command.add_option("--uds,--unix-socket", options.unix_socket, "a Unix socket instead")
      ->check(check_path)
      ->type_name("PATH")
      ->group(group);
  command
      .add_option(
          "--allowed-hosts", options.allowed_hosts,
          "at a loopback address: names besides localhost that requests may give as Host, as "
          "behind a proxy; may be repeated; *: any")
      ->check(check_text)
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--root-path", options.root_path, "what a reverse proxy puts in front of paths")
      ->check(check_root_path)
      ->type_name("/PATH")
      ->group(group);
  command
      .add_flag(
          "--take-over", options.takes_over,
          "take the address from the server that has it, which then drains: no request is lost")
      ->group(group);
}

void add_access_flags(CLI::App& command, ServeCommandOptions& options) {
  const std::string group = "Access (also: MILLRACE_API_KEY, MILLRACE_ADMIN_KEY)";
  command
      .add_option("--api-key", options.api_keys,
                  "a key that requests need; may be repeated; shows in the process list")
      ->check(check_text)
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--api-key-file", options.api_key_file,
                  "named keys with limits, as docs/server.md describes")
      ->check(check_file)
      ->type_name("FILE")
      ->group(group);
  command.add_option("--admin-key", options.admin_key, "opens /drain, /undrain, /tokenizer_info")
      ->check(check_text)
      ->type_name("KEY")
      ->group(group);
  command
      .add_option("--usage-log", options.server.usage_log_file,
                  "append a JSON line for each request: key, tokens, time")
      ->check(check_file)
      ->type_name("FILE")
      ->group(group);
  const std::string tls = "TLS (the files are read again when they change)";
  CLI::Option* certificate =
      command.add_option("--ssl-certfile", options.certificate_file, "certificate chain, PEM")
          ->check(check_file)
          ->type_name("FILE")
          ->group(tls);
  CLI::Option* key = command.add_option("--ssl-keyfile", options.key_file, "private key, PEM")
                         ->check(check_file)
                         ->type_name("FILE")
                         ->needs(certificate)
                         ->group(tls);
  certificate->needs(key);
  command.add_option("--ssl-ca-certs", options.ca_file, "who may sign clients' certificates, PEM")
      ->check(check_file)
      ->type_name("FILE")
      ->needs(certificate)
      ->group(tls);
  command
      .add_flag("--ssl-require-client-cert", options.requires_client_certificate,
                "refuse clients without a certificate")
      ->needs(certificate)
      ->group(tls);
  command.add_option("--ssl-ciphers", options.ciphers, "OpenSSL's list; default: its own")
      ->check(check_text)
      ->type_name("LIST")
      ->needs(certificate)
      ->group(tls);
  CorsOptions& cors = options.server.cors;
  const std::string browsers = "Pages of other origins (CORS)";
  command.add_option("--allowed-origins", cors.allowed_origins, "may be repeated; *: any")
      ->check(check_text)
      ->capture_default_str()
      ->allow_extra_args(false)
      ->group(browsers);
  command.add_option("--allowed-methods", cors.allowed_methods, "")
      ->check(check_text)
      ->capture_default_str()
      ->group(browsers);
  command.add_option("--allowed-headers", cors.allowed_headers, "")
      ->check(check_text)
      ->capture_default_str()
      ->group(browsers);
  command.add_flag("--allow-credentials", cors.allows_credentials, "with cookies")->group(browsers);
}

void add_limit_flags(CLI::App& command, ServerOptions& options) {
  const std::string group = "Limits";
  const auto add = [&](const char* name, auto& value, const char* help, int64_t least) {
    command.add_option(name, value, help)
        ->transform(integer<int64_t>(least))
        ->type_name("N")
        ->capture_default_str()
        ->group(group);
  };
  add("--max-open-requests,--max-num-queued-reqs", options.max_open_requests,
      "requests in the server, running or not; default: what the engine takes", 1);
  add("--max-num-queued-tokens", options.max_queued_tokens,
      "prompt tokens that wait for their first answer; default: no limit", 1);
  add("--max-logprobs", options.max_logprobs, "alternatives that a request may ask for; -1: all",
      -1);
  add("--max-body-bytes", options.http.max_body_bytes, "of a request", 1);
  add("--max-header-bytes", options.http.max_header_bytes, "of a request", 256);
  add("--max-headers", options.http.max_headers, "of a request", 1);
  add("--max-connections", options.http.max_connections, "at a time", 1);
  command
      .add_option("--overload-status", options.overload_status,
                  "what a request too many gets: 503 or 429")
      ->check(CLI::IsMember({503, 429}).description(""))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--clamp-max-tokens", options.clamps_max_tokens,
                "cut a max_tokens that does not fit, instead of a refusal")
      ->group(group);
  add_seconds(command, "--header-timeout", options.http.header_timeout,
              "for the whole header of a request", group)
      ->check(check_some_seconds);
  add_seconds(command, "--body-timeout", options.http.body_timeout,
              "without another byte of a body", group)
      ->check(check_some_seconds);
  add_seconds(command, "--idle-timeout", options.http.idle_timeout, "between requests", group)
      ->check(check_seconds);
  add_seconds(command, "--write-timeout", options.http.write_timeout,
              "of a client that takes nothing of its answer", group)
      ->check(check_some_seconds);
  command
      .add_option("--early-stream-start", options.early_stream_start_s,
                  "begin a stream that has no token after so long, with comment lines; 0: wait")
      ->check(check_seconds)
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--shutdown-timeout", options.shutdown_timeout_s,
                  "for what is running when the server is told to end; 0: end it at once")
      ->check(check_seconds)
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--watchdog", options.watchdog_s,
                  "a step that is in one place for so long makes /health 503")
      ->check(check_seconds)
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--api-threads", options.num_workers, "threads that parse and tokenize requests")
      ->transform(integer<int>(1, 256))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

void add_report_flags(CLI::App& command, ServerOptions& options) {
  const std::string group = "Logs and metrics (MILLRACE_LOG_LEVEL: debug, info, warning, error)";
  command.add_option("--metrics-prefix", options.metrics_prefix, "of the names that vLLM has, too")
      ->check(check_metrics_prefix)
      ->capture_default_str()
      ->group(group);
  command
      .add_flag_callback("--no-access-log,--disable-access-log",
                         [&options] { options.access_log = false; }, "no line for each request")
      ->group(group);
  command
      .add_flag_callback("--disable-log-stats", [&options] { options.log_stats = false; },
                         "no line about the engine every 10 s")
      ->group(group);
  command.add_flag("--log-json", options.log_json, "log lines are JSON objects")->group(group);
}

// What vLLM has to be told and this program knows.
void add_needless_flags(CLI::App& command) {
  for (const char* name : {"--reasoning-parser", "--tool-call-parser", "--tokenizer-mode"}) {
    command.add_option_function<std::string>(name, [](const std::string&) {}, "")->group("");
  }
  for (const char* name : {"--enable-auto-tool-choice", "--trust-remote-code",
                           "--enable-prompt-tokens-details", "--enable-request-id-headers"}) {
    command.add_flag_callback(name, [] {}, "")->group("");
  }
}

}  // namespace

void add_serve(CLI::App& app, ServeCommandOptions& options, std::function<int()>& action) {
  CLI::App& command =
      *app.add_subcommand("serve", "serve the OpenAI API and a web page, on port 8000");
  command.footer(
      "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of "
      "France?\"}]}'\n"
      "docs/server.md describes the API, keys, limits and how a new process takes over.");
  add_engine_choice_flag(command, options.model);
  command
      .add_option("--served-model-name", options.server.served_model_names,
                  "the model's name in the API; may be repeated; default: the directory's name")
      ->check(check_text)
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group("Model");
  add_address_flags(command, options.server);
  add_access_flags(command, options);
  add_limit_flags(command, options.server);
  add_report_flags(command, options.server);
  add_model_flags(command, options.model);
  add_context_flag(command, options.model);
  add_engine_flags(command, options.engine);
  command.add_option("--max-waiting", options.engine.max_waiting, "requests beyond those that run")
      ->transform(integer<int64_t>(1))
      ->type_name("N")
      ->capture_default_str()
      ->group("Engine (no flag changes an answer)");
  add_record_flag(command, options.model);
  add_needless_flags(command);
  // Replaced by what is in the file before flags are read (config_file.h).
  command
      .add_option_function<std::string>(
          "--config", [](const std::string&) {},
          "flags from a JSON file, {\"port\": 8001, \"api-key\": [\"...\"]}; the command line wins")
      ->type_name("FILE");
  command.callback([&] { action = [&] { return run_serve(options); }; });
}

}  // namespace millrace
