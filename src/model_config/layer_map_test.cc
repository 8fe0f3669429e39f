#include "model_config/layer_map.h"

#include <gtest/gtest.h>

#include "model_config/test_configs.h"

namespace millrace {
namespace {

std::vector<LayerInfo> released_layers() {
  return layer_map(test::released_config());
}

TEST(LayerMap, ReleasedLayersReadTheSourcesOfTheSpecification) {
  const std::vector<LayerInfo> layers = released_layers();
  ASSERT_EQ(layers.size(), 40u);
  for (int64_t l = 0; l < 40; ++l) {
    const LayerInfo& layer = layers[size_t(l)];
    const int64_t kv = l < 2 ? -1 : l < 8 ? 2 : l < 14 ? 8 : l < 20 ? 14 : 20;
    const int64_t index = l < 24 ? kv : l / 4 * 4;
    EXPECT_EQ(layer.kv_source, kv) << "layer " << l;
    EXPECT_EQ(layer.index_source, index) << "layer " << l;
    EXPECT_EQ(layer.compress_ratio, l < 2 ? 0 : l < 20 ? 2 : 1) << "layer " << l;
    EXPECT_EQ(layer.owns_compressor, l == kv) << "layer " << l;
    EXPECT_EQ(layer.owns_index, l == index) << "layer " << l;
    EXPECT_EQ(layer.is_candidate_source, l == 20) << "layer " << l;
    EXPECT_EQ(layer.is_candidate_filtered, l > 20 && l == index) << "layer " << l;
    EXPECT_EQ(layer.engram_table, l == 1 ? 0 : l == 14 ? 1 : -1) << "layer " << l;
    EXPECT_EQ(layer.is_draft_target, l >= 37) << "layer " << l;
    EXPECT_EQ(layer.reads_compressed_rows(), l >= 2) << "layer " << l;
    EXPECT_EQ(layer.has_engram(), l == 1 || l == 14) << "layer " << l;
  }
}

TEST(LayerMap, WithoutACandidateSourceNoLayerIsFiltered) {
  ModelConfig config;
  config.num_hidden_layers = 3;
  config.compress_ratios = {1, 1, 0};
  config.kv_source_layer_ids = {0};
  config.index_source_layer_ids = {0, 1};
  const std::vector<LayerInfo> layers = layer_map(config);
  EXPECT_FALSE(layers[0].is_candidate_source);
  EXPECT_FALSE(layers[1].is_candidate_filtered);
  EXPECT_EQ(layers[1].index_source, 1);
  EXPECT_EQ(layers[2].kv_source, -1);
  EXPECT_EQ(layers[2].index_source, -1);
}

}  // namespace
}  // namespace millrace
