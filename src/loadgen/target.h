#pragma once

#include <functional>
#include <string>

#include "loadgen/record.h"
#include "loadgen/workload.h"

namespace millrace {

// What requests are sent to. Lives on the event loop of the run: everything is called there.
class Target {
 public:
  // Nanoseconds from the start of the run.
  using Clock = std::function<int64_t()>;
  using OnDone = std::function<void(RequestRecord record)>;

  virtual ~Target() = default;
  // Sends it now; fills in all but the times of the plan. `on_done` is called once, not from
  // within.
  virtual void send(const PlannedRequest& request, const Clock& clock, OnDone on_done) = 0;
  // Gives up what has not ended: on_done gets what came so far, with was_cancelled.
  virtual void cancel_all() = 0;
};

}  // namespace millrace
