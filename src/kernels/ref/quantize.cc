#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/ref/ref.h"
#include "kernels/scalar.h"
#include "tensor/dims.h"

namespace millrace::ref {

uint32_t amax_bits(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  return largest;
}

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool is_finite(uint32_t magnitude_bits) { return magnitude_bits < 0x7f800000u; }

void fp4_block(float* x, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) {
    x[i] = e2m1_to_float(float_to_e2m1(std::clamp(x[i] / scale, -6.0f, 6.0f))) * scale;
  }
}

}  // namespace

void quantize_fp8(KernelContext&, Matrix<const float> x, MutableFp8Rows out) {
  Dims("quantize_fp8").bind('T', x.shape[0]).bind('K', x.shape[1]).bind('T', out.codes.shape[0])
      .bind('K', out.codes.shape[1]).bind('T', out.scales.shape[0])
      .bind('B', out.scales.shape[1]).bind('B', x.shape[1] / kQuantBlock);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (int64_t block = 0; block < x.shape[1] / kQuantBlock; ++block) {
      const float* in = x.row(t) + block * kQuantBlock;
      uint8_t* codes = out.codes.row(t) + block * kQuantBlock;
      const uint8_t code = fp8_block_scale(amax_bits(in, kQuantBlock));
      out.scales.row(t)[block] = code;
      for (int64_t i = 0; i < kQuantBlock; ++i) {
        codes[i] = code == 255 ? uint8_t{0}
                               : float_to_e4m3(std::clamp(in[i] / ue8m0_to_float(code), -448.0f, 448.0f));
      }
    }
  }
}

void fake_quantize_fp8(KernelContext&, Matrix<float> x) {
  MR_CHECK_OP(x.shape[1] % kQuantBlock, ==, 0);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (float* block = x.row(t); block < x.row(t) + x.shape[1]; block += kQuantBlock) {
      const uint8_t code = fp8_block_scale(amax_bits(block, kQuantBlock));
      const float scale = ue8m0_to_float(code);
      for (int64_t i = 0; i < kQuantBlock; ++i) {
        block[i] = code == 255 ? kNaN
                               : e4m3_to_float(float_to_e4m3(std::clamp(block[i] / scale, -448.0f, 448.0f))) * scale;
      }
    }
  }
}

void fake_quantize_mxfp4(KernelContext&, Matrix<float> x) {
  MR_CHECK_OP(x.shape[1] % kQuantBlock, ==, 0);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (float* block = x.row(t); block < x.row(t) + x.shape[1]; block += kQuantBlock) {
      const uint32_t largest = amax_bits(block, kQuantBlock);
      if (!is_finite(largest)) {
        std::fill(block, block + kQuantBlock, kNaN);
        continue;
      }
      const float amax = std::max(std::bit_cast<float>(largest), 6 * 0x1p-126f);
      fp4_block(block, kQuantBlock, ue8m0_to_float(ue8m0_ceil(amax / 6.0f)));
    }
  }
}

}  // namespace millrace::ref
