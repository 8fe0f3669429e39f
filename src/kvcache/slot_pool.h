#pragma once

#include <cstdint>
#include <optional>

#include "kvcache/block_pool.h"
#include "request/step.h"

namespace millrace {

// Fixed pool of the slots that hold what a sequence keeps whatever its length. A slot has one
// owner.
//
// Threading: not thread-safe; owned by the scheduler.
class SlotPool {
 public:
  explicit SlotPool(int64_t num_slots) : pool_(num_slots) {}

  std::optional<StateSlot> allocate() { return pool_.allocate(); }
  void release(StateSlot slot) { pool_.release(slot); }

  int64_t num_slots() const { return pool_.num_blocks(); }
  int64_t num_free() const { return pool_.num_free(); }
  bool is_in_use(StateSlot slot) const { return pool_.num_references(slot) > 0; }
  void check_invariants() const { pool_.check_invariants(); }

 private:
  BlockPool pool_;  // with one reference each
};

}  // namespace millrace
