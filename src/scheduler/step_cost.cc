#include "scheduler/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace millrace {
namespace {

// The middle one; of an even number the larger, which is the careful choice for a cost.
template <class T>
T median(std::array<T, StepCost::kNumKept> values, int num) {
  for (int i = 1; i < num; ++i) {
    for (int j = i; j > 0 && values[size_t(j)] < values[size_t(j - 1)]; --j) {
      std::swap(values[size_t(j)], values[size_t(j - 1)]);
    }
  }
  return values[size_t(num / 2)];
}

}  // namespace

void StepCost::add(double num_rows, double elapsed_ms) {
  MR_CHECK(num_rows >= 0);
  if (num_rows < 1 || !(elapsed_ms >= 0) || std::isinf(elapsed_ms)) return;  // no measurement
  ++num_steps_;
  const int idx = std::min(int(std::bit_width(uint64_t(num_rows))) - 1, kNumSizes - 1);
  Size& size = sizes_[size_t(idx)];
  const size_t at = size_t(size.num_added++ % kNumKept);
  size.rows[at] = num_rows;
  size.ms[at] = elapsed_ms;
  size.num = std::min(size.num + 1, kNumKept);
  size.last_step = num_steps_;
  rebuild();
}

void StepCost::rebuild() {
  int most_kept = 0;
  for (Size& size : sizes_) {
    if (num_steps_ - size.last_step > kMaxAge) size = {};
    most_kept = std::max(most_kept, size.num);
  }
  num_points_ = 0;
  for (const Size& size : sizes_) {
    if (size.num < std::max(1, std::min(most_kept, kMinKept))) continue;
    Point point = {median(size.rows, size.num), median(size.ms, size.num)};
    // More rows never take less time; where measurements say so, one of them is wrong.
    if (num_points_ > 0) point.ms = std::max(point.ms, points_[size_t(num_points_ - 1)].ms);
    points_[size_t(num_points_++)] = point;
  }
}

double StepCost::estimate_ms(double rows) const {
  if (num_points_ == 0) return 0;
  if (rows <= points_[0].rows) return points_[0].ms;
  for (int i = 1; i < num_points_; ++i) {
    const Point& a = points_[size_t(i - 1)];
    const Point& b = points_[size_t(i)];
    if (rows <= b.rows) return a.ms + (b.ms - a.ms) * ((rows - a.rows) / (b.rows - a.rows));
  }
  const Point& last = points_[size_t(num_points_ - 1)];
  return last.ms * (rows / last.rows);
}

int64_t StepCost::rows_within(double budget_ms) const {
  MR_CHECK(is_measured());
  int64_t low = 0;
  int64_t high = int64_t(2 * points_[size_t(num_points_ - 1)].rows);
  while (low < high) {  // estimate_ms(low) is within the budget, or low is 0
    const int64_t middle = low + (high - low + 1) / 2;
    if (estimate_ms(double(middle)) <= budget_ms) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace millrace
