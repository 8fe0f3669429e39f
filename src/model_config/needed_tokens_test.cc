#include "model_config/needed_tokens.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace millrace {
namespace {

ModelConfig released() {
  std::ifstream in(MILLRACE_SOURCE_DIR "/tests/golden/config-v4.1-flash.json");
  std::stringstream text;
  text << in.rdbuf();
  return parse_model_config(text.str()).value();
}

std::vector<int64_t> first_of(const ModelConfig& config, const WantedTokens& wanted) {
  const std::vector<LayerInfo> layers = layer_map(config);
  std::vector<int64_t> first(layers.size() + 1);
  first_tokens(layers, config.sliding_window, wanted, first);
  return first;
}

TEST(NeededTokens, OfAPromptTheReleaseNeedsAllUpToItsLastSourceAndThenAWindowLessPerLayer) {
  const int64_t length = 100'000;
  const std::vector<int64_t> first = first_of(released(), {0, length - 1});
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
    const std::vector<int64_t> first = first_of(released(), {cached, cached});
    int64_t sum = 0;
    for (int64_t l = 0; l < 40; ++l) {
      EXPECT_EQ(cached - first[size_t(l)], 127 * (40 - l)) << l;
      sum += cached - first[size_t(l)];
    }
    EXPECT_EQ(sum / 40, 2603);
  }
}

TEST(NeededTokens, NothingLiesBeforeTheFirstToken) {
  const std::vector<int64_t> first = first_of(released(), {128, 128});
  EXPECT_EQ(first[0], 0);
  EXPECT_EQ(first[38], 0);
  EXPECT_EQ(first[39], 1);
}

TEST(NeededTokens, SourcesSeeEveryNewToken) {
  const std::vector<int64_t> first = first_of(released(), {64'000, 99'999});
  EXPECT_EQ(first[20], 64'000);
  EXPECT_EQ(first[19], 64'000 - 127);
  EXPECT_EQ(first[0], 64'000 - 20 * 127);
}

}  // namespace
}  // namespace millrace
