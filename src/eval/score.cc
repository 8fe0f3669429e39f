#include "eval/score.h"

#include <cmath>

#include "base/check.h"

namespace millrace {
namespace {

// A pair's difference, and the number of tokens or cases it counts for.
struct Pair {
  double difference;
  double weight;
};

// The ratio of sums, and its error by how far the pairs are from it.
template <class PairOf>
EvalDifference difference(std::span<const CaseScore> first, std::span<const CaseScore> scores,
                          PairOf pair_of) {
  MR_CHECK_OP(first.size(), ==, scores.size());
  double sum = 0, weight = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const Pair pair = pair_of(first[i], scores[i]);
    sum += pair.difference;
    weight += pair.weight;
  }
  EvalDifference result{sum / weight, std::nullopt};
  if (scores.size() < 2) return result;
  double squares = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const Pair pair = pair_of(first[i], scores[i]);
    const double off = pair.difference - result.mean * pair.weight;
    squares += off * off;
  }
  const auto count = double(scores.size());
  result.standard_error = std::sqrt(squares * count / (count - 1)) / weight;
  return result;
}

}  // namespace

CaseScore score_case(const EvalCase& judged,
                     std::span<const std::optional<TokenLogprobs>> logprobs) {
  MR_CHECK_OP(logprobs.size(), ==, judged.token_ids.size());
  CaseScore score;
  score.num_tokens = judged.judged_end - judged.judged_begin;
  score.num_bytes = judged.num_judged_bytes;
  for (int64_t i = judged.judged_begin; i < judged.judged_end; ++i) {
    const std::optional<TokenLogprobs>& at = logprobs[size_t(i)];
    MR_CHECK(at.has_value());
    MR_CHECK_OP(at->token.token_id, ==, judged.token_ids[size_t(i)]);
    score.nll -= double(at->token.logprob);
    score.num_likeliest += at->token.rank == 1;
  }
  return score;
}

void EvalFigures::add(const CaseScore& score) {
  ++num_cases;
  num_exact += score.is_exact();
  num_tokens += score.num_tokens;
  num_bytes += score.num_bytes;
  num_likeliest += score.num_likeliest;
  nll += score.nll;
}

double EvalFigures::perplexity() const { return std::exp(nll_per_token()); }

double EvalFigures::bits_per_byte() const { return nll / std::log(2.0) / double(num_bytes); }

EvalFigures add_up(std::span<const CaseScore> scores) {
  EvalFigures figures;
  for (const CaseScore& score : scores) figures.add(score);
  return figures;
}

EvalDifference nll_difference(std::span<const CaseScore> first, std::span<const CaseScore> scores) {
  return difference(first, scores, [](const CaseScore& a, const CaseScore& b) {
    return Pair{b.nll - a.nll, double(b.num_tokens)};
  });
}

EvalDifference exact_difference(std::span<const CaseScore> first,
                                std::span<const CaseScore> scores) {
  return difference(first, scores, [](const CaseScore& a, const CaseScore& b) {
    return Pair{double(b.is_exact()) - double(a.is_exact()), 1.0};
  });
}

}  // namespace millrace
