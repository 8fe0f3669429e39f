#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/keys.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/keys-inl.h"
#include "kernels/cpu/quantize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// Codes of `count` values, each in a byte.
template <class Encode>
HWY_INLINE void encode_block(int64_t count, uint8_t* codes, const Encode& encode) {
  const hn::Rebind<uint8_t, IntTag> bytes;
  for (int64_t i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(IntTag(), encode(i))), bytes, codes + i);
  }
}

HWY_INLINE void store_pairs(const uint8_t* nibbles, int64_t count, uint8_t* codes) {
  for (int64_t i = 0; i < count; i += 2) codes[i / 2] = uint8_t(nibbles[i] | nibbles[i + 1] << 4);
}

HWY_INLINE FloatVector power_of_two(int exponent_code) {
  return hn::Set(FloatTag(), from_bits(uint32_t(exponent_code) << 23));
}

void pack_mxfp8(const float* x, int64_t width, uint8_t* row, bool mutant) {
  for (int64_t at = 0; at < width; at += 32) {
    const uint8_t scale = fp8_block_scale(amax_bits(x + at, 32));
    row[width + at / 32] = scale;
    if (scale == 255) {
      __builtin_memset(row + at, 0, 32);
      continue;
    }
    const FloatVector inverse = power_of_two(254 - scale);
    encode_block(32, row + at, [&](int64_t i) HWY_ATTR {
      return encode_e4m3(hn::Mul(hn::LoadU(FloatTag(), x + at + i), inverse), mutant);
    });
  }
}

void pack_mxfp4(const float* x, int64_t width, uint8_t* row, bool mutant) {
  HWY_ALIGN uint8_t nibbles[32];
  for (int64_t at = 0; at < width; at += 32) {
    const uint32_t largest = amax_bits(x + at, 32);
    if (largest >= kInfinityBits) {
      row[width / 2 + at / 32] = 255;
      __builtin_memset(row + at / 2, 0, 16);
      continue;
    }
    const uint8_t scale = mxfp4_scale(from_bits(largest));
    row[width / 2 + at / 32] = scale;
    const FloatVector inverse = power_of_two(254 - scale);
    encode_block(32, nibbles, [&](int64_t i) HWY_ATTR {
      return encode_e2m1(hn::Mul(hn::LoadU(FloatTag(), x + at + i), inverse), mutant);
    });
    store_pairs(nibbles, 32, row + at / 2);
  }
}

void pack_nvfp4(const float* x, int64_t width, uint8_t* row, bool mutant) {
  HWY_ALIGN uint8_t nibbles[16];
  for (int64_t at = 0; at < width; at += 16) {
    const uint32_t largest = amax_bits(x + at, 16);
    uint8_t& scale_code = row[width / 2 + at / 16];
    if (largest >= kInfinityBits) {
      scale_code = 0x7f;
      __builtin_memset(row + at / 2, 0, 8);
      continue;
    }
    const FloatVector scale = hn::Set(FloatTag(), nvfp4_scale(from_bits(largest)));
    scale_code = uint8_t(hn::GetLane(encode_e4m3(scale, false)));
    encode_block(16, nibbles, [&](int64_t i) HWY_ATTR {
      return encode_e2m1(hn::Div(hn::LoadU(FloatTag(), x + at + i), scale), mutant);
    });
    store_pairs(nibbles, 16, row + at / 2);
  }
}

void pack_keys(KernelContext& ctx, Matrix<const float> x, KeyFormat format,
               std::span<std::byte* const> rows) {
  const int64_t width = x.shape[1];
  Dims("pack_keys").bind('T', x.shape[0]).bind('T', int64_t(rows.size()));
  MR_CHECK_OP(width % key_block(format), ==, 0);
  const bool mutant = mutated("pack_keys");
  each_item(ctx, x.shape[0], 4 * width, [&](int64_t t, int) HWY_ATTR {
    auto* row = reinterpret_cast<uint8_t*>(rows[size_t(t)]);
    switch (format) {
      case KeyFormat::kF32:
        __builtin_memcpy(row, x.row(t), size_t(width) * sizeof(float));
        return;
      case KeyFormat::kMxfp8: return pack_mxfp8(x.row(t), width, row, mutant);
      case KeyFormat::kNvfp4: return pack_nvfp4(x.row(t), width, row, mutant);
      case KeyFormat::kMxfp4: return pack_mxfp4(x.row(t), width, row, mutant);
    }
  });
}

void unpack_keys(KernelContext& ctx, KeyFormat format, std::span<const std::byte* const> rows,
                 Matrix<float> out) {
  Dims("unpack_keys").bind('T', out.shape[0]).bind('T', int64_t(rows.size()));
  MR_CHECK_OP(out.shape[1] % key_block(format), ==, 0);
  each_item(ctx, out.shape[0], 2 * out.shape[1], [&](int64_t t, int) HWY_ATTR {
    unpack_row(format, rows[size_t(t)], out.shape[1], out.row(t));
  });
}

}  // namespace

void add_keys(KernelTable& table) {
  table.pack_keys = pack_keys;
  table.unpack_keys = unpack_keys;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
