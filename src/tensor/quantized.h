#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

// Weight matrices [N, K] (outputs, inputs) as the release stores them, and quantised activations.
// All are views: the mapped checkpoint or a workspace owns the bytes.

namespace millrace {

inline constexpr int64_t kQuantBlock = 32;  // columns (and, for dense fp8, rows) under one scale

// Weight [n][k] = e4m3(codes[n][k]) * 2^(scales[(row_phase + n) / 32][k / 32] - 127).
struct Fp8Matrix {
  const uint8_t* codes = nullptr;   // [N, K]
  const uint8_t* scales = nullptr;  // [ceil((row_phase + N) / 32), ceil(K / 32)] ue8m0
  int64_t n = 0, k = 0;
  int64_t row_phase = 0;  // where row 0 stands inside its block of 32 rows: 0 but for slices

  constexpr int64_t scale_columns() const { return (k + kQuantBlock - 1) / kQuantBlock; }
  constexpr const uint8_t* scale_row(int64_t row) const {
    return scales + (row_phase + row) / kQuantBlock * scale_columns();
  }
  // Outputs [begin, end) as a matrix of their own.
  Fp8Matrix slice(int64_t begin, int64_t end) const {
    return {codes + begin * k, scale_row(begin), end - begin, k, (row_phase + begin) % kQuantBlock};
  }
};

// Weight [n][k] = e2m1(nibble k of row n) * 2^(scales[n][k / 32] - 127); even columns in low
// nibbles. K is a multiple of 32.
struct Fp4Matrix {
  const uint8_t* codes = nullptr;   // [N, K / 2]
  const uint8_t* scales = nullptr;  // [N, K / 32] ue8m0
  int64_t n = 0, k = 0;
};

struct Bf16Matrix {
  const bf16* data = nullptr;  // [N, K]
  int64_t n = 0, k = 0;
};

struct F32Matrix {
  const float* data = nullptr;  // [N, K]
  int64_t n = 0, k = 0;
};

// A table of rows with one scale per row per 32 columns (Engram embeddings).
struct Fp8Table {
  const uint8_t* codes = nullptr;   // [rows, width]
  const uint8_t* scales = nullptr;  // [rows, width / 32] ue8m0
  int64_t rows = 0, width = 0;
};

// Quantised activations: value [t][k] = e4m3(codes) * 2^(scales[t][k / 32] - 127).
template <class Byte>
struct Fp8RowsOf {
  Matrix<Byte> codes;   // [T, K]
  Matrix<Byte> scales;  // [T, K / 32]
  operator Fp8RowsOf<const Byte>() const
    requires(!std::is_const_v<Byte>)
  {
    return {codes, scales};
  }
};
using Fp8Rows = Fp8RowsOf<const uint8_t>;
using MutableFp8Rows = Fp8RowsOf<uint8_t>;

}  // namespace millrace
