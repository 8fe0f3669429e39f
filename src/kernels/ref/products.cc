#include <cmath>

#include "kernels/ref/ref.h"
#include "kernels/scalar.h"
#include "tensor/dims.h"

namespace millrace::ref {
namespace {

uint8_t nibble(const Fp4Matrix& w, int64_t n, int64_t k) {
  const uint8_t byte = w.codes[n * (w.k / 2) + k / 2];
  return k % 2 == 0 ? byte & 15 : byte >> 4;
}

// 512 * e4m3 as an integer.
int32_t fixed_point(uint8_t code) { return int32_t(e4m3_to_float(code) * 512.0f); }

}  // namespace

void matmul_fp8(KernelContext&, Matrix<const float> x, const Fp8Matrix& w, Matrix<float> out,
                Rounding rounding) {
  Dims("matmul_fp8").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('N', w.n).bind('K', w.k)
      .bind('T', out.shape[0]).bind('N', out.shape[1]);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (int64_t n = 0; n < w.n; ++n) {
      const uint8_t* scales = w.scale_row(n);
      float acc = 0;
      for (int64_t k = 0; k < w.k; ++k) {
        const float scaled = x.row(t)[k] * ue8m0_to_float(scales[k / kQuantBlock]);
        acc = std::fma(e4m3_to_float(w.codes[n * w.k + k]), scaled, acc);
      }
      out.row(t)[n] = rounded(acc, rounding);
    }
  }
}

void matmul_fp4(KernelContext&, Fp8Rows x, const RowGroups& groups, Matrix<float> out,
                Rounding rounding) {
  for (const RowGroups::Group& group : groups.groups) {
    const Fp4Matrix& w = group.w;
    Dims("matmul_fp4").bind('T', x.codes.shape[0]).bind('K', x.codes.shape[1]).bind('K', w.k)
        .bind('N', w.n).bind('N', out.shape[1]).bind('T', x.scales.shape[0])
        .bind('B', x.scales.shape[1]).bind('B', w.k / kQuantBlock);
    for (int64_t r = group.begin; r < group.end; ++r) {
      const int64_t t = groups.x_rows[size_t(r)];
      for (int64_t n = 0; n < w.n; ++n) {
        float acc = 0;
        for (int64_t block = 0; block < w.k / kQuantBlock; ++block) {
          int32_t sum = 0;
          for (int64_t k = block * kQuantBlock; k < (block + 1) * kQuantBlock; ++k) {
            sum += int32_t(2 * e2m1_to_float(nibble(w, n, k))) * fixed_point(x.codes.row(t)[k]);
          }
          const float x_scale = ue8m0_to_float(x.scales.row(t)[block]) * 0x1p-10f;
          const float w_scale = ue8m0_to_float(w.scales[n * (w.k / kQuantBlock) + block]);
          acc += (float(sum) * x_scale) * w_scale;
        }
        out.row(groups.out_rows[size_t(r)])[n] = rounded(acc, rounding);
      }
    }
  }
}

void matmul_fp4_f32(KernelContext&, Matrix<const float> x, const RowGroups& groups,
                    Matrix<float> out, Rounding rounding) {
  for (const RowGroups::Group& group : groups.groups) {
    const Fp4Matrix& w = group.w;
    Dims("matmul_fp4_f32").bind('K', x.shape[1]).bind('K', w.k).bind('N', w.n)
        .bind('N', out.shape[1]);
    for (int64_t r = group.begin; r < group.end; ++r) {
      const float* in = x.row(groups.x_rows[size_t(r)]);
      for (int64_t n = 0; n < w.n; ++n) {
        float acc = 0;
        for (int64_t k = 0; k < w.k; ++k) {
          const float scale = ue8m0_to_float(w.scales[n * (w.k / kQuantBlock) + k / kQuantBlock]);
          acc = std::fma(e2m1_to_float(nibble(w, n, k)) * scale, in[k], acc);
        }
        out.row(groups.out_rows[size_t(r)])[n] = rounded(acc, rounding);
      }
    }
  }
}

void matmul_bf16(KernelContext&, Matrix<const float> x, const Bf16Matrix& w, Matrix<float> out,
                 Rounding rounding) {
  Dims("matmul_bf16").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('N', w.n).bind('K', w.k)
      .bind('T', out.shape[0]).bind('N', out.shape[1]);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (int64_t n = 0; n < w.n; ++n) {
      float acc = 0;
      for (int64_t k = 0; k < w.k; ++k) {
        acc = std::fma(to_float(w.data[n * w.k + k]), x.row(t)[k], acc);
      }
      out.row(t)[n] = rounded(acc, rounding);
    }
  }
}

}  // namespace millrace::ref
