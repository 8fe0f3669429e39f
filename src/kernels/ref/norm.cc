#include <cmath>

#include "kernels/ref/ref.h"
#include "kernels/scalar.h"
#include "tensor/dims.h"

namespace millrace::ref {
namespace {

// sum16 of x[i] * y[i] by fma.
float dot16(const float* x, const float* y, int64_t count) {
  float lanes[16] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i % 16] = std::fma(x[i], y[i], lanes[i % 16]);
  return fold_lanes(lanes);
}

}  // namespace

void rms_norm(KernelContext&, Matrix<const float> x, std::span<const bf16> weight, float eps,
              Matrix<float> out, Rounding rounding) {
  Dims("rms_norm").bind('T', x.shape[0]).bind('D', x.shape[1]).bind('D', int64_t(weight.size()))
      .bind('T', out.shape[0]).bind('D', out.shape[1]);
  const int64_t size = x.shape[1];
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    const float* in = x.row(t);
    const float r = 1.0f / std::sqrt(dot16(in, in, size) / float(size) + eps);
    for (int64_t i = 0; i < size; ++i) {
      out.row(t)[i] = rounded((in[i] * r) * to_float(weight[size_t(i)]), rounding);
    }
  }
}

void rope(KernelContext&, TensorView<float, 3> x, Matrix<const float> cos, Matrix<const float> sin,
          bool inverse, Rounding rounding) {
  Dims("rope").bind('T', x.shape[0]).bind('T', cos.shape[0]).bind('T', sin.shape[0])
      .bind('P', cos.shape[1]).bind('P', sin.shape[1]);
  const int64_t pairs = cos.shape[1];
  MR_CHECK_OP(2 * pairs, <=, x.shape[2]);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      float* tail = x.row(t, h) + x.shape[2] - 2 * pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const float a = tail[2 * i], b = tail[2 * i + 1];
        const float c = cos.row(t)[i], s = inverse ? -sin.row(t)[i] : sin.row(t)[i];
        tail[2 * i] = rounded(std::fma(a, c, -(b * s)), rounding);
        tail[2 * i + 1] = rounded(std::fma(a, s, b * c), rounding);
      }
    }
  }
}

void hc_mixes(KernelContext&, Matrix<const float> streams, const HcWeights& weights,
              const HcParameters& parameters, Matrix<float> pre, Matrix<float> post,
              Matrix<float> comb) {
  const int64_t m = pre.shape[1], size = streams.shape[1];
  Dims("hc_mixes").bind('T', streams.shape[0]).bind('F', size).bind('F', weights.fn.k)
      .bind('T', pre.shape[0]).bind('T', post.shape[0]).bind('T', comb.shape[0]).bind('M', m)
      .bind('M', post.shape[1]).bind('C', comb.shape[1]).bind('C', m * m)
      .bind('R', (2 + m) * m).bind('R', weights.fn.n);
  std::vector<float> mixes(size_t(weights.fn.n));
  for (int64_t t = 0; t < streams.shape[0]; ++t) {
    const float* f = streams.row(t);
    const float r = 1.0f / std::sqrt(dot16(f, f, size) / float(size) + parameters.norm_eps);
    for (int64_t k = 0; k < weights.fn.n; ++k) {
      mixes[size_t(k)] = dot16(f, weights.fn.data + k * size, size) * r;
    }
    finish_hc_mixes(mixes.data(), int(m), weights, parameters, pre.row(t), post.row(t),
                    comb.row(t));
  }
}

void hc_collapse(KernelContext&, Matrix<const float> streams, Matrix<const float> mix,
                 Matrix<float> y, Rounding rounding) {
  const int64_t m = mix.shape[1], size = y.shape[1];
  Dims("hc_collapse").bind('T', streams.shape[0]).bind('F', streams.shape[1]).bind('F', m * size)
      .bind('T', mix.shape[0]).bind('T', y.shape[0]);
  for (int64_t t = 0; t < y.shape[0]; ++t) {
    for (int64_t d = 0; d < size; ++d) {
      float acc = mix.row(t)[0] * streams.row(t)[d];
      for (int64_t i = 1; i < m; ++i) {
        acc = std::fma(mix.row(t)[i], streams.row(t)[i * size + d], acc);
      }
      y.row(t)[d] = rounded(acc, rounding);
    }
  }
}

