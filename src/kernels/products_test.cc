// Matrix products on every instruction set that this machine runs equal the reference bit for
// bit: fp32 accumulators at the model's real K, where the order of additions shows, and awkward
// shapes and values elsewhere. The reference is slow, so each case asks it once for all targets.

#include <gtest/gtest.h>

#include <functional>

#include "kernels/contract_test.h"

namespace millrace {
namespace {

constexpr int64_t kRealK[] = {1280, 2304, 4096, 5120, 6144, 8192, 20480};
constexpr int64_t kManyRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 31, 32, 63, 64, 65};

struct ProductShape {
  int64_t rows, n, k;
  std::string name() const { return text(rows, n, k); }
};

class Products : public testing::Test {
 protected:
  using Call = std::function<void(const KernelTable&, KernelContext&, Matrix<float> out)>;

  // Small cases try every number of threads, large ones take turns.
  void compare(const std::string& what, int64_t rows, int64_t n, const Call& call) {
    Floats want(size_t(rows * n));
    call(ref_kernels(), *contexts_[0], {want.data(), {rows, n}});
    for (const KernelTable* table : fast_kernels()) {
      const bool is_small = rows * n < 600;
      for (int i = 0; i < (is_small ? 3 : 1); ++i) {
        KernelContext& context = *contexts_[next_++ % 3];
        // One more row, which must stay as it is.
        Floats got(size_t((rows + 1) * n), -7.0f);
        call(*table, context, {got.data(), {rows, n}});
        for (int64_t j = rows * n; j < (rows + 1) * n; ++j) ASSERT_EQ(got[size_t(j)], -7.0f);
        got.resize(want.size());
        ASSERT_TRUE(same_bits(got, want))
            << table->name << ", " << what << ", " << context.pool().num_threads() << " threads";
      }
    }
  }

  ThreadPool pool_1_{1}, pool_2_{2}, pool_4_{4};
  KernelContext one_{pool_1_}, two_{pool_2_}, four_{pool_4_};
  KernelContext* contexts_[3] = {&one_, &two_, &four_};
  size_t next_ = 0;
};

// ---- fp8.

struct Fp8Weights {
  std::vector<uint8_t> codes, scales;
  Fp8Matrix matrix;

