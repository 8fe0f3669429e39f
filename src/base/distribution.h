#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

// Percentiles are linear between order statistics, at rank (n - 1) p.
struct Distribution {
  int64_t n = 0;             // 0: nothing below means anything
  double mean = 0, std = 0;  // of the whole population
  double p50 = 0, p75 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};

Distribution distribution(std::vector<double> values);

// Each value counts as often as its weight says: that of n equal values of the weight 1. The
// percentiles are those of the list in which each value stands so often. Requires: weights >= 1, as
// many as values.
Distribution distribution(const std::vector<double>& values, const std::vector<int64_t>& weights);

}  // namespace millrace