void hc_expand(KernelContext&, Matrix<const float> y, Matrix<const float> post,
               Matrix<const float> comb, Matrix<float> streams, Rounding rounding) {
  const int64_t m = post.shape[1], size = y.shape[1];
  Dims("hc_expand").bind('T', streams.shape[0]).bind('F', streams.shape[1]).bind('F', m * size)
      .bind('T', y.shape[0]).bind('T', post.shape[0]).bind('T', comb.shape[0])
      .bind('C', comb.shape[1]).bind('C', m * m);
  std::vector<float> old(static_cast<size_t>(m));
  for (int64_t t = 0; t < y.shape[0]; ++t) {
    for (int64_t d = 0; d < size; ++d) {
      for (int64_t i = 0; i < m; ++i) old[size_t(i)] = streams.row(t)[i * size + d];
      for (int64_t j = 0; j < m; ++j) {
        float acc = post.row(t)[j] * y.row(t)[d];
        for (int64_t i = 0; i < m; ++i) acc = std::fma(comb.row(t)[i * m + j], old[size_t(i)], acc);
        streams.row(t)[j * size + d] = rounded(acc, rounding);
      }
    }
  }
}

void hc_mean(KernelContext&, Matrix<const float> streams, int num_streams, Matrix<float> mean,
             Rounding rounding) {
  const int64_t size = mean.shape[1];
  Dims("hc_mean").bind('T', streams.shape[0]).bind('T', mean.shape[0])
      .bind('F', streams.shape[1]).bind('F', num_streams * size);
  for (int64_t t = 0; t < mean.shape[0]; ++t) {
    for (int64_t d = 0; d < size; ++d) {
      float sum = streams.row(t)[d];
      for (int64_t i = 1; i < num_streams; ++i) sum += streams.row(t)[i * size + d];
      mean.row(t)[d] = rounded(sum / float(num_streams), rounding);
    }
  }
}

void gather_fp8(KernelContext&, const Fp8Table& table, Matrix<const int64_t> row_ids,
                Matrix<float> out) {
  Dims("gather_fp8").bind('T', row_ids.shape[0]).bind('T', out.shape[0])
      .bind('W', row_ids.shape[1] * table.width).bind('W', out.shape[1]);
  const int64_t blocks = table.width / kQuantBlock;
  for (int64_t t = 0; t < out.shape[0]; ++t) {
    for (int64_t c = 0; c < row_ids.shape[1]; ++c) {
      const int64_t row = row_ids.row(t)[c];
      MR_CHECK(0 <= row && row < table.rows);
      for (int64_t i = 0; i < table.width; ++i) {
        out.row(t)[c * table.width + i] = e4m3_to_float(table.codes[row * table.width + i]) *
                                          ue8m0_to_float(table.scales[row * blocks + i / kQuantBlock]);
      }
    }
  }
}

void engram_update(KernelContext&, Matrix<const float> key_value, std::span<const bf16> q_weight,
                   std::span<const bf16> k_weight, float eps, std::span<const uint8_t> dead,
                   Matrix<float> streams, Rounding rounding) {
  const int64_t size = key_value.shape[1] - streams.shape[1];
  const int64_t m = streams.shape[1] / size;
  Dims("engram_update").bind('T', key_value.shape[0]).bind('T', streams.shape[0])
      .bind('T', int64_t(dead.size())).bind('F', streams.shape[1]).bind('F', m * size)
      .bind('F', int64_t(q_weight.size())).bind('F', int64_t(k_weight.size()));
  for (int64_t t = 0; t < streams.shape[0]; ++t) {
    if (dead[size_t(t)]) continue;
    const float* value = key_value.row(t) + m * size;
    for (int64_t i = 0; i < m; ++i) {
      float* h = streams.row(t) + i * size;
      const float* key = key_value.row(t) + i * size;
      float lanes[16] = {};
      for (int64_t d = 0; d < size; ++d) {
        const float query = h[d] * to_float(q_weight[size_t(i * size + d)]);
        const float scaled_key = to_float(k_weight[size_t(i * size + d)]) * key[d];
        lanes[d % 16] = std::fma(query, scaled_key, lanes[d % 16]);
      }
      const float gate =
          engram_gate(fold_lanes(lanes), dot16(h, h, size), dot16(key, key, size), size, eps);
      for (int64_t d = 0; d < size; ++d) h[d] = rounded(std::fma(gate, value[d], h[d]), rounding);
    }
  }
}

}  // namespace millrace::ref
