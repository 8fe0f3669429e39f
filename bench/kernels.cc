// Matrix products at the model's shapes, as JSON lines: time, bytes and operations per second, and
// the fraction of the limit that binds, which is the best of what is measured just before and after
// each case: by the median time, and by the tenth percentile, which a busy machine disturbs less.
//
// usage: bench-kernels [--isa NAME] [--only NAME] [--rows R]
//
// Weights come from memory: each call takes the next of a set of matrices that no cache holds.
// Every case is compared with the reference once before it is timed.

#include "kernels/kernels.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

#include "bench/limits.h"

namespace millrace {
namespace {

constexpr size_t kPoolBytes = size_t{256} << 20;  // of weight codes
constexpr double kSecondsPerCase = 0.4;
constexpr size_t kMinCalls = 7;
constexpr int64_t kMaxRows = 768, kMaxK = 5120;

struct Shape {
  int64_t n, k;
  int64_t weights() const { return n * k; }
};
constexpr Shape kShapes[] = {{5120, 5120}, {2304, 5120}, {5120, 2304}};
constexpr int64_t kRows[] = {1, 2, 4, 8, 16, 32, kMaxRows};

class Random {
 public:
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Nearly normal, deviation 1.
  float normal() {
    const uint64_t b = bits();
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += int(b >> (16 * i) & 0xffff);
    return float(sum - 2 * 65535) / 37837.0f;
  }

 private:
  uint64_t state_ = 1;
};

// Weights and activations that all cases use.
struct Inputs {
  std::vector<uint8_t> codes;  // random bytes: fp8 or fp4 weights
  std::vector<bf16> numbers;   // bf16 weights
  std::vector<uint8_t> scales;
  std::vector<float> x;  // [kMaxRows, kMaxK] bf16 values, of which a case takes the first
  std::vector<uint8_t> x_codes, x_scales;  // made from x, for the K in use
  std::vector<int32_t> row_ids;            // 0, 1, 2, ...

  Inputs()
      : codes(kPoolBytes),
        numbers(kPoolBytes / 2),
        scales(kPoolBytes / 16),
        x(kMaxRows * kMaxK),
        x_codes(x.size()),
        x_scales(x.size() / kQuantBlock),
        row_ids(kMaxRows) {
    std::iota(row_ids.begin(), row_ids.end(), 0);
    Random random;
    for (size_t i = 0; i < kPoolBytes; i += 8) {
      const uint64_t b = random.bits();
      std::memcpy(&codes[i], &b, 8);
      // Any sign and mantissa, 16 exponents below 1.
      const uint64_t small = (b & 0x87ff87ff87ff87ffull) + 0x3800380038003800ull;
      std::memcpy(&numbers[i / 2], &small, 8);
    }
    for (uint8_t& s : scales) s = uint8_t(118 + random.bits() % 8);
    for (float& v : x) v = round_to_bf16(random.normal());
  }
};

struct Case {
  const Inputs& in;
  Shape shape;
  int64_t rows;

  Matrix<const float> x() const { return {in.x.data(), {rows, shape.k}}; }
  Fp8Rows quantised_x() const {
    return {{in.x_codes.data(), {rows, shape.k}},
            {in.x_scales.data(), {rows, shape.k / kQuantBlock}}};
  }
};

// One product of the table.
struct Product {
  const char* name;
  int64_t weights_per_scale;
  int weight_bits;
  // Whether it is made of byte products (two digits) instead of fp32 multiply-adds.
  bool byte_products;
  // Multiplies by the matrix that begins `first` weights into the pool.
  void (*call)(const KernelTable&, KernelContext&, const Case&, int64_t first, Matrix<float> out);

  double bytes(Shape shape) const {
    return double(shape.weights()) * (weight_bits / 8.0 + 1.0 / double(weights_per_scale));
  }
};

constexpr Product kProducts[] = {
    {"matmul_fp8", 1024, 8, false,
     [](const KernelTable& table, KernelContext& ctx, const Case& c, int64_t first,
        Matrix<float> out) {
       table.matmul_fp8(ctx, c.x(),
                        {&c.in.codes[size_t(first)], c.in.scales.data(), out.shape[1], c.shape.k},
                        out, Rounding::kBf16);
     }},
    {"matmul_fp4", 32, 4, true,
     [](const KernelTable& table, KernelContext& ctx, const Case& c, int64_t first,
        Matrix<float> out) {
       const Fp4Matrix w{&c.in.codes[size_t(first) / 2], &c.in.scales[size_t(first) / 32],
                         out.shape[1], c.shape.k};
       const RowGroups::Group group{w, 0, c.rows};
       table.matmul_fp4(ctx, c.quantised_x(), {{&group, 1}, c.in.row_ids, c.in.row_ids}, out,
                        Rounding::kBf16);
     }},
    {"matmul_bf16", INT64_MAX, 16, false,
     [](const KernelTable& table, KernelContext& ctx, const Case& c, int64_t first,
        Matrix<float> out) {
       table.matmul_bf16(ctx, c.x(), {&c.in.numbers[size_t(first)], out.shape[1], c.shape.k}, out,
                         Rounding::kBf16);
     }},
};

// A few rows and outputs against the reference.
bool is_correct(const Product& product, const Case& c, KernelContext& ctx,
                Matrix<const float> out) {
  const int64_t rows = std::min<int64_t>(c.rows, 3), n = 64;
  std::vector<float> want(size_t(rows * n));
  const Matrix<float> want_view(want.data(), {rows, n});
  product.call(ref_kernels(), ctx, {c.in, c.shape, rows}, 0, want_view);
  for (int64_t t = 0; t < rows; ++t) {
    if (std::memcmp(out.row(t), want_view.row(t), size_t(n) * sizeof(float)) != 0) return false;
  }
  return true;
}

struct Limits {
  double read_gbps = 0, fma_gflops = 0, byte_gops = 0;

