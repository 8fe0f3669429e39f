// Matrix products at the model's shapes, as JSON lines: time, bytes and operations per second, and
// the fraction of the limit that binds. All are medians over rounds of a few milliseconds, and each
// round's fraction is of the limits measured just before and after it.
//
// usage: bench-kernels [--isa NAME] [--only NAME] [--rows R] [--near]
//
// Weights come from memory: each call takes the next of a set of matrices that no cache holds. With
// --near it is always the same small one, which stays in the second-level cache: the rate of the
// arithmetic alone.
// Every case is compared with the reference once before it is timed.

#include "kernels/kernels.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "bench/limits.h"
#include "sys/affinity.h"

namespace millrace {
namespace {

constexpr size_t kPoolBytes = size_t{256} << 20;  // of weight codes
constexpr size_t kReadBytes = size_t{32} << 20;   // of them, to measure the bandwidth
constexpr double kSecondsPerCase = 0.5, kSecondsPerRound = 0.003;
constexpr size_t kMinRounds = 7;
constexpr int64_t kMaxRows = 768, kMaxK = 5120;

struct Shape {
  int64_t n, k;
  int64_t weights() const { return n * k; }
};
constexpr Shape kShapes[] = {{5120, 5120}, {2304, 5120}, {5120, 2304}};
constexpr Shape kNearShape[] = {{1024, 512}};
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
  std::vector<uint8_t> fp8_codes;          // of normally distributed weights
  std::vector<uint8_t> x_codes, x_scales;  // made from x, for the K in use
  std::vector<int32_t> row_ids;            // 0, 1, 2, ...

