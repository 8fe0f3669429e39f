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
  const size_t size = piece.size();
  bpe.encode(piece, {&size, 1}, scratch, ids);
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

// The same for merges that come after their parts: rank by rank, from left to right.
std::vector<int32_t> merge_by_rank(std::string_view piece, std::span<const Merge> merges) {
  std::vector<int32_t> ids;
  for (char c : piece) ids.push_back(static_cast<unsigned char>(c));
  for (const Merge& m : merges) {
    size_t count = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool is_pair = i + 1 < ids.size() && ids[i] == m.left && ids[i + 1] == m.right;
      ids[count++] = is_pair ? m.result : ids[i];
      i += is_pair;
    }
    ids.resize(count);
  }
  return ids;
}

TEST(Bpe, PiecesOfManyWindowsAgreeWithTheDefinition) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Merge> merges = random_merges(random, /*shuffled=*/false);
    const Bpe bpe(identity(), merges);
    Bpe::Scratch scratch;
    // Repetitions of a short text keep merges in step over any distance; random text does not.
    std::string unit;
    const size_t unit_size = seed % 4 == 0 ? 30000 : 1 + random() % 7;
    for (size_t i = 0; i < unit_size; ++i) unit += "abc"[random() % 3];
    std::string piece;
    for (const size_t size = 4000 + random() % 20000; piece.size() < size;) piece += unit;
    piece += "abc"[random() % 3];
    ASSERT_EQ(encode(bpe, piece, scratch), merge_by_rank(piece, merges)) << "seed " << seed;
  }
}

TEST(Bpe, ATokenLongerThanAWindowIsFound) {
  std::vector<Merge> merges = {{'a', 'a', 256}};
  for (int32_t id = 256; id < 270; ++id) merges.push_back({id, id, id + 1});
  const Bpe bpe(identity(), merges);  // up to 2^15 letters
  Bpe::Scratch scratch;
  EXPECT_THAT(encode(bpe, std::string(65536 + 5, 'a'), scratch), ElementsAre(270, 270, 257, 'a'));
  EXPECT_THAT(encode(bpe, std::string(6144, 'a'), scratch), ElementsAre(267, 266));
}

TEST(Bpe, AWordWhoseBytesMergeToSomethingElseIsNotLookedUp) {
  // "abc" is made of "ab" and "c", but its own bytes become "a" and "bc".
  const std::vector<Merge> merges = {{'b', 'c', 256}, {'a', 'b', 257}, {257, 'c', 258}};
  const Bpe bpe(identity(), merges);
  Bpe::Scratch scratch;
  EXPECT_THAT(encode(bpe, "abc", scratch), ElementsAre('a', 256));
}

TEST(Bpe, PiecesInARowAreEachTheirOwn) {
  const std::vector<Merge> merges = {{'a', 'b', 256}, {'b', 'a', 257}};
  const Bpe bpe(identity(), merges);
  Bpe::Scratch scratch;
  const std::string text = "abababab" + std::string(100, 'b') + "ab";
  const std::vector<size_t> sizes = {2, 1, 3, 2, 98, 3};  // and one byte that is not asked for
  std::vector<int32_t> ids, expected;
  bpe.encode(text, sizes, scratch, ids);
  for (size_t begin = 0; size_t size : sizes) {
    for (int32_t id : merge_by_definition(text.substr(begin, size), merges)) expected.push_back(id);
    begin += size;
  }
  EXPECT_EQ(ids, expected);
}

TEST(Bpe, TheCacheGrowsWithoutLosingItsMeaning) {
  std::mt19937 random(5);
  const std::vector<Merge> merges = random_merges(random, /*shuffled=*/false);
  const Bpe bpe(identity(), merges);
  Bpe::Scratch scratch;
  std::vector<std::string> pieces;
  for (int i = 0; i < 20000; ++i) {
    pieces.emplace_back();
    for (size_t n = 3 + random() % 13; n > 0; --n) pieces.back() += "abcdefgh"[random() % 8];
  }
  for (int round = 0; round < 2; ++round) {
    for (const std::string& piece : pieces) {
      ASSERT_EQ(encode(bpe, piece, scratch), merge_by_rank(piece, merges)) << piece;
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
