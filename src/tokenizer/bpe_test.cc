#include "tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace millrace {
namespace {

using testing::ElementsAre;

std::array<int32_t, 256> identity() {
  std::array<int32_t, 256> ids;
  for (int b = 0; b < 256; ++b) ids[b] = b;
  return ids;
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece, Bpe::Scratch& scratch) {
  std::vector<int32_t> ids;
  bpe.encode(piece, scratch, ids);
  return ids;
}

// The definition: merge the pair of lowest rank, the leftmost on ties, again and again.
std::vector<int32_t> merge_by_definition(std::string_view piece, std::span<const Merge> merges) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t r = 0; r < merges.size(); ++r) ranks[{merges[r].left, merges[r].right}] = r;
  std::vector<int32_t> ids;
  for (char c : piece) ids.push_back(static_cast<unsigned char>(c));
  for (;;) {
    size_t best = merges.size(), best_at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = ranks.find({ids[i], ids[i + 1]});
      if (it != ranks.end() && it->second < best) best = it->second, best_at = i;
    }
    if (best == merges.size()) return ids;
    ids[best_at] = merges[best].result;
    ids.erase(ids.begin() + best_at + 1);
  }
}

// Merges of random earlier tokens over a small alphabet; `shuffled` gives them random ranks, so
// that a merge can have a lower rank than the ones that make its parts.
std::vector<Merge> random_merges(std::mt19937& random, bool shuffled) {
  std::vector<Merge> merges;
  std::map<std::pair<int32_t, int32_t>, bool> taken;
  std::vector<int32_t> tokens = {'a', 'b', 'c'};
  for (int32_t id = 256; id < 300; ++id) {
    const int32_t left = tokens[random() % tokens.size()];
    const int32_t right = tokens[random() % tokens.size()];
    if (taken[{left, right}]) continue;
    taken[{left, right}] = true;
    merges.push_back({left, right, id});
    tokens.push_back(id);
  }
  if (shuffled) std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TEST(Bpe, MergesTheLowestRankFirstAndTheLeftmostOnTies) {
  const std::vector<Merge> merges = {{'b', 'c', 256}, {'a', 'b', 257}, {'x', 'x', 258}};
  const Bpe bpe(identity(), merges);
  Bpe::Scratch scratch;
  EXPECT_THAT(encode(bpe, "abc", scratch), ElementsAre('a', 256));
  EXPECT_THAT(encode(bpe, "abd", scratch), ElementsAre(257, 'd'));
  EXPECT_THAT(encode(bpe, "xxxxx", scratch), ElementsAre(258, 258, 'x'));
}

TEST(Bpe, EveryLengthAgreesWithTheDefinition) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Merge> merges = random_merges(random, /*shuffled=*/seed % 3 == 0);
    const Bpe bpe(identity(), merges);
    Bpe::Scratch scratch;
    for (size_t size : {1, 2, 3, 7, 14, 15, 16, 31, 32, 33, 34, 64, 200}) {
      std::string piece;
      const uint32_t letters = 1 + random() % 3;
      for (size_t i = 0; i < size; ++i) piece += "abc"[random() % letters];
      const std::vector<int32_t> expected = merge_by_definition(piece, merges);
      ASSERT_EQ(encode(bpe, piece, scratch), expected) << "seed " << seed << ": " << piece;
      ASSERT_EQ(encode(bpe, piece, scratch), expected) << "again, seed " << seed << ": " << piece;
    }
  }
}

TEST(Bpe, ScratchGivenToAnotherVocabularyForgetsTheFirst) {
  const Bpe first(identity(), std::vector<Merge>{{'a', 'b', 256}});
  const Bpe second(identity(), std::vector<Merge>{{'x', 'y', 256}, {'a', 'b', 257}});
  const std::string longer(40, 'a');
  Bpe::Scratch scratch;
  EXPECT_THAT(encode(first, "ab", scratch), ElementsAre(256));
  EXPECT_EQ(encode(first, longer + 'b', scratch).back(), 256);
  EXPECT_THAT(encode(second, "ab", scratch), ElementsAre(257));
  EXPECT_EQ(encode(second, longer + 'b', scratch).back(), 257);
}

TEST(Bpe, WithoutMergesEveryByteIsAToken) {
  const Bpe bpe(identity(), {});
  Bpe::Scratch scratch;
  EXPECT_THAT(encode(bpe, "ab", scratch), ElementsAre('a', 'b'));
  EXPECT_EQ(encode(bpe, std::string(100, '\xff'), scratch), std::vector<int32_t>(100, 255));
}

}  // namespace
}  // namespace millrace
