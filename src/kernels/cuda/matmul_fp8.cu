// out[t][n] = chain over k of fma(e4m3(w), x[t][k] * scale, acc): KernelTable::matmul_fp8, whose
// reference is ref::matmul_fp8.
//
// Grid: x over tiles of 32 outputs, y over tiles of 8 rows, y strided where there are more tiles
// than a grid may have. Block: 32 x 8 threads, one output each. Shared memory: 5.1 KiB, one tile of
// decoded weights and one of x, for 32 columns. No thread splits k, so the order of the additions
// is that of the contract. Bound: operations, two roundings for each product, and below 8 rows the
// bytes of the weights. Tensor cores add in an order of their own and are no way to these bits.

#include "kernels/cuda/fp8_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/status.h"
#include "tensor/dims.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kMostGridRows = 65535;

__global__ void __launch_bounds__(kTileOutputs* kTileRows) matmul_fp8_kernel(Fp8Product p) {
  __shared__ Fp8TileMemory memory;
  for (int64_t row_block = blockIdx.y; row_block * kTileRows < p.num_rows; row_block += gridDim.y) {
    const Fp8Thread thread(row_block, blockIdx.x, int(threadIdx.y), int(threadIdx.x));
    float acc = 0;
    for (int64_t k = 0; k < p.w.k; k += kTileColumns) {
      load_tile(p, thread, k, memory);
      __syncthreads();
      acc = add_tile(p, thread, k, memory, acc);
      __syncthreads();
    }
    store(p, thread, acc);
  }
}

}  // namespace

Status matmul_fp8(Stream& stream, Matrix<const float> x, const Fp8Matrix& w, Matrix<float> out,
                  Rounding rounding) {
  Dims("cuda::matmul_fp8")
      .bind('T', x.shape[0])
      .bind('K', x.shape[1])
      .bind('N', w.n)
      .bind('K', w.k)
      .bind('T', out.shape[0])
      .bind('N', out.shape[1]);
  if (out.size() == 0) return {};
  const Fp8Product product{
      x.data, x.stride[0], x.shape[0], w, out.data, out.stride[0], rounding == Rounding::kBf16};
  const int64_t output_tiles = (w.n + kTileOutputs - 1) / kTileOutputs;
  const int64_t row_tiles = (x.shape[0] + kTileRows - 1) / kTileRows;
  const dim3 grid(static_cast<unsigned>(output_tiles),
                  static_cast<unsigned>(row_tiles < kMostGridRows ? row_tiles : kMostGridRows));
  const dim3 block(kTileOutputs, kTileRows);
  matmul_fp8_kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream.handle())>>>(product);
  return to_status(cudaGetLastError(), "matmul_fp8");
}

}  // namespace millrace::cuda
