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
      .bind('H', int64_t(sink.size())).bind('D', keys.window.shape[1])
      .bind('T', int64_t(keys.window_begin.size())).bind('T', int64_t(keys.window_count.size()))
      .bind('S', q.shape[0] + 1).bind('S', int64_t(keys.selected_begin.size()));
  std::vector<const float*> rows;
  std::vector<float> e;
  for (size_t t = 0; t < size_t(q.shape[0]); ++t) {
    rows.clear();
    for (int32_t j = 0; j < keys.window_count[t]; ++j) {
      rows.push_back(keys.window.row(keys.window_begin[t] + j));
    }
    for (int64_t s = keys.selected_begin[t]; s < keys.selected_begin[t + 1]; ++s) {
      rows.push_back(keys.compressed.row(keys.selected[size_t(s)]));
    }
    e.resize(rows.size());
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

void compress_pairs(KernelContext&, Matrix<const float> a, Matrix<const float> b,
                    Matrix<float> out, Rounding rounding) {
  Dims("compress_pairs").bind('T', a.shape[0]).bind('D', a.shape[1]).bind('T', b.shape[0])
      .bind('D', b.shape[1]).bind('T', 2 * out.shape[0]).bind('D', out.shape[1]);
  for (int64_t j = 0; j < out.shape[0]; ++j) {
    for (int64_t d = 0; d < out.shape[1]; ++d) {
      const float b0 = b.row(2 * j)[d], b1 = b.row(2 * j + 1)[d];
      const float largest = std::max(b0, b1);
      const float e0 = exp_f32(b0 - largest), e1 = exp_f32(b1 - largest);
      const float sum = e0 + e1;
      const float acc = std::fma(a.row(2 * j + 1)[d], e1 / sum, a.row(2 * j)[d] * (e0 / sum));
      out.row(j)[d] = rounded(acc, rounding);
    }
  }
}

void index_scores(KernelContext&, TensorView<const float, 3> q, Matrix<const float> weights,
                  Matrix<const float> keys, std::span<const int64_t> num_visible,
                  Matrix<float> scores) {
  const int64_t size = q.shape[2];
  Dims("index_scores").bind('T', q.shape[0]).bind('H', q.shape[1]).bind('D', size)
      .bind('T', weights.shape[0]).bind('H', weights.shape[1]).bind('D', keys.shape[1])
      .bind('T', int64_t(num_visible.size())).bind('T', scores.shape[0]);
  MR_CHECK_OP(size % kQuantBlock, ==, 0);
  for (int64_t t = 0; t < q.shape[0]; ++t) {
    MR_CHECK_OP(num_visible[size_t(t)], <=, scores.shape[1]);
    for (int64_t j = 0; j < num_visible[size_t(t)]; ++j) {
      float score = 0;
      for (int64_t h = 0; h < q.shape[1]; ++h) {
        float dot = 0;
        for (int64_t block = 0; block < size; block += kQuantBlock) {
          float partial = 0;
          for (int64_t d = block; d < block + kQuantBlock; ++d) {
            partial = std::fma(q.row(t, h)[d], keys.row(j)[d], partial);
          }
          dot += partial;
        }
        score = std::fma(weights.row(t)[h], std::max(dot, 0.0f), score);
      }
      scores.row(t)[j] = score;
    }
  }
}

}  // namespace millrace::ref
