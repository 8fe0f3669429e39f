#include "kvcache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace millrace {
namespace {

constexpr int64_t kBlockSize = 4;

uint64_t always_the_same(const void*, size_t, uint64_t) { return 7; }

std::vector<int32_t> count(int32_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Cache {
  explicit Cache(int64_t num_blocks = 16, int64_t num_snapshots = 2,
                 PrefixCache::Hash hash = nullptr)
      : blocks(num_blocks),
        slots(num_snapshots + 4),
        cache({kBlockSize, 1000, num_snapshots, hash}, blocks, slots) {}

  // What a sequence of these tokens leaves behind; the blocks of its table.
  PrefixNode* compute(std::span<const int32_t> tokens, std::string_view salt,
                      std::vector<BlockId>& table) {
    PrefixNode* node = nullptr;
    for (size_t i = 0; i + kBlockSize <= tokens.size(); i += kBlockSize) {
      table.push_back(*blocks.allocate());
      node = &cache.insert(node, salt, tokens.subspan(i, kBlockSize), table.back());
    }
    return node;
  }
  void release(PrefixNode* node, const std::vector<BlockId>& table) {
    for (const BlockId block : table) blocks.release(block);
    if (node) cache.release(*node);
    cache.check_invariants();
  }
  std::vector<BlockId> leave(std::span<const int32_t> tokens, std::string_view salt = "") {
    std::vector<BlockId> table;
    PrefixNode* node = compute(tokens, salt, table);
    release(node, table);
    return table;
  }

  BlockPool blocks;
  SlotPool slots;
  PrefixCache cache;
};

TEST(PrefixCache, FindsTheWholeBlocksThatTwoPromptsHaveInCommon) {
  Cache c;
  const std::vector<BlockId> table = c.leave(count(11));
  EXPECT_EQ(c.blocks.num_free(), 14);
  EXPECT_EQ(c.cache.num_evictable_blocks(), 2);

  std::vector<int32_t> other = count(12);
  other[9] = 500;
  PrefixCache::Hit hit = c.cache.find("", other);
  EXPECT_EQ(hit.num_tokens, 8);
  std::vector<BlockId> found;
  c.cache.acquire(*hit.node, found);
  EXPECT_EQ(found, table);
  EXPECT_EQ(c.cache.num_evictable_blocks(), 0);
  c.release(hit.node, found);

  other[7] = 500;
  EXPECT_EQ(c.cache.find("", other).num_tokens, 4);
  other[3] = 500;
  EXPECT_EQ(c.cache.find("", other).node, nullptr);
  EXPECT_EQ(c.cache.find("", count(4)).num_tokens, 4);
  EXPECT_EQ(c.cache.find("", count(3)).node, nullptr);
}

TEST(PrefixCache, SaltsHaveNothingInCommon) {
  Cache c;
  c.leave(count(8), "alice");
  EXPECT_EQ(c.cache.find("", count(8)).node, nullptr);
  EXPECT_EQ(c.cache.find("bob", count(8)).node, nullptr);
  EXPECT_EQ(c.cache.find("alice", count(8)).num_tokens, 8);
}

TEST(PrefixCache, TokensAreComparedWhateverTheHash) {
  Cache c(16, 2, &always_the_same);
  c.leave(count(8));
  c.leave(count(8, 100), "salt");
  EXPECT_EQ(c.cache.find("", count(8)).num_tokens, 8);
  EXPECT_EQ(c.cache.find("", count(8, 100)).node, nullptr);
  EXPECT_EQ(c.cache.find("salt", count(8)).node, nullptr);
  // The second block's tokens in the place of the first.
  EXPECT_EQ(c.cache.find("", count(8, 4)).node, nullptr);
}

TEST(PrefixCache, EqualBlocksBecomeOne) {
  Cache c;
  std::vector<BlockId> first, second;
  PrefixNode* a = c.compute(count(8), "", first);
  PrefixNode* b = c.compute(count(8), "", second);
  EXPECT_EQ(a, b);
  EXPECT_EQ(first, second);
  EXPECT_EQ(c.blocks.num_free(), 14);
  c.release(a, first);
  EXPECT_EQ(c.cache.num_evictable_blocks(), 0);  // the other still needs them
  c.release(b, second);
  EXPECT_EQ(c.cache.num_evictable_blocks(), 2);
}

TEST(PrefixCache, WhatIsLongerIsEvictedBeforeWhatItBeginsWith) {
  Cache c;
  c.leave(count(12));
  for (const int64_t left : {8, 4, 0}) {
    EXPECT_TRUE(c.cache.evict_block());
    c.cache.check_invariants();
    EXPECT_EQ(c.cache.find("", count(12)).num_tokens, left);
  }
  EXPECT_FALSE(c.cache.evict_block());
  EXPECT_EQ(c.blocks.num_free(), 16);
}

TEST(PrefixCache, WhatWasFoundOutlivesWhatWasOnlyComputed) {
  Cache c;
  c.leave(count(8));
  std::vector<BlockId> found;
  PrefixNode* node = c.cache.find("", count(8)).node;
  c.cache.acquire(*node, found);
  c.release(node, found);
  for (int32_t i = 1; i < 4; ++i) c.leave(count(8, 100 * i));  // later, each once
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(c.cache.evict_block());
  EXPECT_EQ(c.cache.find("", count(8)).num_tokens, 8);
}

TEST(PrefixCache, ProtectionEndsWhenMostIsProtected) {
  Cache c(8);
  for (int32_t i = 0; i < 4; ++i) {
    c.leave(count(8, 100 * i));
    std::vector<BlockId> found;
    PrefixNode* node = c.cache.find("", count(8, 100 * i)).node;
    c.cache.acquire(*node, found);
    c.release(node, found);
  }
  EXPECT_TRUE(c.cache.evict_block());
  EXPECT_EQ(c.cache.find("", count(8)).num_tokens, 4);  // the oldest
}

TEST(PrefixCache, ASnapshotIsFoundWhereATokenIsLeftToCompute) {
  Cache c;
  const std::vector<int32_t> tokens = count(7);
  std::vector<BlockId> table;
  PrefixNode* node = c.compute(tokens, "", table);
  const BlockId last_block = *c.blocks.allocate();
  const auto tail = std::span(tokens).subspan(4);
  ASSERT_TRUE(c.cache.prepare_snapshot(node, "", tail));
  const StateSlot slot = *c.slots.allocate();
  c.cache.add_snapshot(node, "", tail, last_block, slot, 5);
  EXPECT_FALSE(c.cache.prepare_snapshot(node, "", tail));  // there is one
  c.release(node, table);
  EXPECT_EQ(c.cache.num_evictable_blocks(), 2);

  const PrefixCache::Hit hit = c.cache.find("", count(9));
  ASSERT_NE(hit.snapshot, nullptr);
  EXPECT_EQ(hit.num_snapshot_tokens, 7);
  EXPECT_EQ(hit.snapshot_node, node);
  EXPECT_EQ(PrefixCache::slot(*hit.snapshot), slot);
  EXPECT_EQ(PrefixCache::last_block(*hit.snapshot), last_block);
  EXPECT_EQ(c.cache.find("", tokens).snapshot, nullptr);
  std::vector<int32_t> other = count(9);
  other[5] = 500;
  EXPECT_EQ(c.cache.find("", other).snapshot, nullptr);
  EXPECT_EQ(c.cache.find("", other).num_tokens, 4);

  EXPECT_TRUE(c.cache.evict_block());  // the block it stands on
  EXPECT_EQ(c.cache.num_snapshots(), 0);
  EXPECT_EQ(c.blocks.num_free(), 16);
  EXPECT_FALSE(c.slots.is_in_use(slot));
}

TEST(PrefixCache, TheSnapshotThatSavesLeastGoesFirstUnlessItIsOfUse) {
  Cache c;
  const auto add = [&](std::span<const int32_t> tail, double value) {
    ASSERT_TRUE(c.cache.prepare_snapshot(nullptr, "", tail));
    c.cache.add_snapshot(nullptr, "", tail, *c.blocks.allocate(), *c.slots.allocate(), value);
  };
  add(count(1, 1), 10);
  add(count(1, 2), 20);
  add(count(1, 3), 15);  // instead of the first
  EXPECT_EQ(c.cache.find("", count(2, 1)).snapshot, nullptr);
  PrefixSnapshot* third = c.cache.find("", count(2, 3)).snapshot;
  ASSERT_NE(third, nullptr);
  c.cache.touch(*third);
  add(count(1, 4), 20);  // the second has grown old
  EXPECT_EQ(c.cache.find("", count(2, 2)).snapshot, nullptr);
  EXPECT_NE(c.cache.find("", count(2, 3)).snapshot, nullptr);
  c.cache.check_invariants();
}

TEST(PrefixCache, AfterAResetNothingIsFoundAndWhatRunsRunsOn) {
  Cache c;
  c.leave(count(8, 100));
  std::vector<BlockId> table;
  PrefixNode* node = c.compute(count(8), "", table);
  c.cache.reset();
  c.cache.check_invariants();
  EXPECT_EQ(c.cache.find("", count(8, 100)).node, nullptr);
  EXPECT_EQ(c.cache.find("", count(8)).node, nullptr);
  EXPECT_EQ(c.blocks.num_free(), 14);
  EXPECT_FALSE(c.cache.prepare_snapshot(node, "", {}));
  table.push_back(*c.blocks.allocate());
  node = &c.cache.insert(node, "", count(4, 8), table.back());
  EXPECT_EQ(c.cache.find("", count(12)).node, nullptr);
  c.release(node, table);
  EXPECT_EQ(c.blocks.num_free(), 16);
  EXPECT_EQ(c.cache.num_nodes(), 0);
}

TEST(PrefixCache, KeepsLittleForEachToken) {
  BlockPool blocks(1000);
  SlotPool slots(1);
  PrefixCache cache({128, 129280, 0, nullptr}, blocks, slots);
  PrefixNode* node = nullptr;
  for (int i = 0; i < 1000; ++i) {
    BlockId block = *blocks.allocate();
    node = &cache.insert(node, "", count(128), block);
  }
  EXPECT_LE(double(cache.bookkeeping_bytes()) / 128000, 3.6);
}

// Sequences that begin alike come, grow, leave snapshots and go, while blocks are evicted and the
// whole is reset now and then. What is found must have been computed from these tokens, in blocks
// that nobody has written since.
void run_random_events(PrefixCache::Hash hash, int64_t num_events, uint64_t seed) {
  struct Sequence {
    std::string salt;
    std::vector<int32_t> tokens;
    std::vector<BlockId> table;
    PrefixNode* node = nullptr;
    int64_t num_indexed = 0;
  };
  constexpr int64_t kNumBlocks = 40;
  Random random(seed);
  BlockPool blocks(kNumBlocks);
  SlotPool slots(5);
  PrefixCache cache({kBlockSize, 8, 5, hash}, blocks, slots);
  std::vector<Sequence> running;
  std::vector<std::vector<int32_t>> content(kNumBlocks);  // all tokens up to a block's last
  std::vector<std::string> content_salt(kNumBlocks);
  std::vector<std::vector<int32_t>> slot_content(5);
  int64_t num_found = 0, num_snapshots_found = 0;

  const auto allocate = [&]() -> std::optional<BlockId> {
    while (true) {
      if (const std::optional<BlockId> block = blocks.allocate()) {
        content[size_t(*block)].clear();
        return block;
      }
      if (!cache.evict_block()) return std::nullopt;
    }
  };
  const auto expect_content = [&](BlockId block, const std::string& salt,
                                  std::span<const int32_t> tokens) {
    MR_CHECK(content_salt[size_t(block)] == salt);
    MR_CHECK(content[size_t(block)].size() >= tokens.size());
    MR_CHECK(std::equal(tokens.begin(), tokens.end(), content[size_t(block)].begin()));
  };
  const auto grow = [&](Sequence& s, int64_t num_tokens) {
    for (int64_t i = 0; i < num_tokens; ++i) {
      if (s.tokens.size() % kBlockSize == 0) {
        const std::optional<BlockId> block = allocate();
        if (!block) return;
        s.table.push_back(*block);
      }
      s.tokens.push_back(random.between(0, 9) ? int32_t(s.tokens.size() % 3) : 5);
      content[size_t(s.table.back())] = s.tokens;
      content_salt[size_t(s.table.back())] = s.salt;
      if (s.tokens.size() % kBlockSize == 0) {
        s.node = &cache.insert(s.node, s.salt, std::span(s.tokens).last(kBlockSize),
                               s.table.back());
        expect_content(s.table.back(), s.salt, s.tokens);
        ++s.num_indexed;
      }
    }
  };
  const auto arrive = [&] {
    Sequence s;
    s.salt = random.between(0, 3) ? "" : "salt";
    std::vector<int32_t> prompt;
    for (int64_t n = random.between(1, 20); n > 0; --n) {
      prompt.push_back(random.between(0, 9) ? int32_t(prompt.size() % 3) : 5);
    }
    const PrefixCache::Hit hit = cache.find(s.salt, prompt);
    if (hit.snapshot && random.between(0, 1)) {
      ++num_snapshots_found;
      const auto known = std::span(prompt).first(size_t(hit.num_snapshot_tokens));
      MR_CHECK(std::ranges::equal(slot_content[size_t(PrefixCache::slot(*hit.snapshot))], known));
      if (hit.snapshot_node) cache.acquire(*hit.snapshot_node, s.table);
      s.node = hit.snapshot_node;
      s.tokens.assign(known.begin(), known.end());
      cache.touch(*hit.snapshot);
      if (const std::optional<BlockId> from = PrefixCache::last_block(*hit.snapshot)) {
        expect_content(*from, s.salt, known);
        const std::optional<BlockId> to = allocate();
        if (!to) {
          for (const BlockId block : s.table) blocks.release(block);
          if (s.node) cache.release(*s.node);
          return;
        }
        content[size_t(*to)] = {known.begin(), known.end()};
        content_salt[size_t(*to)] = s.salt;
        s.table.push_back(*to);
      }
    } else if (hit.node) {
      ++num_found;
      cache.acquire(*hit.node, s.table);
      s.node = hit.node;
      s.tokens.assign(prompt.begin(), prompt.begin() + hit.num_tokens);
    }
    for (size_t i = 0; i < s.tokens.size() / kBlockSize; ++i) {
      expect_content(s.table[i], s.salt, std::span(prompt).first((i + 1) * kBlockSize));
    }
    running.push_back(std::move(s));
    grow(running.back(), random.between(0, 12));
  };
  const auto leave = [&](size_t i) {
    for (const BlockId block : running[i].table) blocks.release(block);
    if (running[i].node) cache.release(*running[i].node);
    running.erase(running.begin() + int64_t(i));
  };
  // By a copy, or by what a sequence leaves.
  const auto take_snapshot = [&](size_t i, bool leaves) {
    Sequence& s = running[i];
    const auto tail = std::span(s.tokens).last(s.tokens.size() % kBlockSize);
    std::optional<BlockId> last_block;
    if (!tail.empty() && leaves) {
      last_block = s.table.back();
      s.table.pop_back();
    } else if (!tail.empty()) {
      last_block = allocate();
      if (!last_block) return;
      content[size_t(*last_block)] = s.tokens;
      content_salt[size_t(*last_block)] = s.salt;
    }
    if (cache.prepare_snapshot(s.node, s.salt, tail)) {
      const StateSlot slot = *slots.allocate();
      slot_content[size_t(slot)] = s.tokens;
      cache.add_snapshot(s.node, s.salt, tail, last_block, slot, double(random.between(1, 20)));
    } else if (last_block) {
      blocks.release(*last_block);
    }
    if (leaves) leave(i);
  };

  for (int64_t event = 0; event < num_events; ++event) {
    const int64_t kind = random.between(0, 199);
    const size_t any = running.empty() ? 0 : size_t(random.between(0, int64_t(running.size()) - 1));
    if (kind == 0) {
      cache.reset();
    } else if (running.empty() || (kind < 60 && running.size() < 6)) {
      arrive();
    } else if (kind < 110) {
      grow(running[any], random.between(1, 6));
    } else if (kind < 140) {
      take_snapshot(any, random.between(0, 1) == 0);
    } else if (kind < 150) {
      cache.evict_block();
    } else {
      leave(any);
    }
    if (event % 16 == 0) {
      cache.check_invariants();
      blocks.check_invariants();
    }
  }
  while (!running.empty()) leave(0);
  while (cache.evict_block()) {
  }
  cache.reset();
  cache.check_invariants();
  EXPECT_EQ(blocks.num_free(), kNumBlocks);
  EXPECT_EQ(slots.num_free(), 5);
  EXPECT_EQ(cache.num_nodes(), 0);
  EXPECT_GT(num_found, num_events / 50);
  EXPECT_GT(num_snapshots_found, num_events / 200);
}

TEST(PrefixCache, AMillionEventsInAnyOrder) { run_random_events(nullptr, 1'000'000, 1); }
TEST(PrefixCache, EventsUnderOneHashForEverything) {
  run_random_events(&always_the_same, 100'000, 2);
}

}  // namespace
}  // namespace millrace