  Inputs()
      : codes(kPoolBytes),
        numbers(kPoolBytes / 2),
        scales(kPoolBytes / 16),
        x(kMaxRows * kMaxK),
        fp8_codes(kPoolBytes),
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
    // Few are so small that e4m3 stores them as subnormals, one of 7,000: random codes would have
    // one of 16 there, and some processors take 150 cycles for each multiply-add of such a number.
    constexpr float kDeviation = 80;  // of 448
    std::vector<uint8_t> normal(1 << 16);
    for (uint8_t& code : normal) code = float_to_e4m3(kDeviation * random.normal());
    for (size_t i = 0; i < kPoolBytes; i += 4) {
      const uint64_t b = random.bits();
      for (size_t j = 0; j < 4; ++j) fp8_codes[i + j] = normal[(b >> (16 * j)) & 0xffff];
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
       table.matmul_fp8(
           ctx, c.x(),
           {&c.in.fp8_codes[size_t(first)], c.in.scales.data(), out.shape[1], c.shape.k}, out,
           Rounding::kBf16);
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

// What the machine can do at a moment.
struct Limits {
  double read_gbps, fma_gflops, byte_gops;
};

// Reads another part of the pool each time.
Limits measure_limits(ThreadPool& pool, const Inputs& in, size_t round) {
  const auto memory = std::as_bytes(std::span(in.codes));
  const size_t part = round * kReadBytes % (memory.size() - kReadBytes + 1);
  return {measure_read(pool, memory.subspan(part, kReadBytes), 1), measure_fma(pool, 1),
          measure_byte_products(pool, 1)};
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Some calls, and what the machine could do just before and after them: its speed changes with
// what others do on it, and a fraction is of one moment.
struct Round {
  double seconds;  // of a call
  Limits limits;
};

template <class Figure>
double quantile(double q, const std::vector<Round>& rounds, const Figure& figure) {
  std::vector<double> figures;
  for (const Round& round : rounds) figures.push_back(figure(round));
  std::sort(figures.begin(), figures.end());
  return figures[size_t(q * double(figures.size() - 1))];
}

bool run_case(const KernelTable& table, const Product& product, const Case& c, ThreadPool& pool,
              bool near) {
  KernelContext ctx(pool);
  std::vector<float> out(size_t(c.rows * c.shape.n));
  const Matrix<float> out_view(out.data(), {c.rows, c.shape.n});
  const int64_t copies =
      near ? 1 : int64_t(kPoolBytes) * 8 / product.weight_bits / c.shape.weights();

  product.call(table, ctx, c, 0, out_view);
  if (!is_correct(product, c, ctx, out_view)) {
    std::fprintf(stderr, "%s differs from the reference\n", product.name);
    return false;
  }

  std::vector<Round> rounds;
  int64_t num_calls = 0;
  Limits before = measure_limits(pool, c.in, 0);
  for (const double start = now(); rounds.size() < kMinRounds || now() - start < kSecondsPerCase;) {
    const double begin = now();
    double seconds = 0;
    int64_t calls = 0;
    while (seconds < kSecondsPerRound) {
      product.call(table, ctx, c, num_calls++ % copies * c.shape.weights(), out_view);
      seconds = now() - begin;
      ++calls;
    }
    const Limits after = measure_limits(pool, c.in, rounds.size() + 1);
    rounds.push_back({seconds / double(calls),
                      {(before.read_gbps + after.read_gbps) / 2,
                       (before.fma_gflops + after.fma_gflops) / 2,
                       (before.byte_gops + after.byte_gops) / 2}});
    before = after;
  }

  const double bytes = product.bytes(c.shape);
  const double flops = 2.0 * double(c.shape.weights()) * double(c.rows);
  const auto read_time = [&](const Round& r) { return bytes / r.limits.read_gbps / 1e9; };
  const auto compute_time = [&](const Round& r) {
    return product.byte_products ? 2 * flops / r.limits.byte_gops / 1e9
                                 : flops / r.limits.fma_gflops / 1e9;
  };
  const auto median = [&](const auto& figure) { return quantile(0.5, rounds, figure); };
  const double seconds = median([](const Round& r) { return r.seconds; });
  const bool read_binds =
      median([&](const Round& r) { return read_time(r) - compute_time(r); }) > 0;
  std::printf(
      "{\"bench\": \"%s\", \"n\": %lld, \"k\": %lld, \"rows\": %lld, \"threads\": %d, \"isa\": "
      "\"%.*s\", \"rounds\": %zu, \"us\": %.1f, \"us_p10\": %.1f, \"us_p90\": %.1f, "
      "\"gbps\": %.2f, "
      "\"gflops\": %.1f, \"limit\": \"%s\", \"fraction\": %.3f, \"fraction_of_read\": %.3f, "
      "\"fraction_of_fma\": %.3f, \"read_gbps\": %.1f, \"fma_gflops\": %.1f, "
      "\"byte_gops\": %.1f}\n",
      product.name, (long long)c.shape.n, (long long)c.shape.k, (long long)c.rows,
      pool.num_threads(), int(table.name.size()), table.name.data(), rounds.size(), seconds * 1e6,
      quantile(0.1, rounds, [](const Round& r) { return r.seconds * 1e6; }),
      quantile(0.9, rounds, [](const Round& r) { return r.seconds * 1e6; }), bytes / seconds / 1e9,
      flops / seconds / 1e9,
      read_binds              ? "read"
      : product.byte_products ? "byte products"
                              : "fma",
      median([&](const Round& r) {
        return (read_binds ? read_time(r) : compute_time(r)) / r.seconds;
      }),
      median([&](const Round& r) { return read_time(r) / r.seconds; }),
      median([&](const Round& r) { return flops / r.limits.fma_gflops / 1e9 / r.seconds; }),
      median([](const Round& r) { return r.limits.read_gbps; }),
      median([](const Round& r) { return r.limits.fma_gflops; }),
      median([](const Round& r) { return r.limits.byte_gops; }));
  std::fflush(stdout);
  return true;
}

int run(const KernelTable& table, std::string_view only, int64_t only_rows, bool near) {
  Inputs in;
  for (int threads = 1; threads <= num_usable_cpus(); threads *= 2) {
    ThreadPool pool(threads);
    KernelContext ctx(pool);
    for (const Shape& shape : near ? std::span<const Shape>(kNearShape) : kShapes) {
      table.quantize_fp8(ctx, {in.x.data(), {kMaxRows, shape.k}},
                         {{in.x_codes.data(), {kMaxRows, shape.k}},
                          {in.x_scales.data(), {kMaxRows, shape.k / kQuantBlock}}});
      for (const Product& product : kProducts) {
        if (!only.empty() && only != product.name) continue;
        for (const int64_t rows : kRows) {
          if (only_rows != 0 && only_rows != rows) continue;
          if (!run_case(table, product, {in, shape, rows}, pool, near)) return 1;
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
  bool near = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--near") {
      near = true;
      continue;
    }
    const char* value = ++i < argc ? argv[i] : "";
    if (i == argc) {
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
      std::fprintf(stderr, "usage: bench-kernels [--isa NAME] [--only NAME] [--rows R] [--near]\n");
      return 2;
    }
  }
  const auto is_product = [&](const auto& product) { return only == product.name; };
  const auto is_number = [&](int64_t number) { return rows == number; };
  if (!only.empty() && std::ranges::none_of(millrace::kProducts, is_product)) {
    std::fprintf(stderr, "--only: found \"%.*s\", expected one of", int(only.size()), only.data());
    for (const auto& product : millrace::kProducts) {
      std::fprintf(stderr, " %s", std::string(product.name).c_str());
    }
    std::fprintf(stderr, "\n");
    return 2;
  }
  if (rows != 0 && std::ranges::none_of(millrace::kRows, is_number)) {
    std::fprintf(stderr, "--rows: found %lld, expected one of", static_cast<long long>(rows));
    for (int64_t number : millrace::kRows) {
      std::fprintf(stderr, " %lld", static_cast<long long>(number));
    }
    std::fprintf(stderr, "\n");
    return 2;
  }
  return millrace::run(*table, only, rows, near);
}