  void measure(ThreadPool& pool, const Inputs& in) {
    read_gbps = std::max(read_gbps, measure_read(pool, std::as_bytes(std::span(in.codes))));
    fma_gflops = std::max(fma_gflops, measure_fma(pool));
    byte_gops = std::max(byte_gops, measure_byte_products(pool));
  }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool run_case(const KernelTable& table, const Product& product, const Case& c, ThreadPool& pool) {
  KernelContext ctx(pool);
  std::vector<float> out(size_t(c.rows * c.shape.n));
  const Matrix<float> out_view(out.data(), {c.rows, c.shape.n});
  const auto copies = int64_t(kPoolBytes) * 8 / product.weight_bits / c.shape.weights();

  product.call(table, ctx, c, 0, out_view);
  if (!is_correct(product, c, ctx, out_view)) {
    std::fprintf(stderr, "%s differs from the reference\n", product.name);
    return false;
  }

  Limits limits;
  limits.measure(pool, c.in);
  std::vector<double> seconds;
  for (const double start = now(); seconds.size() < kMinCalls || now() - start < kSecondsPerCase;) {
    const auto copy = int64_t(seconds.size()) % copies;
    const double before = now();
    product.call(table, ctx, c, copy * c.shape.weights(), out_view);
    seconds.push_back(now() - before);
  }
  limits.measure(pool, c.in);

  std::sort(seconds.begin(), seconds.end());
  const auto quantile = [&](double q) { return seconds[size_t(q * double(seconds.size() - 1))]; };
  const double median = quantile(0.5);
  const double bytes = product.bytes(c.shape);
  const double flops = 2.0 * double(c.shape.weights()) * double(c.rows);
  const double read_time = bytes / limits.read_gbps / 1e9;
  const double compute_time =
      product.byte_products ? 2 * flops / limits.byte_gops / 1e9 : flops / limits.fma_gflops / 1e9;
  const char* compute_name = product.byte_products ? "byte products" : "fma";
  std::printf(
      "{\"bench\": \"%s\", \"n\": %lld, \"k\": %lld, \"rows\": %lld, \"threads\": %d, \"isa\": "
      "\"%.*s\", "
      "\"us\": %.1f, \"us_p10\": %.1f, \"us_p90\": %.1f, \"gbps\": %.2f, \"gflops\": %.1f, "
      "\"limit\": \"%s\", \"fraction\": %.3f, \"fraction_p10\": %.3f, \"read_gbps\": %.1f, "
      "\"fma_gflops\": %.1f, "
      "\"fraction_of_fma\": %.3f}\n",
      product.name, (long long)c.shape.n, (long long)c.shape.k, (long long)c.rows,
      pool.num_threads(), int(table.name.size()), table.name.data(), median * 1e6,
      quantile(0.1) * 1e6, quantile(0.9) * 1e6, bytes / median / 1e9, flops / median / 1e9,
      read_time > compute_time ? "read" : compute_name, std::max(read_time, compute_time) / median,
      std::max(read_time, compute_time) / quantile(0.1), limits.read_gbps, limits.fma_gflops,
      flops / median / 1e9 / limits.fma_gflops);
  std::fflush(stdout);
  return true;
}

int run(const KernelTable& table, std::string_view only, int64_t only_rows) {
  Inputs in;
  for (int threads = 1; threads <= default_num_threads(); threads *= 2) {
    ThreadPool pool(threads);
    KernelContext ctx(pool);
    for (const Shape& shape : kShapes) {
      table.quantize_fp8(ctx, {in.x.data(), {kMaxRows, shape.k}},
                         {{in.x_codes.data(), {kMaxRows, shape.k}},
                          {in.x_scales.data(), {kMaxRows, shape.k / kQuantBlock}}});
      for (const Product& product : kProducts) {
        if (!only.empty() && only != product.name) continue;
        for (const int64_t rows : kRows) {
          if (only_rows != 0 && only_rows != rows) continue;
          if (!run_case(table, product, {in, shape, rows}, pool)) return 1;
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const millrace::KernelTable* table = millrace::find_kernels("");
  std::string_view only;
  int64_t rows = 0;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (i + 1 == argc) {
      table = nullptr;
    } else if (flag == "--isa") {
      table = millrace::find_kernels(value);
    } else if (flag == "--only") {
      only = value;
    } else if (flag == "--rows") {
      rows = std::atoll(value);
    } else {
      table = nullptr;
    }
    if (table == nullptr) {
      std::fprintf(stderr, "usage: bench-kernels [--isa NAME] [--only NAME] [--rows R]\n");
      return 2;
    }
  }
  return millrace::run(*table, only, rows);
}
