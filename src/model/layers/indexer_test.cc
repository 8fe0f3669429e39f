#include "model/layers/indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace millrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// By the definition: sort all, take the first k.
std::vector<int32_t> top_k(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order;
  for (size_t j = 0; j < scores.size(); ++j) {
    if (scores[j] > -kInfinity) order.push_back(int32_t(j));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[size_t(a)] > scores[size_t(b)];
  });
  if (int64_t(order.size()) > k) order.resize(size_t(k));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> selected(const std::vector<float>& scores, int64_t k) {
  std::vector<uint64_t> keys(scores.size());
  std::vector<int32_t> rows(size_t(k) + 1, -7);
  const int32_t count = select_top_k(scores, k, keys, rows.data());
  EXPECT_EQ(rows[size_t(k)], -7);
  rows.resize(size_t(count));
  return rows;
}

TEST(SelectTopK, IsTheDefinitionForFewAndManyScores) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> any(-1, 1);
  for (int64_t k : {1, 2, 7, 64}) {
    for (size_t count : {0, 1, 15, 16, 17, 63, 64, 112, 1023, 1024, 1025, 20'000}) {
      std::vector<float> scores(count);
      for (float& score : scores) score = any(random);
      EXPECT_EQ(selected(scores, k), top_k(scores, k)) << k << " of " << count;
    }
  }
}

TEST(SelectTopK, TiesGoToTheLowerIndexAlsoAtTheBound) {
  std::mt19937 random(2);
  for (int64_t k : {1, 5, 40}) {
    for (int num_values : {1, 2, 3, 50}) {
      std::vector<float> scores(3000);
      for (float& score : scores) score = float(int(random() % unsigned(num_values))) - 1;
      EXPECT_EQ(selected(scores, k), top_k(scores, k)) << k << " of " << num_values << " values";
    }
  }
}

TEST(SelectTopK, NeverTakesNegativeInfinityOrNan) {
  std::mt19937 random(3);
  for (int num_good : {0, 1, 39, 40, 41, 300, 2000}) {
    std::vector<float> scores(5000, -kInfinity);
    for (size_t j = 0; j < scores.size(); j += 3) scores[j] = std::nanf("");
    for (int i = 0; i < num_good; ++i) scores[random() % scores.size()] = float(random() % 1000);
    scores[17] = kInfinity;
    EXPECT_EQ(selected(scores, 40), top_k(scores, 40)) << num_good << " numbers";
  }
}

}  // namespace
}  // namespace millrace
