#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "llm/llm.h"
#include "net/event_loop.h"
#include "server/admission.h"
#include "server/api_keys.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/ready_queue.h"
#include "server/work_pool.h"

namespace millrace {

class CompletionCall;

// What the routes of one server share. Belongs to the network's thread, but for what says
// otherwise.
struct ServerContext {
  const ServerOptions& options;
  Llm& llm;              // any thread
  net::EventLoop& loop;  // post(): any thread
  WorkPool& workers;     // any thread
  std::shared_ptr<ReadyQueue> ready;  // any thread
  Log& log;              // any thread
  Metrics& metrics;
  KeyRing& keys;
  Admission& admission;

  std::string version;
  std::string system_fingerprint;
  std::chrono::steady_clock::time_point start_time;
  int64_t created = 0;  // seconds since 1970, of the models' list
  bool is_draining = false;
  // Appends to the usage log; null: there is none.
  std::function<void(const std::string& line)> write_usage;

  // Requests that are being answered, by the id that the client knows.
  std::unordered_multimap<std::string, CompletionCall*> open_calls;
};

}  // namespace millrace
