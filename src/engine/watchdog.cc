#include "engine/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"

namespace millrace {
namespace {

constexpr double kShortestSleepMs = 1, kLongestSleepMs = 3'600'000;

// Two looks in the same step and layer have seen the same place.
using Place = std::pair<int64_t, std::optional<int64_t>>;

}  // namespace

std::optional<std::string> find_stall(const EngineHealth& health, double limit_ms) {
  if (!health.in_place_ms || *health.in_place_ms <= limit_ms) return std::nullopt;
  const std::string place =
      health.layer ? format("in layer ", *health.layer) : std::string("before its first layer");
  return format("step ", health.num_steps, " with ", health.num_rows, " rows has been ", place,
                " for ", *health.in_place_ms / 1000, " s, expected at most ", limit_ms / 1000, " s");
}

Watchdog::Watchdog(double limit_ms, std::function<EngineHealth()> look,
                   std::function<void(const std::string&)> on_warning)
    : limit_ms_(limit_ms), look_(std::move(look)), on_warning_(std::move(on_warning)) {
  thread_ = std::thread([this] { loop(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::loop() {
  std::optional<Place> warned;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const EngineHealth health = look_();
    const Place place{health.num_steps, health.layer};
    const std::optional<std::string> stall = find_stall(health, limit_ms_);
    if (stall && warned != place) {
      on_warning_(*stall);
      warned = place;
    }
    // A place that is entered from now on is late in limit_ms_ at the earliest.
    const double left_ms = stall ? limit_ms_ : limit_ms_ - health.in_place_ms.value_or(0);
    const std::chrono::duration<double, std::milli> sleep(
        std::clamp(left_ms, kShortestSleepMs, kLongestSleepMs));
    lock.lock();
    wake_.wait_for(lock, sleep, [&] { return stop_; });
  }
}

}  // namespace millrace
