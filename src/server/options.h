#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "net/http_server.h"
#include "server/api_keys.h"

namespace millrace {

struct CorsOptions {
  std::vector<std::string> allowed_origins{"*"};
  std::string allowed_methods = "*", allowed_headers = "*";
  bool allows_credentials = false;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string unix_socket;  // instead of host and port
  // What requests may call this host, beside localhost and addresses, if it listens at a loopback
  // address: a web page must not get at it under a name of its own (DNS rebinding). "*": anything.
  std::vector<std::string> allowed_hosts;
  std::string root_path;    // in front of every path, as a reverse proxy adds it
  std::vector<std::string> served_model_names;  // at least one; the first is that of answers
  std::string model_root;                       // where clients may load the tokenizer from

  std::vector<ApiKey> api_keys;  // none: nobody needs one
  std::string admin_key;         // empty: the gated paths are closed
  std::string usage_log_file;    // a line for each request; empty: none
  std::optional<net::TlsOptions> tls;
  CorsOptions cors;
  net::HttpLimits http;

  int num_workers = 2;                       // threads that parse and tokenize
  std::optional<int64_t> max_open_requests;  // none: what the engine takes
  std::optional<int64_t> max_queued_tokens;  // of prompts without a first token, estimated
  int overload_status = 503;                 // or 429
  int64_t max_logprobs = 20;
  bool clamps_max_tokens = false;  // to what fits, instead of a refusal
  double shutdown_timeout_s = 30;  // for what is running when the server is told to end
  double early_stream_start_s = 0;  // a stream without a token begins after so long; 0: it waits
  double watchdog_s = 300;         // a step that is in one place for so long is unhealthy

  std::string metrics_prefix = "vllm:";
  bool access_log = true;
  bool log_stats = true;   // a line every 10 s while something happens
  bool log_json = false;   // lines are JSON objects
  bool takes_over = false;  // the listeners of the server that has the address now
};

}  // namespace millrace
