#include "scheduler/fair_share.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace {

FairShare::FairShare() {
  for (int level = 0; level < kNumLevels; ++level) {
    levels_[size_t(level)].weight = std::pow(kPriorityWeight, -(level + kMinPriority));
  }
}

int FairShare::level_of(int32_t priority) {
  return std::clamp(priority, kMinPriority, kMaxPriority) - kMinPriority;
}

FairShare::Key* FairShare::join(int32_t priority, const std::string& name) {
  const int level = level_of(priority);
  std::unique_ptr<Key>& key = levels_[size_t(level)].keys[name];
  if (!key) {
    key = std::make_unique<Key>();
    key->name = name;
    key->level = level;
    key->number = num_keys_ever_++;
  }
  ++key->num_requests;
  return key.get();
}

void FairShare::leave(Key* key) {
  MR_CHECK_OP(key->num_requests, >, 0);
  if (--key->num_requests > 0) return;
  MR_CHECK(key->waiting.empty());
  MR_CHECK_OP(key->num_pending, ==, 0);
  auto& keys = levels_[size_t(key->level)].keys;
  keys.erase(keys.find(key->name));
}

void FairShare::add_pending(Party& party, Clock& clock) {
  if (party.num_pending++ > 0) return;
  party.virtual_time = std::clamp(party.virtual_time, clock.now, clock.now + kMaxDebt);
  clock.pending_weight += party.weight;
}

void FairShare::remove_pending(Party& party, Clock& clock) {
  MR_CHECK_OP(party.num_pending, >, 0);
  if (--party.num_pending > 0) return;
  clock.pending_weight -= party.weight;
}

void FairShare::charge(Party& party, Clock& clock, double num_tokens) {
  party.virtual_time += num_tokens / party.weight;
  // Weights are powers of two: their sums are exact.
  if (party.num_pending > 0) clock.now += num_tokens / clock.pending_weight;
}

void FairShare::add_pending(Key* key) {
  Level& level = levels_[size_t(key->level)];
  add_pending(*key, level.clock);
  add_pending(level, clock_);
  ++num_pending_;
}

void FairShare::remove_pending(Key* key) {
  Level& level = levels_[size_t(key->level)];
  remove_pending(*key, level.clock);
  remove_pending(level, clock_);
  --num_pending_;
}

void FairShare::charge(Key* key, int64_t num_tokens) {
  Level& level = levels_[size_t(key->level)];
  charge(*key, level.clock, double(num_tokens));
  charge(level, clock_, double(num_tokens));
}

bool FairShare::is_before(const Key& a, const Key& b) const {
  if (a.level != b.level) {
    const double a_time = levels_[size_t(a.level)].virtual_time;
    const double b_time = levels_[size_t(b.level)].virtual_time;
    return a_time != b_time ? a_time < b_time : a.level < b.level;
  }
  if (a.virtual_time != b.virtual_time) return a.virtual_time < b.virtual_time;
  return a.number < b.number;
}

void FairShare::add_waiting(Sequence* sequence, SequenceId id, Key* key) {
  MR_CHECK(key->waiting.emplace(id, sequence).second);
  ++levels_[size_t(key->level)].num_waiting;
  ++num_waiting_;
}

void FairShare::remove_waiting(SequenceId id, Key* key) {
  MR_CHECK_OP(key->waiting.erase(id), ==, 1u);
  --levels_[size_t(key->level)].num_waiting;
  --num_waiting_;
}

FairShare::Key* FairShare::next_waiting() {
  const Level* best_level = nullptr;
  for (const Level& level : levels_) {
    if (level.num_waiting == 0) continue;
    if (!best_level || level.virtual_time < best_level->virtual_time) best_level = &level;
  }
  Key* best = nullptr;
  if (!best_level) return best;
  for (const auto& [name, key] : best_level->keys) {
    if (!key->waiting.empty() && (!best || is_before(*key, *best))) best = key.get();
  }
  return best;
}

bool FairShare::is_waiting(int32_t priority, const std::string& name) const {
  const Level& level = levels_[size_t(level_of(priority))];
  const auto found = level.keys.find(name);
  return found != level.keys.end() && !found->second->waiting.empty();
}

int64_t FairShare::num_keys() const {
  int64_t num = 0;
  for (const Level& level : levels_) num += int64_t(level.keys.size());
  return num;
}

void FairShare::check_invariants() const {
  double pending_weight = 0;
  for (const Level& level : levels_) {
    int64_t num_pending = 0, num_waiting = 0;
    double keys_weight = 0;
    for (const auto& [name, key] : level.keys) {
      MR_CHECK(key->name == name);
      MR_CHECK_OP(key->num_requests, >, 0);
      MR_CHECK(std::isfinite(key->virtual_time));
      num_pending += key->num_pending;
      num_waiting += int64_t(key->waiting.size());
      if (key->num_pending > 0) keys_weight += key->weight;
    }
    MR_CHECK_OP(num_pending, ==, level.num_pending);
    MR_CHECK_OP(num_waiting, ==, level.num_waiting);
    MR_CHECK(keys_weight == level.clock.pending_weight);
    MR_CHECK(std::isfinite(level.virtual_time));
    MR_CHECK(std::isfinite(level.clock.now));
    if (level.num_pending > 0) pending_weight += level.weight;
  }
  MR_CHECK(pending_weight == clock_.pending_weight);
  MR_CHECK(std::isfinite(clock_.now));
}

}  // namespace millrace
