#include "base/distribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace millrace {
namespace {

// Fills in the percentiles of `n` values of which at(i) is the i-th smallest.
template <class At>
void fill_percentiles(Distribution& d, At at) {
  const auto read = [&](double p) {
    const double rank = p * double(d.n - 1);
    const int64_t below = int64_t(rank), above = std::min(below + 1, d.n - 1);
    const double low = at(below);
    return low + (rank - double(below)) * (at(above) - low);
  };
  d.p50 = read(0.5), d.p75 = read(0.75), d.p90 = read(0.9), d.p95 = read(0.95);
  d.p99 = read(0.99), d.max = at(d.n - 1);
}

}  // namespace

Distribution distribution(std::vector<double> values) {
  return distribution(values, std::vector<int64_t>(values.size(), 1));
}

Distribution distribution(const std::vector<double>& values, const std::vector<int64_t>& weights) {
  MR_CHECK(values.size() == weights.size());
  Distribution d;
  if (values.empty()) return d;
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<int64_t> ends;  // of each value, in the list of all
  double sum = 0, squares = 0;
  for (const size_t i : order) {
    MR_CHECK_OP(weights[i], >=, 1);
    d.n += weights[i];
    ends.push_back(d.n);
    sum += values[i] * double(weights[i]);
  }
  d.mean = sum / double(d.n);
  for (size_t i = 0; i < values.size(); ++i) {
    squares += (values[i] - d.mean) * (values[i] - d.mean) * double(weights[i]);
  }
  d.std = std::sqrt(squares / double(d.n));
  fill_percentiles(d, [&](int64_t rank) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), rank);
    return values[order[size_t(end - ends.begin())]];
  });
  return d;
}

}  // namespace millrace
