#include "kvstore/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "sys/memory.h"

namespace millrace {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.num_hidden_layers = 3;
  config.head_dim = 64;
  config.index_head_dim = 32;
  config.sliding_window = 16;
  config.compress_ratios = {0, 2, 1};
  config.kv_source_layer_ids = {1, 2};
  return config;
}

TEST(KvStore, RowsOfBlocksAndSlotsNeverOverlap) {
  const KvLayout layout = kv_layout(small_config(), KvFormat::kQuantized, 8);
  KvStore store = std::move(KvStore::create(layout, 3, 2).value());
  // Every row gets a value of its own; afterwards each must still have it.
  const std::vector<BlockId> table{2, 0, 1};
  std::vector<std::pair<std::byte*, int64_t>> rows;
  for (const StatePlane& plane : layout.block_planes) {
    for (int64_t row = 0; row < 3 * plane.num_rows; ++row) {
      rows.emplace_back(store.row(plane, table, row), plane.row_bytes());
    }
  }
  for (StateSlot slot : {0, 1}) {
    for (const StatePlane& plane : layout.slot_planes) {
      for (int64_t row = 0; row < plane.num_rows; ++row) {
        rows.emplace_back(store.slot(slot) + plane.values_offset + row * plane.row_bytes(),
                          plane.row_bytes());
      }
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memset(rows[i].first, int(i % 251), size_t(rows[i].second));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t b = 0; b < rows[i].second; ++b) {
      ASSERT_EQ(rows[i].first[b], std::byte(i % 251)) << "row " << i;
    }
  }
}

TEST(KvStore, KernelsFindTheRowsThatTheStoreGives) {
  const KvLayout layout = kv_layout(small_config(), KvFormat::kQuantized, 8);
  KvStore store = std::move(KvStore::create(layout, 4, 1).value());
  const std::vector<BlockId> table{3, 1};
  for (const StatePlane& plane : layout.block_planes) {
    const PagedRows rows = store.paged_rows(plane);
    EXPECT_EQ(key_row_bytes(rows.format, plane.kind == StateKind::kIndexKey ? 32 : 64),
              plane.row_bytes());
    for (int64_t row = 0; row < 2 * plane.num_rows; ++row) {
      EXPECT_EQ(rows.row(table.data(), row, plane.row_bytes()), store.row(plane, table, row));
    }
  }
}

TEST(KvStore, MemoryIsUsedWhenItIsWritten) {
  KvLayout layout = kv_layout(small_config(), KvFormat::kFp32, 8);
  KvStore store = std::move(KvStore::create(layout, 1 << 20, 4096).value());
  EXPECT_GT(store.reserved_bytes(), size_t{1} << 30);
  EXPECT_EQ(store.resident_bytes(), 0u);
  std::memset(store.slot(7), 1, 10);
  EXPECT_GT(store.resident_bytes(), 0u);
  EXPECT_LE(store.resident_bytes(),
            size_t(std::max<int64_t>(read_page_modes().huge_page_bytes, 1 << 16)));
}

TEST(KvStore, CopiesWholeBlocksAndSlots) {
  const KvLayout layout = kv_layout(small_config(), KvFormat::kQuantized, 8);
  KvStore store = std::move(KvStore::create(layout, 3, 3).value());
  std::memset(store.slot(0), 5, size_t(layout.slot_bytes));
  store.copy_slot({0, 2});
  EXPECT_EQ(std::memcmp(store.slot(0), store.slot(2), size_t(layout.slot_bytes)), 0);
  const StatePlane& plane = layout.block_planes.back();
  const std::vector<BlockId> from{1}, to{2};
  std::memset(store.row(plane, from, 0), 6, size_t(plane.num_rows * plane.row_bytes()));
  store.copy_block({1, 2});
  EXPECT_EQ(std::memcmp(store.row(plane, from, 0), store.row(plane, to, 0),
                        size_t(plane.num_rows * plane.row_bytes())),
            0);
}

TEST(KvStore, RefusesMoreThanTheAddressSpaceHolds) {
  const KvLayout layout = kv_layout(small_config(), KvFormat::kQuantized, 8);
  EXPECT_FALSE(KvStore::create(layout, int64_t{1} << 40, 1).has_value());
  EXPECT_FALSE(KvStore::create(layout, 1, -1).has_value());
}

}  // namespace
}  // namespace millrace
