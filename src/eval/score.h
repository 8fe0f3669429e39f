#pragma once

// From the log-probabilities of judged tokens to figures, and how two modes differ. Pure.

#include <cstdint>
#include <optional>
#include <span>

#include "eval/cases.h"
#include "request/request.h"

namespace millrace {

// The judged tokens of one case.
struct CaseScore {
  int64_t num_tokens = 0, num_bytes = 0;
  int64_t num_likeliest = 0;  // of the tokens: no other was likelier
  double nll = 0;             // minus the sum of their log-probabilities

  // Greedy decoding would have written exactly these tokens.
  bool is_exact() const { return num_likeliest == num_tokens; }
};

// `logprobs` are those of all tokens of the case, as Completion::prompt_logprobs has them.
CaseScore score_case(const EvalCase& judged,
                     std::span<const std::optional<TokenLogprobs>> logprobs);

// Cases taken together.
struct EvalFigures {
  int64_t num_cases = 0, num_exact = 0;
  int64_t num_tokens = 0, num_bytes = 0, num_likeliest = 0;
  double nll = 0;

  void add(const CaseScore& score);
  // Require: at least one case.
  double nll_per_token() const { return nll / double(num_tokens); }
  double perplexity() const;
  double bits_per_byte() const;
  double likeliest() const { return double(num_likeliest) / double(num_tokens); }
  double exact() const { return double(num_exact) / double(num_cases); }
};

EvalFigures add_up(std::span<const CaseScore> scores);

// How much more `scores` has than `first` for the same cases: per token, or per case. The error is
// that of pairs, which share what is hard about a case; none: fewer than two cases.
struct EvalDifference {
  double mean = 0;
  std::optional<double> standard_error;
};

EvalDifference nll_difference(std::span<const CaseScore> first, std::span<const CaseScore> scores);
EvalDifference exact_difference(std::span<const CaseScore> first,
                                std::span<const CaseScore> scores);

}  // namespace millrace
