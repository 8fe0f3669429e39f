#include "checkpoint/expert_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace millrace {
namespace {

constexpr int32_t kNone = ExpertCache::kNone;

std::vector<int32_t> range(int32_t begin, int32_t end) {
  std::vector<int32_t> ids;
  for (int32_t id = begin; id < end; ++id) ids.push_back(id);
  return ids;
}

// A turn of the layer as a source takes it: all that is there is pinned, then each of the others
// takes a slot and gives it back. Returns how many were there.
int64_t take_turn(ExpertCache& cache, int64_t layer, const std::vector<int32_t>& ids) {
  cache.begin_turn(layer, ids);
  std::vector<int32_t> pinned;
  for (const int32_t id : ids) {
    if (cache.find(layer, id) == kNone) continue;
    pinned.push_back(cache.find(layer, id));
    cache.pin(pinned.back());
  }
  for (const int32_t id : ids) {
    if (cache.find(layer, id) != kNone) continue;
    int32_t slot = cache.insert(layer, id);
    if (slot == kNone) {
      // Only those that have been used can make room.
      cache.unpin(pinned.back());
      pinned.pop_back();
      slot = cache.insert(layer, id);
    }
    cache.unpin(slot);
  }
  const int64_t num_hits = int64_t(pinned.size());
  for (const int32_t slot : pinned) cache.unpin(slot);
  return num_hits;
}

TEST(ExpertCache, FillsFreeSlotsBeforeAnythingGoes) {
  ExpertCache cache(std::vector<int64_t>{4, 4}, 3);
  EXPECT_EQ(take_turn(cache, 0, {1, 2}), 0);
  EXPECT_EQ(take_turn(cache, 1, {3}), 0);
  EXPECT_EQ(take_turn(cache, 0, {1, 2}), 2);
  EXPECT_EQ(take_turn(cache, 1, {3}), 1);
  cache.check_invariants();
}

TEST(ExpertCache, TheExpertThatIsUsedLeastOftenGoes) {
  ExpertCache cache(std::vector<int64_t>{8}, 3);
  for (int i = 0; i < 5; ++i) take_turn(cache, 0, {0, 1});
  take_turn(cache, 0, {2});
  take_turn(cache, 0, {3});
  EXPECT_EQ(cache.find(0, 2), kNone);
  EXPECT_NE(cache.find(0, 0), kNone);
  EXPECT_NE(cache.find(0, 1), kNone);
  EXPECT_NE(cache.find(0, 3), kNone);
}

// Least recently used would find nothing here.
TEST(ExpertCache, KeepsAPartOfALoopThatIsLargerThanItself) {
  ExpertCache cache(std::vector<int64_t>(8, 16), 64);  // half of the experts
  int64_t num_hits = 0;
  for (int round = 0; round < 40; ++round) {
    for (int64_t layer = 0; layer < 8; ++layer) {
      const int64_t hits = take_turn(cache, layer, range(0, 16));
      if (round >= 20) num_hits += hits;
      cache.check_invariants();
    }
  }
  EXPECT_GT(num_hits, 20 * 8 * 16 * 0.45);
}

TEST(ExpertCache, ForgetsWhatWasFrequentLongAgo) {
  ExpertCache cache(std::vector<int64_t>{16}, 4);
  for (int i = 0; i < 100; ++i) take_turn(cache, 0, range(0, 4));
  int64_t num_hits = 0;
  for (int i = 0; i < 4 * int(ExpertCache::kHalfLife); ++i) {
    num_hits = take_turn(cache, 0, range(8, 12));
  }
  EXPECT_EQ(num_hits, 4);
}

TEST(ExpertCache, RemembersHowOftenAnExpertWasUsedThatHadToGo) {
  ExpertCache cache(std::vector<int64_t>{8}, 2);
  for (int i = 0; i < 10; ++i) take_turn(cache, 0, {0, 1, 2});
  take_turn(cache, 0, {3});
  for (int i = 0; i < 2; ++i) take_turn(cache, 0, {0});
  EXPECT_NE(cache.find(0, 0), kNone);
  EXPECT_EQ(cache.find(0, 3), kNone) << "it was used once, the other one often";
}

TEST(ExpertCache, PinnedExpertsStay) {
  ExpertCache cache(std::vector<int64_t>{8}, 2);
  cache.begin_turn(0, std::vector<int32_t>{0, 1, 2});
  const int32_t a = cache.insert(0, 0), b = cache.insert(0, 1);
  EXPECT_EQ(cache.insert(0, 2), kNone);
  cache.pin(a);
  cache.unpin(a);
  EXPECT_EQ(cache.insert(0, 2), kNone) << "pins count";
  cache.unpin(b);
  EXPECT_EQ(cache.insert(0, 2), b);
  EXPECT_EQ(cache.find(0, 1), kNone);
  EXPECT_EQ(cache.find(0, 2), b);
}

TEST(ExpertCache, ASlotWhoseExpertDidNotComeIsFree) {
  ExpertCache cache(std::vector<int64_t>{8}, 1);
  const int32_t slot = cache.insert(0, 5);
  cache.remove(slot);
  EXPECT_EQ(cache.find(0, 5), kNone);
  EXPECT_EQ(cache.insert(0, 6), slot);
  cache.check_invariants();
}

TEST(ExpertCache, HoldsItsInvariantsWhateverHappens) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return size_t(random() % n); };
    const std::vector<int64_t> counts{int64_t(1 + below(9)), int64_t(1 + below(9)), 5};
    ExpertCache cache(counts, int64_t(1 + below(8)));
    std::vector<int32_t> pins;  // one entry for each
    for (int i = 0; i < 2000; ++i) {
      const int64_t layer = int64_t(below(counts.size()));
      const int32_t id = int32_t(below(size_t(counts[size_t(layer)])));
      const int32_t slot = cache.find(layer, id);
      switch (below(5)) {
        case 0:
          cache.begin_turn(layer, std::vector<int32_t>{id});
          break;
        case 1:
          if (slot != kNone) {
            cache.pin(slot);
            pins.push_back(slot);
          } else if (const int32_t new_slot = cache.insert(layer, id); new_slot != kNone) {
            EXPECT_EQ(std::count(pins.begin(), pins.end(), new_slot), 0);
            EXPECT_EQ(cache.find(layer, id), new_slot);
            pins.push_back(new_slot);
          } else {
            for (int32_t s = 0; s < int32_t(cache.num_slots()); ++s) {
              EXPECT_GT(std::count(pins.begin(), pins.end(), s), 0);
            }
          }
          break;
        case 2:
          if (std::count(pins.begin(), pins.end(), slot) != 1) break;
          cache.remove(slot);
          std::erase(pins, slot);
          break;
        default:
          if (pins.empty()) break;
          const size_t at = below(pins.size());
          cache.unpin(pins[at]);
          pins.erase(pins.begin() + ptrdiff_t(at));
      }
      cache.check_invariants();
    }
  }
}

}  // namespace
}  // namespace millrace
