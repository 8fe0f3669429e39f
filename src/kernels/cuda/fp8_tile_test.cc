// The GPU's matmul_fp8 without a GPU: every thread of its grid, played on the processor.

#include "kernels/cuda/fp8_tile.h"

#include "kernels/contract_test.h"
#include "kernels/cuda/fp8_products_test.h"

namespace millrace::cuda {
namespace {

// The kernel, with every wait of a block's threads as the end of a loop over them.
void play_grid(const Fp8Product& p) {
  Fp8TileMemory memory;
  for (int64_t row_block = 0; row_block * kTileRows < p.num_rows; ++row_block) {
    for (int64_t output_block = 0; output_block * kTileOutputs < p.w.n; ++output_block) {
      std::vector<Fp8Thread> threads;
      for (int row = 0; row < kTileRows; ++row) {
        for (int output = 0; output < kTileOutputs; ++output) {
          threads.emplace_back(row_block, output_block, row, output);
        }
      }
      Floats acc(threads.size(), 0.0f);
      for (int64_t k = 0; k < p.w.k; k += kTileColumns) {
        // What was there before must not count: the GPU's shared memory is not cleared.
        for (auto& row : memory.weights) std::fill(std::begin(row), std::end(row), NAN);
        for (auto& row : memory.x) std::fill(std::begin(row), std::end(row), NAN);
        for (const Fp8Thread& thread : threads) load_tile(p, thread, k, memory);
        for (size_t i = 0; i < threads.size(); ++i)
          acc[i] = add_tile(p, threads[i], k, memory, acc[i]);
      }
      for (size_t i = 0; i < threads.size(); ++i) store(p, threads[i], acc[i]);
    }
  }
}

TEST(CudaMatmulFp8, EveryThreadOfTheGridTogetherEqualsTheReferenceBitForBit) {
  const Fp8Case cases[] = {{1, 1, 1, 0},      {1, 32, 32, 0},    {8, 33, 31, 0},  {9, 67, 96, 5},
                           {3, 40, 1280, 31}, {17, 65, 321, 12}, {2, 33, 5120, 0}};
  for_each_fp8_product(cases, [](const Fp8Case& c, const Fp8Operands& in, const Floats& want) {
    Floats got(want.size(), -7.0f);
    play_grid({in.x.data(), c.k, c.rows, in.w, got.data(), c.n, in.rounding == Rounding::kBf16});
    EXPECT_TRUE(same_bits(got, want));
  });
}

TEST(CudaMatmulFp8, RowsMayLieApart) {
  ThreadPool pool(1);
  KernelContext ctx(pool);
  const int64_t rows = 10, n = 35, k = 70, x_stride = 77, out_stride = 50;
  Random random(4);
  const Floats x = random.numbers(rows * x_stride, Data::kBinades);
  const std::vector<uint8_t> codes = random.bytes(n * k), scales = random.bytes(2 * 3, 115, 135);
  const Fp8Matrix w{codes.data(), scales.data(), n, k};
  Floats want(size_t(rows * out_stride), -7.0f), got = want;
  ref_kernels().matmul_fp8(ctx, {x.data(), {rows, k}, {x_stride, 1}}, w,
                           {want.data(), {rows, n}, {out_stride, 1}}, Rounding::kNone);
  play_grid({x.data(), x_stride, rows, w, got.data(), out_stride, false});
  EXPECT_TRUE(same_bits(got, want));
}

TEST(CudaMatmulFp8, ColumnsBehindTheLastAddNothing) {
  ThreadPool pool(1);
  KernelContext ctx(pool);
  const Floats x{-0x1p-149f};  // times 2^-9 it rounds to -0, to which +0 must not be added
  const uint8_t code = 1, scale = 127;
  const Fp8Matrix w{&code, &scale, 1, 1};
  Floats want(1), got(1);
  ref_kernels().matmul_fp8(ctx, view(x, 1), w, view(want, 1), Rounding::kNone);
  EXPECT_TRUE(std::signbit(want[0]));
  play_grid({x.data(), 1, 1, w, got.data(), 1, false});
  EXPECT_TRUE(same_bits(got, want));
}

}  // namespace
}  // namespace millrace::cuda
