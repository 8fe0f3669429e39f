#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/ref/ref.h"
#include "kernels/scalar.h"
#include "tensor/dims.h"

namespace millrace::ref {
namespace {

// The scale's code of a block. 255 or, in nvfp4, 0x7f: not finite.
uint8_t block_scale(KeyFormat format, const float* x) {
  const uint32_t largest = amax_bits(x, key_block(format));
  if (format == KeyFormat::kMxfp8) return fp8_block_scale(largest);
  if (largest >= 0x7f800000u) return format == KeyFormat::kNvfp4 ? 0x7f : 255;
  const float amax = std::bit_cast<float>(largest);
  if (format == KeyFormat::kNvfp4) {
    return float_to_e4m3(std::min(std::max(amax, 6 * 0x1p-9f) / 6.0f, 448.0f));
  }
  return ue8m0_ceil(std::max(amax, 6 * 0x1p-126f) / 6.0f);
}

float scale_value(KeyFormat format, uint8_t code) {
  return format == KeyFormat::kNvfp4 ? nvfp4_scale_value(code) : ue8m0_to_float(code);
}

void pack_row(const float* x, int64_t width, KeyFormat format, uint8_t* row) {
  const bool is_fp8 = format == KeyFormat::kMxfp8;
  const int64_t block = key_block(format);
  uint8_t* scales = row + (is_fp8 ? width : width / 2);
  for (int64_t i = 0; i < width; ++i) {
    const uint8_t code = block_scale(format, x + i / block * block);
    const float scale = scale_value(format, code);
    scales[i / block] = code;
    const float scaled = std::isnan(scale) ? 0.0f : x[i] / scale;
    if (is_fp8) {
      row[i] = float_to_e4m3(std::clamp(scaled, -448.0f, 448.0f));
    } else {
      const uint8_t nibble = float_to_e2m1(std::clamp(scaled, -6.0f, 6.0f));
      row[i / 2] = i % 2 == 0 ? nibble : uint8_t(row[i / 2] | nibble << 4);
    }
  }
}

}  // namespace

void unpack_row(KeyFormat format, const std::byte* row, int64_t width, float* out) {
  if (format == KeyFormat::kF32) {
    std::memcpy(out, row, size_t(width) * sizeof(float));
    return;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  const bool is_fp8 = format == KeyFormat::kMxfp8;
  const uint8_t* scales = codes + (is_fp8 ? width : width / 2);
  for (int64_t i = 0; i < width; ++i) {
    const float value =
        is_fp8 ? e4m3_to_float(codes[i]) : e2m1_to_float(codes[i / 2] >> (i % 2 * 4));
    out[i] = value * scale_value(format, scales[i / key_block(format)]);
  }
}

void pack_keys(KernelContext&, Matrix<const float> x, KeyFormat format,
               std::span<std::byte* const> rows) {
  Dims("pack_keys").bind('T', x.shape[0]).bind('T', int64_t(rows.size()));
  MR_CHECK_OP(x.shape[1] % key_block(format), ==, 0);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    std::byte* row = rows[size_t(t)];
    if (format == KeyFormat::kF32) {
      std::memcpy(row, x.row(t), size_t(x.shape[1]) * sizeof(float));
    } else {
      pack_row(x.row(t), x.shape[1], format, reinterpret_cast<uint8_t*>(row));
    }
  }
}

void unpack_keys(KernelContext&, KeyFormat format, std::span<const std::byte* const> rows,
                 Matrix<float> out) {
  Dims("unpack_keys").bind('T', out.shape[0]).bind('T', int64_t(rows.size()));
  MR_CHECK_OP(out.shape[1] % key_block(format), ==, 0);
  for (int64_t t = 0; t < out.shape[0]; ++t) {
    unpack_row(format, rows[size_t(t)], out.shape[1], out.row(t));
  }
}

}  // namespace millrace::ref
