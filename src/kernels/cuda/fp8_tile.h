#pragma once

// What one thread of the GPU's matmul_fp8 does, between the places where the threads of a block
// wait for each other. Plain functions, so that a test can play every thread of a grid on the
// processor: what is left to the GPU is to run them, and that its fused multiply-add rounds once.

#include <cmath>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/quantized.h"

#ifdef __CUDACC__
#define MR_GPU_THREAD __host__ __device__ inline
#else
#define MR_GPU_THREAD inline
#endif

namespace millrace::cuda {

// A block of threads computes 32 outputs of 8 rows, one thread each, and walks along k in steps of
// one scale.
inline constexpr int kTileOutputs = 32;
inline constexpr int kTileRows = 8;
inline constexpr int kTileColumns = 32;
static_assert(kTileColumns == kQuantBlock);

struct Fp8Product {
  const float* x;  // [T, K], rows x_stride apart
  int64_t x_stride, num_rows;
  Fp8Matrix w;
  float* out;  // [T, N], rows out_stride apart
  int64_t out_stride;
  bool rounds_to_bf16;
};

// Memory that the threads of a block share. Weights lie by column, so that neighbouring threads
// read neighbouring words; one more word in a row, so that they write to different banks.
struct Fp8TileMemory {
  float weights[kTileColumns][kTileOutputs + 1];
  float x[kTileRows][kTileColumns];
};

// Which output a thread computes; it may lie outside, then the thread only helps to load.
struct Fp8Thread {
  int64_t first_row, first_output;  // of the block
  int row, output;                  // in it
  int64_t t, n;

  MR_GPU_THREAD Fp8Thread(int64_t row_block, int64_t output_block, int row, int output)
      : first_row(row_block * kTileRows),
        first_output(output_block * kTileOutputs),
        row(row),
        output(output),
        t(first_row + row),
        n(first_output + output) {}
};

MR_GPU_THREAD float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// The thread's share of the columns from k_begin on: a column of all outputs, and of its own row of
// x.
MR_GPU_THREAD void load_tile(const Fp8Product& p, const Fp8Thread& thread, int64_t k_begin,
                             Fp8TileMemory& memory) {
  const int column = thread.output;
  const int64_t k = k_begin + column;
  const bool is_inside = k < p.w.k;
  for (int output = thread.row; output < kTileOutputs; output += kTileRows) {
    const int64_t n = thread.first_output + output;
    memory.weights[column][output] =
        is_inside && n < p.w.n ? e4m3_to_float(p.w.codes[n * p.w.k + k]) : 0.0f;
  }
  memory.x[thread.row][column] =
      is_inside && thread.t < p.num_rows ? p.x[thread.t * p.x_stride + k] : 0.0f;
}

// The loaded columns, added to the thread's accumulator: fma(w, x * scale, acc), k ascending.
MR_GPU_THREAD float add_tile(const Fp8Product& p, const Fp8Thread& thread, int64_t k_begin,
                             const Fp8TileMemory& memory, float acc) {
  if (thread.t >= p.num_rows || thread.n >= p.w.n) return acc;
  const float scale = ue8m0_to_float(p.w.scale_row(thread.n)[k_begin / kQuantBlock]);
  // Not the zeros behind the last column: they would turn an accumulator of -0 into +0.
  const int count = p.w.k - k_begin < kTileColumns ? int(p.w.k - k_begin) : kTileColumns;
  for (int k = 0; k < count; ++k) {
    const float scaled = memory.x[thread.row][k] * scale;
    acc = multiply_add(memory.weights[k][thread.output], scaled, acc);
  }
  return acc;
}

MR_GPU_THREAD void store(const Fp8Product& p, const Fp8Thread& thread, float acc) {
  if (thread.t >= p.num_rows || thread.n >= p.w.n) return;
  p.out[thread.t * p.out_stride + thread.n] = p.rounds_to_bf16 ? round_to_bf16(acc) : acc;
}

}  // namespace millrace::cuda
