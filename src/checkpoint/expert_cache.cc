#include "checkpoint/expert_cache.h"

#include <cmath>

#include "base/check.h"

namespace millrace {

ExpertCache::ExpertCache(std::span<const int64_t> num_experts, int64_t num_slots)
    : slots_(size_t(num_slots)) {
  first_.push_back(0);
  for (const int64_t count : num_experts) first_.push_back(first_.back() + size_t(count));
  estimate_.resize(first_.back(), 0);
  slot_of_.resize(first_.back(), kNone);
  for (int32_t slot = int32_t(num_slots); slot-- > 0;) free_.push_back(slot);
}

void ExpertCache::begin_turn(int64_t layer, std::span<const int32_t> ids) {
  static const double kKept = std::exp2(-1 / kHalfLife);
  layer_ = layer;
  for (size_t e = first_[size_t(layer)]; e < first_[size_t(layer) + 1]; ++e) estimate_[e] *= kKept;
  for (const int32_t id : ids) estimate_[expert(layer, id)] += 1 - kKept;
}

int32_t ExpertCache::insert(int64_t layer, int32_t id) {
  const size_t e = expert(layer, id);
  MR_CHECK(slot_of_[e] == kNone);
  int32_t slot = kNone;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else {
    slot = victim();
    if (slot == kNone) return kNone;
    slot_of_[expert(slots_[size_t(slot)].layer, slots_[size_t(slot)].id)] = kNone;
  }
  slots_[size_t(slot)] = {int32_t(layer), id, 1};
  slot_of_[e] = slot;
  return slot;
}

int32_t ExpertCache::victim() const {
  int32_t last = kNone;
  double last_use = 0;
  for (size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    if (slot.pins > 0) continue;
    const int64_t layers_until_turn = (slot.layer - layer_ - 1 + num_layers()) % num_layers();
    const double use = double(layers_until_turn) / double(num_layers()) +
                       1 / estimate_[expert(slot.layer, slot.id)];
    if (last == kNone || use > last_use) {
      last = int32_t(s);
      last_use = use;
    }
  }
  return last;
}

void ExpertCache::remove(int32_t slot) {
  Slot& of = slots_[size_t(slot)];
  MR_CHECK_OP(of.pins, ==, 1);
  slot_of_[expert(of.layer, of.id)] = kNone;
  of = {};
  free_.push_back(slot);
}

void ExpertCache::pin(int32_t slot) {
  MR_CHECK(slots_[size_t(slot)].layer != kNone);
  ++slots_[size_t(slot)].pins;
}

void ExpertCache::unpin(int32_t slot) {
  MR_CHECK_OP(slots_[size_t(slot)].pins, >, 0);
  --slots_[size_t(slot)].pins;
}

void ExpertCache::check_invariants() const {
  size_t num_held = 0;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].layer == kNone) {
      MR_CHECK_OP(slots_[s].pins, ==, 0);
      continue;
    }
    ++num_held;
    MR_CHECK_OP(slot_of_[expert(slots_[s].layer, slots_[s].id)], ==, int32_t(s));
  }
  MR_CHECK_OP(num_held + free_.size(), ==, slots_.size());
  size_t num_found = 0;
  for (const int32_t slot : slot_of_) num_found += slot != kNone;
  MR_CHECK_OP(num_found, ==, num_held);
}

}  // namespace millrace
