#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace millrace {

// How a row of keys is stored: its codes, then its scales. The quantised forms are the published
// ones of the KV cache; their values are those of the fake quantisations of the same names.
// e2m1 codes lie two to a byte, even columns in low nibbles.
enum class KeyFormat : uint8_t {
  kF32,    // D floats
  kMxfp8,  // D e4m3 codes, D / 32 ue8m0 scales; scale 255: a block of NaN
  kNvfp4,  // D e2m1 codes, D / 16 e4m3 scales; scale 0x7f: a block of NaN
  kMxfp4,  // D e2m1 codes, D / 32 ue8m0 scales; scale 255: a block of NaN
};

constexpr int64_t key_block(KeyFormat format) {
  return format == KeyFormat::kF32 ? 1 : format == KeyFormat::kNvfp4 ? 16 : 32;
}

// Requires: width is a multiple of key_block(format).
constexpr int64_t key_row_bytes(KeyFormat format, int64_t width) {
  switch (format) {
    case KeyFormat::kF32: return width * int64_t(sizeof(float));
    case KeyFormat::kMxfp8: return width + width / 32;
    case KeyFormat::kNvfp4: return width / 2 + width / 16;
    case KeyFormat::kMxfp4: return width / 2 + width / 32;
  }
  return 0;
}

// Rows of keys that lie in blocks of a larger memory. Which blocks is the sequence's own affair:
// a table of block ids.
struct PagedRows {
  KeyFormat format = KeyFormat::kF32;
  const std::byte* base = nullptr;  // of the rows of block 0
  int64_t block_bytes = 0;          // from block to block
  int64_t rows_per_block = 1;

  const std::byte* row(const int32_t* block_table, int64_t row, int64_t row_bytes) const {
    return base + block_table[row / rows_per_block] * block_bytes + row % rows_per_block * row_bytes;
  }
};

}  // namespace millrace