  Fp8Weights(int64_t n, int64_t k, Random random, int64_t low = 115, int64_t high = 135,
             int64_t row_phase = 0)
      : codes(random.bytes(n * k)),
        scales(random.bytes((row_phase + n + 31) / 32 * ((k + 31) / 32), low, high)),
        matrix{codes.data(), scales.data(), n, k, row_phase} {}
};

TEST_F(Products, MatmulFp8EqualsTheReferenceAtTheModelsSizes) {
  for (int64_t k : kRealK) {
    for (int64_t rows : {1, 3, 8}) {
      const Fp8Weights w(67, k, Random(uint64_t(k)));
      for (Data data : {Data::kBinades, Data::kBf16}) {
        const Floats x = Random(1).numbers(rows * k, data);
        compare(text(rows, k, data), rows, 67,
                [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                  table.matmul_fp8(ctx, view(x, rows), w.matrix, out, Rounding::kNone);
                });
      }
    }
  }
}

TEST_F(Products, MatmulFp8EqualsTheReferenceForAnyNumberOfRows) {
  const int64_t k = 1280, n = 35;
  const Fp8Weights w(n, k, Random(2));
  const Floats x = Random(3).numbers(768 * k, Data::kBinades);
  const auto check = [&](int64_t rows, int64_t outputs) {
    Fp8Matrix part = w.matrix;
    part.n = outputs;
    compare(text(rows, outputs), rows, outputs,
            [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
              table.matmul_fp8(ctx, {x.data(), {rows, k}}, part, out, Rounding::kNone);
            });
  };
  for (int64_t rows : kManyRows) check(rows, n);
  check(768, 9);
}

TEST_F(Products, MatmulFp8EqualsTheReferenceAtEdgesAndOnOddValues) {
  for (Data data : kAllData) {
    for (int64_t n : {1, 5, 8, 31, 32, 67}) {
      for (int64_t k : {1, 32, 40, 64, 96, 416}) {
        for (int64_t rows : {0, 1, 7}) {
          for (int64_t row_phase : {0, 19}) {
            const Fp8Weights w(n, k, Random(uint64_t(n * k)), 115, 135, row_phase);
            const Floats x = Random(4).numbers(rows * k, data);
            const Rounding rounding = kRoundings[(n + k) % 2];
            compare(text(rows, n, k, row_phase, data), rows, n,
                    [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                      table.matmul_fp8(ctx, {x.data(), {rows, k}}, w.matrix, out, rounding);
                    });
          }
        }
      }
    }
  }
}

// Scales at both ends of their range, where the products of the fast versions could leave the
// range of floats and the contract's do not, or the other way round.
TEST_F(Products, MatmulFp8EqualsTheReferenceAtExtremeScales) {
  for (int64_t low : {0, 1, 15, 100, 133, 140, 200, 250}) {
    const Fp8Weights w(40, 192, Random(uint64_t(low)), low, low + 5);
    for (int exponent : {-140, -100, -10, 0, 2, 10, 60, 120}) {
      for (int64_t rows : {1, 2}) {
        Floats x = Random(5).numbers(rows * 192, Data::kBinades);
        for (float& v : x) v = std::ldexp(v, exponent);
        compare(text(low, exponent, rows), rows, 40,
                [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                  table.matmul_fp8(ctx, view(x, rows), w.matrix, out, Rounding::kNone);
                });
      }
    }
  }
}

// ---- bf16.

TEST_F(Products, MatmulBf16EqualsTheReferenceAtTheModelsSizes) {
  for (int64_t k : kRealK) {
    const std::vector<bf16> w = Random(uint64_t(k)).bf16_numbers(67 * k);
    for (int64_t rows : {1, 3, 8}) {
      const Floats x = Random(6).numbers(rows * k, Data::kBinades);
      compare(text(rows, k), rows, 67,
              [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                table.matmul_bf16(ctx, view(x, rows), {w.data(), 67, k}, out, Rounding::kNone);
              });
    }
  }
}

TEST_F(Products, MatmulBf16EqualsTheReferenceForAnyNumberOfRows) {
  const int64_t k = 1280, n = 35;
  const std::vector<bf16> w = Random(7).bf16_numbers(n * k);
  const Floats x = Random(8).numbers(768 * k, Data::kBinades);
  const auto check = [&](int64_t rows, int64_t outputs) {
    compare(text(rows, outputs), rows, outputs,
            [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
              table.matmul_bf16(ctx, {x.data(), {rows, k}}, {w.data(), outputs, k}, out,
                                Rounding::kNone);
            });
  };
  for (int64_t rows : kManyRows) check(rows, n);
  check(768, 9);
}

TEST_F(Products, MatmulBf16EqualsTheReferenceAtEdgesAndOnOddValues) {
  for (Data data : kAllData) {
    for (int64_t n : {1, 5, 8, 31, 32, 67}) {
      for (int64_t k : {1, 7, 32, 33, 100, 256}) {
        std::vector<bf16> w(size_t(n * k));
        Random random{uint64_t(n * k)};
        for (bf16& v : w) v = to_bf16(random.number(data));
        for (int64_t rows : {0, 1, 7}) {
          const Floats x = Random(9).numbers(rows * k, data);
          const Rounding rounding = kRoundings[(n + k) % 2];
          compare(text(rows, n, k, data), rows, n,
                  [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                    table.matmul_bf16(ctx, {x.data(), {rows, k}}, {w.data(), n, k}, out, rounding);
                  });
        }
      }
    }
  }
}

// ---- fp4.

TEST_F(Products, MatmulFp4EqualsTheReferenceAtTheModelsSizes) {
  for (int64_t k : kRealK) {
    const Fp4Weights w(67, k, Random(uint64_t(k)));
    const Fp8Activations any(8, k, Random(10)),
        quantised = Fp8Activations::quantised(8, k, Random(11));
    for (const Fp8Activations* x : {&any, &quantised}) {
      for (int64_t rows : {1, 3, 8}) {
        compare(text(rows, k, x == &any), rows, 67,
                [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                  table.matmul_fp4(ctx, x->rows(rows), OneGroup(w.matrix, rows), out, Rounding::kNone);
                });
      }
    }
  }
}

TEST_F(Products, MatmulFp4EqualsTheReferenceForAnyNumberOfRows) {
  const int64_t k = 1280, n = 35;
  const Fp4Weights w(n, k, Random(12));
  const Fp8Activations x = Fp8Activations::quantised(768, k, Random(13));
  const auto check = [&](int64_t rows, int64_t outputs) {
    Fp4Matrix part = w.matrix;
    part.n = outputs;
    compare(text(rows, outputs), rows, outputs,
            [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
              table.matmul_fp4(ctx, x.rows(rows), OneGroup(part, rows), out, Rounding::kNone);
            });
  };
  for (int64_t rows : kManyRows) check(rows, n);
  check(768, 9);
}

TEST_F(Products, MatmulFp4EqualsTheReferenceAtEdgesAndAnyScale) {
  for (int64_t low : {0, 5, 110, 200, 249}) {
    for (int64_t n : {1, 3, 8, 17, 32}) {
      for (int64_t k : {32, 64, 480, 544}) {
        const Fp4Weights w(n, k, Random(uint64_t(n * k)), low, low + 6);
        const Fp8Activations x(17, k, Random(14), 249 - low, 255 - low);
        for (int64_t rows : {0, 1, 7, 17}) {
          const Rounding rounding = kRoundings[(n + low) % 2];
          compare(text(rows, n, k, low), rows, n,
                  [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                    table.matmul_fp4(ctx, x.rows(rows), OneGroup(w.matrix, rows), out, rounding);
                  });
        }
      }
    }
  }
}

// Blocks from all zero to one whose digits are all at their limit.
TEST_F(Products, MatmulFp4SumsEveryKindOfBlockExactly) {
  const Fp4Weights random(16, 64, Random(15));
  const std::vector<uint8_t> largest(random.codes.size(), 0x77), negative(largest.size(), 0xff);
  for (const uint8_t* codes : {random.codes.data(), largest.data(), negative.data()}) {
    Fp4Matrix w = random.matrix;
    w.codes = codes;
    for (int code = 0; code < 256; ++code) {
      // One block per row and half: 31 times the one code, then another.
      const int others[] = {0x00, 0x80, 0x01, 0x5b, 0x76, 0x7e, 0xfe, code ^ 0x80, code};
      constexpr int64_t kKinds = std::size(others);
      Fp8Activations x(2 * kKinds, 64, Random(16), 120, 121);
      for (size_t i = 0; i < x.codes.size(); ++i) {
        x.codes[i] = uint8_t(i % 32 < 31 ? code : others[i / 64 % kKinds]);
      }
      for (const int64_t rows : {kKinds, 2 * kKinds}) {  // few and many
        compare(text(code, rows), rows, 16,
                [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                  table.matmul_fp4(ctx, x.rows(rows), OneGroup(w, rows), out, Rounding::kNone);
                });
      }
    }
  }
}

// Groups of every size, empty ones among them, whose rows are taken and written in any order.
template <class Multiply>
void row_group_cases(const Multiply& multiply) {
  for (int64_t n : {1, 64, 67}) {
    for (int64_t k : {64, 1280}) {
      const std::vector<int64_t> sizes{0, 1, 7, 0, 2, 65, 1, 0};
      std::vector<Fp4Weights> weights;
      for (size_t g = 0; g < sizes.size(); ++g) weights.emplace_back(n, k, Random(g + uint64_t(k)));
      std::vector<RowGroups::Group> groups;
      std::vector<int32_t> x_rows, out_rows;
      for (size_t g = 0; g < sizes.size(); ++g) {
        const int64_t begin = int64_t(x_rows.size());
        groups.push_back({weights[g].matrix, begin, begin + sizes[g]});
        for (int64_t r = 0; r < sizes[g]; ++r) {
          x_rows.push_back(int32_t((r * 5 + int64_t(g)) % 20));
          out_rows.push_back(0);
        }
      }
      const int64_t rows = int64_t(out_rows.size());
      for (int64_t r = 0; r < rows; ++r) out_rows[size_t(r)] = int32_t(r * 31 % rows);  // 31: prime to 76
      multiply(n, k, rows, RowGroups{groups, x_rows, out_rows});
    }
  }
}

TEST_F(Products, MatmulFp4EqualsTheReferenceForGroupsOfRows) {
  row_group_cases([&](int64_t n, int64_t k, int64_t rows, const RowGroups& groups) {
    const Fp8Activations x = Fp8Activations::quantised(20, k, Random(21));
    compare(text(n, k), rows, n,
            [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
              table.matmul_fp4(ctx, x.rows(20), groups, out, Rounding::kNone);
            });
  });
}

TEST_F(Products, MatmulFp4F32EqualsTheReferenceForGroupsOfRows) {
  row_group_cases([&](int64_t n, int64_t k, int64_t rows, const RowGroups& groups) {
    const Floats x = Random(22).numbers(20 * k, Data::kBinades);
    compare(text(n, k), rows, n,
            [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
              table.matmul_fp4_f32(ctx, view(x, 20), groups, out, Rounding::kNone);
            });
  });
}

TEST_F(Products, MatmulFp4F32EqualsTheReference) {
  for (const ProductShape& shape :
       {ProductShape{1, 67, 5120}, {3, 67, 20480}, {65, 9, 1280}, {768, 3, 1280}}) {
    const Fp4Weights w(shape.n, shape.k, Random(uint64_t(shape.k)));
    const Floats x = Random(17).numbers(shape.rows * shape.k, Data::kBinades);
    compare(shape.name(), shape.rows, shape.n,
            [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
              table.matmul_fp4_f32(ctx, view(x, shape.rows), OneGroup(w.matrix, shape.rows), out,
                                   Rounding::kNone);
            });
  }
  for (Data data : kAllData) {
    for (int64_t low : {0, 110, 249}) {
      for (int64_t n : {1, 8, 67}) {
        for (int64_t k : {32, 160}) {
          const Fp4Weights w(n, k, Random(uint64_t(n * k)), low, low + 6);
          for (int64_t rows : {0, 1, 7}) {
            const Floats x = Random(18).numbers(rows * k, data);
            compare(text(rows, n, k, low, data), rows, n,
                    [&](const KernelTable& table, KernelContext& ctx, Matrix<float> out) {
                      table.matmul_fp4_f32(ctx, {x.data(), {rows, k}}, OneGroup(w.matrix, rows), out,
                                           kRoundings[n % 2]);
                    });
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
