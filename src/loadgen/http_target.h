#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "chat/json.h"
#include "loadgen/prompt_source.h"
#include "loadgen/target.h"
#include "net/event_loop.h"
#include "net/http_client.h"

namespace millrace {

enum class BenchEndpoint { kCompletions, kChat };

// What every request has beside its prompt and its length.
struct RequestFields {
  std::string model;  // as the server names it
  BenchEndpoint endpoint = BenchEndpoint::kCompletions;
  bool sends_text = false;          // completions: instead of token ids. A chat always does
  int64_t num_template_tokens = 0;  // what the server puts around a prompt, which is the shorter
  bool ignores_eos = true;
  bool counts_tokens = false;  // asks for the usage with every event: exact tokens per event
  std::optional<double> temperature;
  std::optional<uint64_t> seed;  // the request's id is added
  JsonValue extra;               // an object: further fields, which replace those above
};

// The body of a request; of `tokens` and `text` the one that it sends.
std::string request_body(const RequestFields& fields, const PlannedRequest& request,
                         const std::vector<int32_t>& tokens, const std::string& text);

struct ServerAddress {
  net::HttpOrigin origin;
  std::string base_path;  // in front of /v1, without a slash at the end
  std::string api_key;    // empty: none is sent
};

// A URL with or without /v1 at its end.
Result<ServerAddress> parse_server_address(const std::string& url, const std::string& api_key);

// A server of the OpenAI API, streaming.
class HttpTarget : public Target {
 public:
  // `prompts` and `tokenizer` (null: none; then prompts are text) must outlive it.
  HttpTarget(net::EventLoop& loop, ServerAddress address, RequestFields fields,
             const PromptSource& prompts, const Tokenizer* tokenizer);
  ~HttpTarget() override;

  void send(const PlannedRequest& request, const Clock& clock, OnDone on_done) override;
  void cancel_all() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One question and its whole answer, while the caller waits. Requires: the loop does not run.
struct PlainAnswer {
  int status = 0;
  std::string body;
};
Result<PlainAnswer> ask(net::EventLoop& loop, const ServerAddress& address,
                        const std::string& method, const std::string& path, const std::string& body,
                        double timeout_s);

}  // namespace millrace
