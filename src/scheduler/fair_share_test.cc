#include "scheduler/fair_share.h"

#include <gtest/gtest.h>

#include <random>

#include "scheduler/sequence.h"

namespace millrace {
namespace {

// Keys that always have something waiting; one of them is served at a time.
struct Backlog {
  FairShare share;
  std::vector<FairShare::Key*> keys;
  std::vector<Sequence> sequences = std::vector<Sequence>(16);

  FairShare::Key* add(int32_t priority, const std::string& name) {
    FairShare::Key* key = share.join(priority, name);
    const SequenceId id = SequenceId(keys.size());
    keys.push_back(key);
    wait(key, id);
    return key;
  }
  void wait(FairShare::Key* key, SequenceId id) {
    share.add_pending(key);
    share.add_waiting(&sequences[size_t(id)], id, key);
  }
  void stop(FairShare::Key* key, SequenceId id) {
    share.remove_waiting(id, key);
    share.remove_pending(key);
  }
  FairShare::Key* serve(int64_t num_tokens) {
    FairShare::Key* key = share.next_waiting();
    share.charge(key, num_tokens);
    share.check_invariants();
    return key;
  }
};

TEST(FairShare, KeysOfOnePriorityTakeTurnsByTokens) {
  Backlog b;
  FairShare::Key* a = b.add(0, "a");
  FairShare::Key* c = b.add(0, "c");
  EXPECT_EQ(b.serve(100), a);  // the first comer decides ties
  EXPECT_EQ(b.serve(30), c);
  EXPECT_EQ(b.serve(30), c);
  EXPECT_EQ(b.serve(30), c);
  EXPECT_EQ(b.serve(30), c);
  EXPECT_EQ(b.serve(30), a);
}

// While all have something waiting, no two differ by more than what was served last at once.
TEST(FairShare, TheDistanceBetweenKeysIsBoundedByTheLargestTurn) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Backlog b;
    for (int i = 0; i < 5; ++i) b.add(0, std::string(1, char('a' + i)));
    std::map<FairShare::Key*, int64_t> served;
    for (int i = 0; i < 500; ++i) {
      const int64_t tokens = 1 + int64_t(random() % 100);
      served[b.serve(tokens)] += tokens;
      int64_t least = served[b.keys[0]], most = least;
      for (FairShare::Key* key : b.keys) {
        least = std::min(least, served[key]);
        most = std::max(most, served[key]);
      }
      ASSERT_LE(most - least, 100) << "seed " << seed;
    }
  }
}

TEST(FairShare, EachPriorityWeighsFourTimesTheNextHoweverManyKeysItHas) {
  Backlog b;
  for (int i = 0; i < 6; ++i) b.add(1, std::string(1, char('a' + i)));
  b.add(0, "one");
  std::map<int, int64_t> served;
  for (int i = 0; i < 10000; ++i) served[b.serve(10)->level] += 10;
  const double ratio = double(served[0 - kMinPriority]) / double(served[1 - kMinPriority]);
  EXPECT_NEAR(ratio, kPriorityWeight, 0.01);
}

TEST(FairShare, WhoDidNotAskSavesNothingUp) {
  Backlog b;
  FairShare::Key* idle = b.add(0, "idle");
  FairShare::Key* busy = b.add(0, "busy");
  b.stop(idle, 0);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(b.serve(100), busy);
  b.wait(idle, 0);
  int64_t served_idle = 0, served_busy = 0;
  for (int i = 0; i < 10; ++i) (b.serve(100) == idle ? served_idle : served_busy) += 100;
  EXPECT_EQ(served_idle, served_busy);
}

// What is decoded counts, too, but who decoded long without company does not wait for ever.
TEST(FairShare, ADebtIsForgottenBeyondItsBound) {
  Backlog b;
  FairShare::Key* debtor = b.add(0, "debtor");
  FairShare::Key* other = b.add(0, "other");
  b.stop(debtor, 0);
  for (int i = 0; i < 1000; ++i) b.share.charge(debtor, 1000);
  b.wait(debtor, 0);
  int64_t served = 0;
  while (b.serve(64) == other) served += 64;
  EXPECT_NEAR(double(served), FairShare::kMaxDebt, 64);
}

TEST(FairShare, ManyNewKeysDelayAnOldOneByItsShareOnly) {
  Backlog b;
  FairShare::Key* old = b.add(0, "old");
  b.share.charge(old, 1000);
  // Four newcomers wait at any time; each leaves when it has been served once.
  std::vector<FairShare::Key*> newcomers;
  int64_t num_new = 0, served = 0;
  SequenceId id = 1;
  const auto arrive = [&] {
    FairShare::Key* key = b.share.join(0, "new" + std::to_string(num_new++));
    b.share.add_pending(key);
    b.share.add_waiting(&b.sequences[1], id++, key);
  };
  for (int i = 0; i < 4; ++i) arrive();
  while (true) {
    FairShare::Key* key = b.serve(100);
    if (key == old) break;
    served += 100;
    ASSERT_LT(served, 100000);
    b.share.remove_waiting(key->waiting.begin()->first, key);
    b.share.remove_pending(key);
    b.share.leave(key);
    arrive();
  }
  EXPECT_LE(served, 1000 * 5 + 500);
}

TEST(FairShare, AKeyIsForgottenWithItsLastRequest) {
  FairShare share;
  FairShare::Key* key = share.join(0, "a");
  EXPECT_EQ(share.join(0, "a"), key);
  EXPECT_NE(share.join(1, "a"), key);  // another priority
  EXPECT_EQ(share.num_keys(), 2);
  share.leave(key);
  EXPECT_EQ(share.num_keys(), 2);
  share.leave(key);
  EXPECT_EQ(share.num_keys(), 1);
}

TEST(FairShare, AKeyServesItsSequencesInOrder) {
  FairShare share;
  std::vector<Sequence> sequences(4);
  FairShare::Key* key = share.join(0, "a");
  for (SequenceId id : {3, 1, 2}) share.add_waiting(&sequences[size_t(id)], id, key);
  EXPECT_EQ(share.next_waiting()->waiting.begin()->first, 1);
  share.remove_waiting(1, key);
  EXPECT_EQ(share.next_waiting()->waiting.begin()->first, 2);
  share.remove_waiting(2, key);
  share.remove_waiting(3, key);
  EXPECT_EQ(share.next_waiting(), nullptr);
}

}  // namespace
}  // namespace millrace
