#include "kvcache/kv_layout.h"

#include <gtest/gtest.h>

#include "kvcache/block_pool.h"
#include "model_config/cost.h"
#include "model_config/test_configs.h"

namespace millrace {
namespace {

TEST(KvLayout, TheReleasedModelTakesThePublishedBytesPerToken) {
  const KvLayout layout = kv_layout(test::released_config(), KvFormat::kQuantized);
  EXPECT_EQ(layout.block_size, 128);
  EXPECT_EQ(layout.bytes_per_token(StateKind::kCompressedRow), 720);
  EXPECT_EQ(layout.bytes_per_token(StateKind::kIndexKey), 170);
  EXPECT_EQ(layout.bytes_per_token(), 890);  // alignment included: it adds nothing here
  EXPECT_EQ(layout.block_bytes, 113920);
}

TEST(KvLayout, TheReleasedModelTakesTheseBytesPerSequence) {
  const KvLayout layout = kv_layout(test::released_config(), KvFormat::kQuantized);
  // The scales of 133 entries end 48 bytes before a boundary.
  EXPECT_EQ(layout.bytes(StateKind::kWindowRing), 40 * ((128 + 5) * 528 + 48));
  EXPECT_EQ(layout.bytes(StateKind::kOpenGroup), 12288);
  EXPECT_EQ(layout.bytes(StateKind::kDraftRing), 3 * 128 * 528);
  EXPECT_EQ(layout.slot_bytes, layout.bytes(StateKind::kWindowRing) +
                                   layout.bytes(StateKind::kOpenGroup) +
                                   layout.bytes(StateKind::kDraftRing));
}

TEST(KvLayout, BookkeepingIsFarBelowEightBytesPerToken) {
  const KvLayout layout = kv_layout(test::released_config(), KvFormat::kQuantized);
  const double per_block = BlockPool::kBytesPerBlock + 1.5 * sizeof(BlockId);  // a table's growth
  const double per_token = 1.5 * sizeof(int32_t);  // the sequence's list of tokens, likewise
  EXPECT_LE(per_token + per_block / double(layout.block_size), 8);
}

TEST(KvLayout, RowsAreThoseOfTheCostModel) {
  for (const ModelConfig& config : {test::released_config(), test::read_config("models/nano/config.json")}) {
    const KvLayout layout = kv_layout(config, KvFormat::kQuantized);
    const KvSize size = kv_size(config);
    for (const int64_t source : config.kv_source_layer_ids) {
      const StatePlane& row = layout.plane(StateKind::kCompressedRow, source);
      EXPECT_EQ(row.row_bytes(), size.compressed_row_bytes);
      EXPECT_EQ(row.tokens_per_row, config.compress_ratios[size_t(source)]);
      EXPECT_EQ(row.num_rows * row.tokens_per_row, layout.block_size);
      EXPECT_EQ(layout.plane(StateKind::kIndexKey, source).row_bytes(), size.index_key_bytes);
    }
    EXPECT_EQ(layout.plane(StateKind::kWindowRing, 0).row_bytes(), size.window_entry_bytes);
    EXPECT_GE(layout.bytes(StateKind::kOpenGroup), size.open_group_bytes);
    EXPECT_GE(layout.bytes_per_token(), size.bytes_per_token());
  }
}

TEST(KvLayout, Fp32ModeKeepsTheSameRowsAsFloats) {
  const ModelConfig config = test::released_config();
  const KvLayout fp32 = kv_layout(config, KvFormat::kFp32);
  const KvLayout quantised = kv_layout(config, KvFormat::kQuantized);
  ASSERT_EQ(fp32.block_planes.size(), quantised.block_planes.size());
  ASSERT_EQ(fp32.slot_planes.size(), quantised.slot_planes.size());
  for (const auto planes : {&KvLayout::block_planes, &KvLayout::slot_planes}) {
    for (size_t i = 0; i < (fp32.*planes).size(); ++i) {
      const StatePlane& plane = (fp32.*planes)[i];
      EXPECT_EQ(plane.kind, (quantised.*planes)[i].kind);
      EXPECT_EQ(plane.layer, (quantised.*planes)[i].layer);
      EXPECT_EQ(plane.num_rows, (quantised.*planes)[i].num_rows);
      EXPECT_EQ(plane.scale_bytes, 0);
      const int64_t width =
          plane.kind == StateKind::kIndexKey ? config.index_head_dim : config.head_dim;
      EXPECT_EQ(plane.value_bytes, plane.kind == StateKind::kOpenGroup ? 8 * width : 4 * width);
    }
  }
  EXPECT_EQ(fp32.bytes_per_token(), 2.5 * 4 * (512 + 128));
}

TEST(KvLayout, PlanesLieOneAfterTheOtherOnTheirBoundaries) {
  for (const KvFormat format : {KvFormat::kQuantized, KvFormat::kFp32}) {
    for (const ModelConfig& config : {test::released_config(), test::read_config("models/nano/config.json")}) {
      const KvLayout layout = kv_layout(config, format, 6);
      const auto check = [](const std::vector<StatePlane>& planes, int64_t total) {
        int64_t end = 0;
        for (const StatePlane& plane : planes) {
          EXPECT_EQ(plane.values_offset % kPlaneAlignment, 0);
          EXPECT_GE(plane.values_offset, end);
          EXPECT_LT(plane.values_offset, end + kPlaneAlignment);
          end = plane.values_offset + plane.num_rows * plane.row_bytes();
        }
        EXPECT_LE(end, total);
        EXPECT_LT(total, end + kPlaneAlignment);
      };
      check(layout.block_planes, layout.block_bytes);
      check(layout.slot_planes, layout.slot_bytes);
    }
  }
}

TEST(KvLayout, ABlockHoldsWholeRowsOfEveryRatio) {
  EXPECT_EQ(kv_layout(test::released_config(), KvFormat::kQuantized, 1).block_size, 2);
  EXPECT_EQ(kv_layout(test::released_config(), KvFormat::kQuantized, 7).block_size, 8);
  ModelConfig config = test::released_config();
  config.kv_source_layer_ids = {20};  // ratio 1 alone
  EXPECT_EQ(kv_layout(config, KvFormat::kQuantized, 7).block_size, 7);
}

// The rows of a draft of dspark_block_size tokens may be written and taken back.
TEST(KvLayout, RingsHaveRoomForADraftBesideTheWindow) {
  const ModelConfig config = test::released_config();
  const KvLayout layout = kv_layout(config, KvFormat::kQuantized);
  EXPECT_EQ(layout.plane(StateKind::kWindowRing, 39).num_rows, 128 + 5);
  EXPECT_EQ(layout.plane(StateKind::kDraftRing, 2).num_rows, 128);
}

}  // namespace
}  // namespace millrace
