#pragma once

#include <array>
#include <cstdint>

namespace millrace {

// How long a step of so many rows takes, from steps that were measured. The cost is not a straight
// line: a mixture of experts reads more weights as rows reach more of them. So measurements are
// kept by size (powers of two), the median of the last few of each size is a point of a curve, and
// between points the curve is straight. The median makes single outliers harmless.
//
//   * below the smallest point the curve is level: what few rows save is not known yet
//   * above the largest point it rises as from the origin, and at most twice as many rows are tried
//   * sizes measured fewer than kMinKept times count only as long as all are: a median of one is
//   none
//   * a size whose measurements are all older than kMaxAge steps is forgotten, so that a slow start
//     (weights read from disk) does not keep steps small for ever
//
// For costs of the form fixed + per_row * rows no estimate is below the truth.
class StepCost {
 public:
  static constexpr int kNumSizes = 24;  // steps of up to 2^24 - 1 rows
  static constexpr int kNumKept = 5;
  static constexpr int kMinKept = 3;
  static constexpr int64_t kMaxAge = 256;

  // Rows may be fractions: those that do not go through every layer count by the layers they do.
  void add(double num_rows, double elapsed_ms);

  bool is_measured() const { return num_points_ > 0; }
  double estimate_ms(double num_rows) const;  // 0 before the first measurement
  // The most rows that are expected to take at most `budget_ms`; 0: not even one. Requires:
  // is_measured().
  int64_t rows_within(double budget_ms) const;

 private:
  struct Size {
    std::array<double, kNumKept> rows{};
    std::array<double, kNumKept> ms{};
    int num = 0;  // kept, the oldest at `num_added` mod kNumKept when full
    int64_t num_added = 0;
    int64_t last_step = 0;
  };
  struct Point {
    double rows, ms;
  };

  void rebuild();

  std::array<Size, kNumSizes> sizes_{};
  std::array<Point, kNumSizes> points_{};  // ascending in both
  int num_points_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace millrace
