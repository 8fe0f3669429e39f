#pragma once

#include <cstdint>

namespace millrace {

// The floating-point control state that the numerics contract assumes: round to nearest, no
// flush-to-zero, denormals are numbers, no traps. A host process or a library may have changed
// it for the calling thread; every entry into the model holds one of these, and every thread of
// a pool sets it at its start.
class ScopedFpEnvironment {
 public:
  ScopedFpEnvironment();
  ~ScopedFpEnvironment();
  ScopedFpEnvironment(const ScopedFpEnvironment&) = delete;
  ScopedFpEnvironment& operator=(const ScopedFpEnvironment&) = delete;

  // Whether the calling thread is in the contract's state (sticky exception flags aside).
  static bool is_active();

 private:
  uint64_t saved_;
};

}  // namespace millrace
