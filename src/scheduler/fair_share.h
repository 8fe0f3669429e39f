#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "request/request.h"
#include "request/step.h"

namespace millrace {

struct Sequence;

// Whose turn it is: stride scheduling over computed tokens, between priorities first and between
// the keys of one priority then. A party's virtual time advances with every token computed for it,
// divided by its weight, and the party that is furthest behind goes first; a key serves its
// sequences in the order of their ids. docs/scheduler.md has the bounds that follow.
//
// A party that has something pending again after a pause resumes at the clock of its peers, so that
// nobody saves up time that was not asked for; what it is ahead is kept up to kMaxDebt.
//
// Threading: not thread-safe; owned by the scheduler.
class FairShare {
 public:
  static constexpr double kMaxDebt = 32768;  // weighted tokens ahead of the peers
  static constexpr int kNumLevels = kMaxPriority - kMinPriority + 1;

  // One party: a priority among priorities, or a key among those of a priority.
  struct Party {
    double weight = 1;
    double virtual_time = 0;
    int64_t num_pending = 0;  // sequences with known tokens that are not computed
  };
  // What the parties with something pending share: it advances as each of them would if all were
  // served evenly.
  struct Clock {
    double now = 0;
    double pending_weight = 0;  // of the parties that have something pending
  };
  struct Key : Party {
    std::string name;
    int level = 0;
    int64_t number = 0;  // of all keys ever; decides ties
    int64_t num_requests = 0;
    std::map<SequenceId, Sequence*> waiting;  // to be admitted
  };

  FairShare();

  // Counts a request; a key exists as long as it has one.
  Key* join(int32_t priority, const std::string& name);
  void leave(Key* key);

  // One more, or one less, sequence of this key has tokens to compute beside its last one.
  void add_pending(Key* key);
  void remove_pending(Key* key);

  void charge(Key* key, int64_t num_tokens);

  // What next_waiting() may find: sequences to be admitted.
  void add_waiting(Sequence* sequence, SequenceId id, Key* key);
  void remove_waiting(SequenceId id, Key* key);

  // Whether `a` goes before `b`.
  bool is_before(const Key& a, const Key& b) const;
  // The key with something waiting that goes before all others; null: none. Linear in the keys.
  Key* next_waiting();

  // Whether this key has something waiting.
  bool is_waiting(int32_t priority, const std::string& name) const;

  int64_t num_pending() const { return num_pending_; }
  int64_t num_waiting() const { return num_waiting_; }
  int64_t num_keys() const;
  void check_invariants() const;

 private:
  struct Level : Party {
    Clock clock;                                       // of its keys
    std::map<std::string, std::unique_ptr<Key>> keys;  // by name
    int64_t num_waiting = 0;
  };

  static int level_of(int32_t priority);
  static void add_pending(Party& party, Clock& clock);
  static void remove_pending(Party& party, Clock& clock);
  static void charge(Party& party, Clock& clock, double num_tokens);

  std::array<Level, kNumLevels> levels_;
  Clock clock_;
  int64_t num_pending_ = 0, num_waiting_ = 0;
  int64_t num_keys_ever_ = 0;
};

}  // namespace millrace
