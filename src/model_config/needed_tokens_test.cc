#include "model_config/needed_tokens.h"

#include <gtest/gtest.h>

#include "model_config/test_configs.h"

namespace millrace {
namespace {

std::vector<int64_t> first_of(const ModelConfig& config, const WantedTokens& wanted) {
  std::vector<int64_t> first(size_t(config.num_hidden_layers) + 1);
  first_tokens(layer_reach(config), wanted, first);
  return first;
}

TEST(NeededTokens, OfAPromptTheReleaseNeedsAllUpToItsLastSourceAndThenAWindowLessPerLayer) {
  const int64_t length = 100'000;
  const std::vector<int64_t> first = first_of(test::released_config(), {0, length - 1});
  ASSERT_EQ(first.size(), 41u);
  for (int64_t l = 0; l <= 20; ++l) EXPECT_EQ(first[size_t(l)], 0) << l;
  for (int64_t l = 21; l < 40; ++l) {
    EXPECT_EQ(length - first[size_t(l)], 128 + 127 * (39 - l)) << l;
  }
  EXPECT_EQ(length - first[21], 2414);
  EXPECT_EQ(first[40], length - 1);
}

TEST(NeededTokens, BehindACachedPrefixTheReleaseNeedsAHaloOfOneSizeWhateverItsLength) {
  for (const int64_t cached : {6'000, 1'000'000}) {
    const std::vector<int64_t> first = first_of(test::released_config(), {cached, cached});
    for (int64_t l = 0; l < 40; ++l) EXPECT_EQ(cached - first[size_t(l)], 127 * (40 - l)) << l;
    const LayerReach reach = layer_reach(test::released_config());
    EXPECT_EQ(first_token(reach, {cached, cached}), first[0]);
    EXPECT_EQ(num_whole_tokens(reach, {cached, cached}, 0, cached), 2603.5);
  }
}

TEST(NeededTokens, NothingLiesBeforeTheFirstToken) {
  const std::vector<int64_t> first = first_of(test::released_config(), {128, 128});
  EXPECT_EQ(first[0], 0);
  EXPECT_EQ(first[38], 0);
  EXPECT_EQ(first[39], 1);
}

TEST(NeededTokens, WhatAPromptTakesIsCountedInTokensThroughAllLayers) {
  const LayerReach reach = layer_reach(test::released_config());
  EXPECT_EQ(num_whole_tokens(reach, {0, 0}, 100, 300), 200);
  // 21 layers of all tokens, 19 layers of 2,414 down to 128.
  const double upper = 19 * (2414 + 128) / 2.0;
  EXPECT_EQ(num_whole_tokens(reach, {0, 9'999}, 0, 10'000), (21 * 10'000 + upper) / 40);
  EXPECT_EQ(num_whole_tokens(reach, {0, 9'999}, 0, 1'000), 21 * 1'000 / 40.0);
}

TEST(NeededTokens, WindowsAreWholeAtTheEndAndWhereEverythingWasComputed) {
  const LayerReach reach = layer_reach(test::released_config());
  EXPECT_TRUE(has_whole_windows(reach, {0, 9'999}, 10'000));
  EXPECT_TRUE(has_whole_windows(reach, {0, 9'999}, 10'001));
  EXPECT_TRUE(has_whole_windows(reach, {0, 9'999}, 9'999));
  EXPECT_FALSE(has_whole_windows(reach, {0, 9'999}, 9'998));
  EXPECT_TRUE(has_whole_windows(reach, {0, 0}, 9'999));
  EXPECT_TRUE(has_whole_windows(reach, {64'000, 64'000}, 64'000));
  EXPECT_FALSE(has_whole_windows(reach, {64'000, 64'001}, 64'000));
}

TEST(NeededTokens, SourcesSeeEveryNewToken) {
  const std::vector<int64_t> first = first_of(test::released_config(), {64'000, 99'999});
  EXPECT_EQ(first[20], 64'000);
  EXPECT_EQ(first[19], 64'000 - 127);
  EXPECT_EQ(first[0], 64'000 - 20 * 127);
}

}  // namespace
}  // namespace millrace
