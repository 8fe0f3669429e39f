#pragma once

// The HTTP server: OpenAI's API over one Llm. docs/server.md describes it.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "llm/llm.h"
#include "server/options.h"

namespace millrace {

// Threads: run()'s is the network's, which never parses a body, tokenizes or waits; workers do what
// takes long; the engine has its own.
class Server {
 public:
  // Listens, but answers nothing before run(). The Llm must outlive it.
  static Result<std::unique_ptr<Server>> create(Llm& llm, ServerOptions options,
                                                std::string version);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves until it has been told to stop and everything has ended.
  void run();

  // From any thread, also before run(). First: no new requests, those that run go on for as long as
  // the shutdown timeout; again: end now.
  void stop();

  // Where it listens, for messages: "http://127.0.0.1:8000".
  std::string address() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
