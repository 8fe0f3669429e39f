#include <algorithm>
#include <cmath>

#include "kernels/math.h"
#include "kernels/ref/ref.h"
#include "kernels/scalar.h"
#include "tensor/dims.h"

namespace millrace::ref {

void attention(KernelContext&, TensorView<const float, 3> q, const AttentionKeys& keys,
               std::span<const float> sink, float scale, TensorView<float, 3> out,
               Rounding rounding) {
  const int64_t size = q.shape[2];
  Dims("attention").bind('T', q.shape[0]).bind('H', q.shape[1]).bind('D', size)
      .bind('T', out.shape[0]).bind('H', out.shape[1]).bind('D', out.shape[2])
      .bind('H', int64_t(sink.size())).bind('T', int64_t(keys.window.size()))
      .bind('T', int64_t(keys.block_tables.size())).bind('T', int64_t(keys.num_selected.size()));
  std::vector<const std::byte*> addresses;
  std::vector<float> values;  // [keys, D]
  std::vector<const float*> rows;
  std::vector<float> e;
  for (size_t t = 0; t < size_t(q.shape[0]); ++t) {
    const size_t count = size_t(num_keys(keys, t));
    addresses.resize(count);
    rows.resize(count);
    e.resize(count);
    values.resize(count * size_t(size));
    list_keys(keys, t, size, addresses.data());
    for (size_t j = 0; j < count; ++j) {
      const bool in_window = int64_t(j) < num_window_keys(keys, t);
      float* row = values.data() + j * size_t(size);
      unpack_row(in_window ? keys.window_format : keys.compressed.format, addresses[j], size, row);
      rows[j] = row;
    }
    for (int64_t h = 0; h < q.shape[1]; ++h) {
      const float* query = q.row(t, h);
      float largest = -1e30f;
      for (size_t j = 0; j < rows.size(); ++j) {
        float s = 0;
        for (int64_t d = 0; d < size; ++d) s = std::fma(query[d], rows[j][d], s);
        e[j] = s * scale;
        largest = std::max(largest, e[j]);
      }
      float lanes[16] = {};
      for (size_t j = 0; j < rows.size(); ++j) {
        e[j] = exp_f32(e[j] - largest);
        lanes[j % 16] += e[j];
      }
      const float den = fold_lanes(lanes) + exp_f32(sink[size_t(h)] - largest);
      for (float& weight : e) weight /= den;
      for (int64_t d = 0; d < size; ++d) {
        float acc = 0;
        for (size_t j = 0; j < rows.size(); ++j) acc = std::fma(e[j], rows[j][d], acc);
        out.row(t, h)[d] = rounded(acc, rounding);
      }
    }
  }
}

void compress_pairs(KernelContext&, std::span<const float* const> a,
                    std::span<const float* const> b, Matrix<float> out, Rounding rounding) {
  Dims("compress_pairs").bind('T', int64_t(a.size())).bind('T', int64_t(b.size()))
      .bind('T', 2 * out.shape[0]);
  for (int64_t j = 0; j < out.shape[0]; ++j) {
    const float *a0 = a[size_t(2 * j)], *a1 = a[size_t(2 * j + 1)];
    for (int64_t d = 0; d < out.shape[1]; ++d) {
      const float b0 = b[size_t(2 * j)][d], b1 = b[size_t(2 * j + 1)][d];
      const float largest = std::max(b0, b1);
      const float e0 = exp_f32(b0 - largest), e1 = exp_f32(b1 - largest);
      const float sum = e0 + e1;
      const float acc = std::fma(a1[d], e1 / sum, a0[d] * (e0 / sum));
      out.row(j)[d] = rounded(acc, rounding);
    }
  }
}

void index_scores(KernelContext&, TensorView<const float, 3> q, Matrix<const float> weights,
                  float weight_scale, const PagedRows& keys,
                  std::span<const IndexKeys> wanted, std::span<float* const> scores) {
  const int64_t size = q.shape[2];
  Dims("index_scores").bind('T', q.shape[0]).bind('H', q.shape[1]).bind('D', size)
      .bind('T', weights.shape[0]).bind('H', weights.shape[1])
      .bind('T', int64_t(wanted.size())).bind('T', int64_t(scores.size()));
  MR_CHECK_OP(size % kQuantBlock, ==, 0);
  const int64_t row_bytes = key_row_bytes(keys.format, size);
  std::vector<float> key(static_cast<size_t>(size));
  for (int64_t t = 0; t < q.shape[0]; ++t) {
    const IndexKeys& want = wanted[size_t(t)];
    for (int64_t j = 0; j < want.count; ++j) {
      unpack_row(keys.format, keys.row(want.block_table, want.row(j), row_bytes), size,
                 key.data());
      float score = 0;
      for (int64_t h = 0; h < q.shape[1]; ++h) {
        float dot = 0;
        for (int64_t block = 0; block < size; block += kQuantBlock) {
          float partial = 0;
          for (int64_t d = block; d < block + kQuantBlock; ++d) {
            partial = std::fma(q.row(t, h)[d], key[size_t(d)], partial);
          }
          dot += partial;
        }
        score = std::fma(weights.row(t)[h] * weight_scale, std::max(dot, 0.0f), score);
      }
      scores[size_t(t)][j] = score;
    }
  }
}

}  // namespace millrace::ref
