#pragma once

// Products by fp8 weights for the tests of the GPU's matmul_fp8, on the processor and on a GPU.

#include <span>

#include "kernels/contract_test.h"

namespace millrace::cuda {

struct Fp8Case {
  int64_t rows, n, k;
  int64_t row_phase;  // of the weights
};

struct Fp8Operands {
  Floats x;  // [rows, k]
  std::vector<uint8_t> codes, scales;
  Fp8Matrix w;  // of these
  Rounding rounding;
};

// test(case, operands, want) of every kind of numbers and rounding; `want` is the reference's.
template <class Test>
void for_each_fp8_product(std::span<const Fp8Case> cases, const Test& test) {
  ThreadPool pool(1);
  KernelContext ctx(pool);
  for (const Fp8Case& c : cases) {
    for (const Data data : kAllData) {
      for (const Rounding rounding : kRoundings) {
        SCOPED_TRACE(text(c.rows, c.n, c.k, c.row_phase, int(data), int(rounding)));
        Random random(uint64_t(c.k * 100 + c.n));
        Fp8Operands in{
            random.numbers(c.rows * c.k, data), random.bytes(c.n * c.k), {}, {}, rounding};
        const int64_t scale_rows = (c.row_phase + c.n + 31) / 32, scale_columns = (c.k + 31) / 32;
        in.scales = random.bytes(scale_rows * scale_columns, 0, 200);
        in.w = {in.codes.data(), in.scales.data(), c.n, c.k, c.row_phase};
        Floats want(size_t(c.rows * c.n));
        ref_kernels().matmul_fp8(ctx, view(in.x, c.rows), in.w, view(want, c.rows), rounding);
        test(c, in, want);
      }
    }
  }
}

}  // namespace millrace::cuda
