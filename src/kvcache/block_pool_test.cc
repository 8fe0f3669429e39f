#include "kvcache/block_pool.h"

#include <gtest/gtest.h>

#include <random>

#include "kvcache/slot_pool.h"

namespace millrace {
namespace {

TEST(BlockPool, HandsOutAscendingIdsAndThenWhatCameBackLast) {
  BlockPool pool(4);
  for (BlockId block = 0; block < 3; ++block) EXPECT_EQ(pool.allocate(), block);
  EXPECT_EQ(pool.num_touched(), 3);
  pool.release(0);
  pool.release(2);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.num_touched(), 3);  // the fourth was never needed
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.allocate(), std::nullopt);
}

TEST(BlockPool, ABlockIsFreeWhenItsLastReferenceIsGone) {
  BlockPool pool(1);
  const BlockId block = *pool.allocate();
  pool.retain(block);
  pool.release(block);
  EXPECT_EQ(pool.num_references(block), 1);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(block);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPoolDeathTest, ReleasingOrRetainingAFreeBlockIsAMistakeOfTheProgram) {
  BlockPool pool(2);
  const BlockId block = *pool.allocate();
  pool.release(block);
  EXPECT_DEATH(pool.release(block), "check failed");
  EXPECT_DEATH(pool.retain(block), "check failed");
}

TEST(BlockPool, ConservesBlocksWhateverTheOrder) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    BlockPool pool(1 + random() % 20);
    std::vector<BlockId> references;  // one entry each
    for (int i = 0; i < 500; ++i) {
      const size_t at = references.empty() ? 0 : random() % references.size();
      switch (random() % 3) {
        case 0:
          if (const auto block = pool.allocate()) references.push_back(*block);
          break;
        case 1:
          if (references.empty()) break;
          pool.retain(references[at]);
          references.push_back(references[at]);
          break;
        default:
          if (references.empty()) break;
          pool.release(references[at]);
          references.erase(references.begin() + int64_t(at));
      }
      pool.check_invariants();
      std::vector<int32_t> counts(size_t(pool.num_blocks()));
      for (const BlockId block : references) ++counts[size_t(block)];
      int64_t num_free = 0;
      for (BlockId block = 0; block < pool.num_blocks(); ++block) {
        ASSERT_EQ(pool.num_references(block), counts[size_t(block)]) << "seed " << seed;
        num_free += counts[size_t(block)] == 0;
      }
      ASSERT_EQ(pool.num_free(), num_free) << "seed " << seed;
    }
  }
}

TEST(SlotPool, ASlotHasOneOwner) {
  SlotPool pool(2);
  const StateSlot first = *pool.allocate();
  const StateSlot second = *pool.allocate();
  EXPECT_NE(first, second);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.release(first);
  EXPECT_FALSE(pool.is_in_use(first));
  EXPECT_TRUE(pool.is_in_use(second));
  EXPECT_EQ(pool.allocate(), first);
}

}  // namespace
}  // namespace millrace
