#pragma once

// Which experts stay in a cache that has room for some of them. Bookkeeping only: it hands out
// slots and never touches their bytes.

#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

// LFU with aging that knows the order of the layers. Every expert, in the cache or not, has an
// estimate of how often its layer's turns need it: a mean over turns in which a turn counts half as
// much after kHalfLife more. Who must go is the expert whose next use is expected last:
//
//   the time until its layer's next turn, and as many turns as it is needed in one (1 / estimate)
//
// Least recently used alone would find nothing where prompts need all experts of one layer after
// the other: each would be gone just before its turn. Here equally frequent ones go in the order
// in which their layers have just passed, and a part of them stays. Decoding, where estimates
// differ, keeps the frequent ones, and forgets those that were.
//
// Invariant: every slot is free or holds one expert, and no expert is in two.
// Threading: one owner.
class ExpertCache {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr double kHalfLife = 8;  // turns of a layer

  // `num_experts` of each layer, in the order in which layers have their turns.
  ExpertCache(std::span<const int64_t> num_experts, int64_t num_slots);

  // It is the layer's turn, and it needs `ids`. Requires: in range, no id twice.
  void begin_turn(int64_t layer, std::span<const int32_t> ids);

  // The slot that holds the expert; kNone: none does.
  int32_t find(int64_t layer, int32_t id) const { return slot_of_[expert(layer, id)]; }

  // A slot for the expert, pinned: a free one, or else that of the expert that must go. kNone when
  // all are pinned. Requires: find() is kNone.
  int32_t insert(int64_t layer, int32_t id);
  void remove(int32_t slot);  // what it was to hold did not come. Requires: pinned once

  // A pinned slot keeps its expert. Pins count.
  void pin(int32_t slot);
  void unpin(int32_t slot);

  int64_t num_slots() const { return int64_t(slots_.size()); }
  int64_t num_layers() const { return int64_t(first_.size()) - 1; }
  int64_t num_experts(int64_t layer) const {
    return int64_t(first_[size_t(layer) + 1] - first_[size_t(layer)]);
  }
  void check_invariants() const;

 private:
  struct Slot {
    int32_t layer = kNone;  // kNone: free
    int32_t id = 0;
    int32_t pins = 0;
  };

  size_t expert(int64_t layer, int32_t id) const { return first_[size_t(layer)] + size_t(id); }
  int32_t victim() const;

  std::vector<size_t> first_;     // [layers + 1] of the layer's experts in the lists below
  std::vector<double> estimate_;  // uses per turn
  std::vector<int32_t> slot_of_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;
  int64_t layer_ = 0;  // whose turn it is
};

}  // namespace millrace
