#include "eval/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace {
namespace {

CaseScore scored(int64_t num_tokens, int64_t num_likeliest, double nll) {
  return {.num_tokens = num_tokens,
          .num_bytes = 3 * num_tokens,
          .num_likeliest = num_likeliest,
          .nll = nll};
}

TEST(ScoreCase, TakesTheJudgedTokensAlone) {
  const EvalCase judged{
      .token_ids = {5, 6, 7, 8}, .judged_begin = 1, .judged_end = 3, .num_judged_bytes = 9};
  std::vector<std::optional<TokenLogprobs>> logprobs(4);
  logprobs[1] = TokenLogprobs{{6, 1, -0.5f}, {}};
  logprobs[2] = TokenLogprobs{{7, 2, -2.0f}, {}};
  logprobs[3] = TokenLogprobs{{8, 1, -64.0f}, {}};
  const CaseScore score = score_case(judged, logprobs);
  EXPECT_EQ(score.num_tokens, 2);
  EXPECT_EQ(score.num_bytes, 9);
  EXPECT_EQ(score.num_likeliest, 1);
  EXPECT_EQ(score.nll, 2.5);
  EXPECT_FALSE(score.is_exact());
  logprobs[2]->token.rank = 1;
  EXPECT_TRUE(score_case(judged, logprobs).is_exact());
}

TEST(EvalFigures, AreMeansOverTokensBytesAndCases) {
  const std::vector<CaseScore> scores{scored(1, 1, 1.0), scored(3, 2, 5.0)};
  const EvalFigures figures = add_up(scores);
  EXPECT_DOUBLE_EQ(figures.nll_per_token(), 1.5);
  EXPECT_DOUBLE_EQ(figures.perplexity(), std::exp(1.5));
  EXPECT_DOUBLE_EQ(figures.bits_per_byte(), 6 / std::log(2.0) / 12);
  EXPECT_DOUBLE_EQ(figures.likeliest(), 0.75);
  EXPECT_DOUBLE_EQ(figures.exact(), 0.5);
}

TEST(Difference, IsPerTokenWithTheErrorOfPairs) {
  // Of windows of equal length it is the mean, and the usual error of a mean: the differences per
  // token are 0.1, 0.2 and 0.6, whose mean is 0.3 and whose deviation is sqrt(0.07).
  const std::vector<CaseScore> first{scored(10, 5, 20), scored(10, 5, 50), scored(10, 5, 10)};
  const std::vector<CaseScore> other{scored(10, 5, 21), scored(10, 5, 52), scored(10, 5, 16)};
  const EvalDifference difference = nll_difference(first, other);
  EXPECT_NEAR(difference.mean, 0.3, 1e-12);
  EXPECT_NEAR(*difference.standard_error, std::sqrt(0.07 / 3), 1e-12);
}

TEST(Difference, WeighsWindowsByTheirTokens) {
  const std::vector<CaseScore> first{scored(30, 0, 0), scored(10, 0, 0)};
  const std::vector<CaseScore> other{scored(30, 0, 3), scored(10, 0, 5)};
  EXPECT_DOUBLE_EQ(nll_difference(first, other).mean, 0.2);
}

TEST(Difference, OfEqualScoresIsZeroHoweverHardTheCasesAre) {
  const std::vector<CaseScore> scores{scored(10, 5, 20), scored(1, 0, 500)};
  const EvalDifference difference = nll_difference(scores, scores);
  EXPECT_EQ(difference.mean, 0);
  EXPECT_EQ(difference.standard_error, 0.0);
}

TEST(Difference, OfExactCasesCountsEachOnce) {
  const std::vector<CaseScore> first{scored(4, 4, 0), scored(4, 4, 0), scored(4, 0, 0),
                                     scored(9, 9, 0)};
  const std::vector<CaseScore> other{scored(4, 3, 0), scored(4, 4, 0), scored(4, 0, 0),
                                     scored(9, 9, 0)};
  const EvalDifference difference = exact_difference(first, other);
  EXPECT_DOUBLE_EQ(difference.mean, -0.25);
  EXPECT_DOUBLE_EQ(*difference.standard_error, 0.25);  // 0.5 / sqrt(4)
}

TEST(Difference, OfOneCaseHasNoError) {
  const std::vector<CaseScore> one{scored(4, 4, 1)};
  EXPECT_FALSE(nll_difference(one, one).standard_error.has_value());
}

}  // namespace
}  // namespace millrace
