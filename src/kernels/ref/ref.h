#pragma once

// The contract: every operation of kernels.h in plain loops, in the order docs/numerics.md fixes.
// One thread, no vectors, no blocking. Slow on purpose.

#include "kernels/kernels.h"

namespace millrace::ref {

void matmul_fp8(KernelContext&, Matrix<const float>, const Fp8Matrix&, Matrix<float>, Rounding);
void matmul_fp4(KernelContext&, Fp8Rows, const RowGroups&, Matrix<float>, Rounding);
void matmul_fp4_f32(KernelContext&, Matrix<const float>, const RowGroups&, Matrix<float>, Rounding);
void matmul_bf16(KernelContext&, Matrix<const float>, const Bf16Matrix&, Matrix<float>, Rounding);

void quantize_fp8(KernelContext&, Matrix<const float>, MutableFp8Rows);
void fake_quantize_fp8(KernelContext&, Matrix<float>);
void fake_quantize_mxfp4(KernelContext&, Matrix<float>);

void pack_keys(KernelContext&, Matrix<const float>, KeyFormat, std::span<std::byte* const>);
void unpack_keys(KernelContext&, KeyFormat, std::span<const std::byte* const>, Matrix<float>);

void rms_norm(KernelContext&, Matrix<const float>, std::span<const bf16>, float, Matrix<float>,
              Rounding);
void rope(KernelContext&, TensorView<float, 3>, Matrix<const float>, Matrix<const float>, bool,
          Rounding);

void hc_mixes(KernelContext&, Matrix<const float>, const HcWeights&, const HcParameters&,
              Matrix<float>, Matrix<float>, Matrix<float>);
void hc_collapse(KernelContext&, Matrix<const float>, Matrix<const float>, Matrix<float>, Rounding);
void hc_expand(KernelContext&, Matrix<const float>, Matrix<const float>, Matrix<const float>,
               Matrix<float>, Rounding);
void hc_mean(KernelContext&, Matrix<const float>, int, Matrix<float>, Rounding);

void attention(KernelContext&, TensorView<const float, 3>, const AttentionKeys&,
               std::span<const float>, float, TensorView<float, 3>, Rounding);
void compress_pairs(KernelContext&, std::span<const float* const>, std::span<const float* const>,
                    Matrix<float>, Rounding);
void index_scores(KernelContext&, TensorView<const float, 3>, Matrix<const float>, float,
                  const PagedRows&, std::span<const IndexKeys>, std::span<float* const>);

void gather_fp8(KernelContext&, const Fp8Table&, Matrix<const int64_t>, Matrix<float>);
void engram_update(KernelContext&, Matrix<const float>, std::span<const bf16>,
                   std::span<const bf16>, float, std::span<const uint8_t>, Matrix<float>, Rounding);

void route(KernelContext&, Matrix<const float>, std::span<const float* const>, float, bool,
           Matrix<int32_t>, Matrix<float>);
void swiglu(KernelContext&, Matrix<const float>, Matrix<const float>, std::span<const float>, float,
            Matrix<float>, Rounding);
void combine_experts(KernelContext&, TensorView<const float, 3>, Matrix<const float>, Matrix<float>,
                     Rounding);

// The largest magnitude by its bits: a NaN counts above infinity, so it is never lost.
uint32_t amax_bits(const float* x, int64_t count);
// One row of keys to floats.
void unpack_row(KeyFormat format, const std::byte* row, int64_t width, float* out);

}  // namespace millrace::ref
