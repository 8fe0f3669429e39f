#pragma once

// What the tests of the kernels' contract share: data and bitwise comparison.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace millrace {

using Floats = std::vector<float>;

enum class Data {
  kBinades,  // 24-bit mantissas over 12 binades, both signs
  kBf16,     // the same, rounded to bf16: ties are common when such values are rounded again
  kFinite,   // some of them zero, denormal, tiny, huge
  kWild,     // and a few infinite or NaN
};
inline constexpr Data kAllData[] = {Data::kBinades, Data::kBf16, Data::kFinite, Data::kWild};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t limit) { return int64_t(bits() % uint64_t(limit)); }

  float number(Data data) {
    const float sign = below(2) == 0 ? 1.0f : -1.0f;
    const float mantissa = 1.0f + float(below(1 << 23)) * 0x1p-23f;
    const float x = sign * std::ldexp(mantissa, int(below(12)) - 8);
    if (data == Data::kBf16) return round_to_bf16(x);
    if (data == Data::kBinades || below(8) != 0) return x;
    const float finite[] = {0.0f,
                            sign * 0.0f,
                            sign * 0x1p-149f,
                            sign * 0x1.8p-130f,
                            sign * 0x1.4p-126f,
                            sign * 0x1p-70f,
                            sign * 0x1.cp60f,
                            sign * 0x1.fffffep127f};
    if (data == Data::kFinite || below(40) != 0) return finite[below(std::size(finite))];
    return below(2) == 0 ? sign * INFINITY : NAN;
  }
  Floats numbers(int64_t count, Data data) {
    Floats v(static_cast<size_t>(count));
    for (float& x : v) x = number(data);
    return v;
  }
  std::vector<bf16> bf16_numbers(int64_t count) {
    std::vector<bf16> v(static_cast<size_t>(count));
    for (bf16& x : v) x = to_bf16(number(Data::kBf16));
    return v;
  }
  std::vector<uint8_t> bytes(int64_t count, int64_t low = 0, int64_t high = 255) {
    std::vector<uint8_t> v(static_cast<size_t>(count));
    for (uint8_t& x : v) x = uint8_t(low + below(high - low + 1));
    return v;
  }

 private:
  uint64_t state_;
};

// NaN equals NaN whatever its bits; everything else by bits.
inline testing::AssertionResult same_bits(const Floats& got, const Floats& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want[i])) continue;
    char text[128];
    std::snprintf(text, sizeof text, "element %zu of %zu is %a, the reference says %a", i,
                  want.size(), double(got[i]), double(want[i]));
    return testing::AssertionFailure() << text;
  }
  return testing::AssertionSuccess();
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::string all;
  ((all += std::to_string(int64_t(parts)) + ' '), ...);
  return all;
}

inline Matrix<float> view(Floats& v, int64_t rows) {
  return {v.data(), {rows, rows == 0 ? 0 : int64_t(v.size()) / rows}};
}
inline Matrix<const float> view(const Floats& v, int64_t rows) {
  return {v.data(), {rows, rows == 0 ? 0 : int64_t(v.size()) / rows}};
}

inline void append(Floats& all, const Floats& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// Rows of keys as they are stored, one after the other, packed by the reference.
struct StoredKeys {
  KeyFormat format;
  int64_t row_bytes;
  std::vector<std::byte> bytes;

  StoredKeys(const Floats& values, int64_t num_rows, KeyFormat format)
      : format(format), row_bytes(key_row_bytes(format, int64_t(values.size()) / num_rows)) {
    bytes.resize(size_t(num_rows * row_bytes));
    ThreadPool pool(1);
    KernelContext ctx(pool);
    std::vector<std::byte*> rows;
    for (int64_t r = 0; r < num_rows; ++r) rows.push_back(bytes.data() + r * row_bytes);
    ref_kernels().pack_keys(ctx, view(values, num_rows), format, rows);
  }
  PagedRows pages(int64_t rows_per_block) const {
    return {format, bytes.data(), rows_per_block * row_bytes, rows_per_block};
  }
};

// fp4 weights and fp8 activations; scales of the middle unless told otherwise.
struct Fp4Weights {
  std::vector<uint8_t> codes, scales;
  Fp4Matrix matrix;

  Fp4Weights(int64_t n, int64_t k, Random random, int64_t low = 115, int64_t high = 135)
      : codes(random.bytes(n * k / 2)),
        scales(random.bytes(n * k / 32, low, high)),
        matrix{codes.data(), scales.data(), n, k} {}
};

struct Fp8Activations {
  std::vector<uint8_t> codes, scales;
  int64_t k;

  // Any code at all: blocks that need many digits.
  Fp8Activations(int64_t rows, int64_t k, Random random, int64_t low = 115, int64_t high = 135)
      : codes(random.bytes(rows * k)), scales(random.bytes(rows * k / 32, low, high)), k(k) {}

  // Quantised from numbers over 12 binades.
  static Fp8Activations quantised(int64_t rows, int64_t k, Random random) {
    Fp8Activations x(rows, k, random);
    ThreadPool pool(1);
    KernelContext ctx(pool);
    const Floats numbers = random.numbers(rows * k, Data::kBinades);
    ref_kernels().quantize_fp8(ctx, {numbers.data(), {rows, k}},
                               {{x.codes.data(), {rows, k}}, {x.scales.data(), {rows, k / 32}}});
    return x;
  }

  Fp8Rows rows(int64_t count) const {
    return {{codes.data(), {count, k}}, {scales.data(), {count, k / 32}}};
  }
};

// All rows of x by one matrix.
struct OneGroup {
  RowGroups::Group group;
  std::vector<int32_t> rows;

  OneGroup(const Fp4Matrix& w, int64_t num_rows) : group{w, 0, num_rows} {
    for (int32_t r = 0; r < num_rows; ++r) rows.push_back(r);
  }
  operator RowGroups() const { return {{&group, 1}, rows, rows}; }
};

inline constexpr Rounding kRoundings[] = {Rounding::kNone, Rounding::kBf16};

}  // namespace millrace
