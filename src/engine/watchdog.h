#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace millrace {

// Where the engine is.
struct EngineHealth {
  int64_t num_steps = 0;  // whose rows have been computed
  // Of the step that runs; none: it is before its first layer, or there is no step.
  std::optional<int64_t> layer;
  int64_t num_rows = 0;  // of the step that runs
  // How long it has been there: in this layer, or in the step before its first layer. Behind the
  // last layer (head and sampling) the last layer counts on. None: it waits for requests.
  std::optional<double> in_place_ms;
};

// What is wrong, in one line, if a step has been in one place for longer than this. For whoever
// looks from time to time; takes no thread.
std::optional<std::string> find_stall(const EngineHealth& health, double limit_ms);

// Looks by itself, on a thread of its own, and warns once of each place in which a step stays for
// longer than the limit. Sleeps for as long as nothing can be late.
class Watchdog {
 public:
  // Both are called by its thread.
  Watchdog(double limit_ms, std::function<EngineHealth()> look,
           std::function<void(const std::string&)> on_warning);
  ~Watchdog();  // ends the thread at once
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void loop();

  const double limit_ms_;
  std::function<EngineHealth()> look_;
  std::function<void(const std::string&)> on_warning_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;   // guarded by mutex_
  std::thread thread_;  // last: it uses everything else
};

}  // namespace millrace
