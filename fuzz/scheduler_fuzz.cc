// Events for the scheduler, in any order a caller may produce: arrivals, cancels, pauses, passing
// time, plans, commits. What must hold is in the driver. At the end everything runs to its end.

#include <cstdint>

#include "scheduler/test_driver.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  size_t at = 0;
  const TestDriver::Pick pick = [&](uint32_t n) {
    return at < size ? uint32_t(data[at++]) % n : 0;
  };
  const SchedulerOptions options = TestDriver::draw_options(pick);
  TestDriver driver(options, pick);
  while (at < size) driver.event();
  driver.drain();
  return 0;
}
