#include "kernels/cpu/targets.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// 1 / sqrt(sum / size + eps), the scalar end of every root mean square.
HWY_INLINE float inverse_rms(float sum, int64_t size, float eps) {
  return 1.0f / std::sqrt(sum / float(size) + eps);
}

void rms_norm(KernelContext& ctx, Matrix<const float> x, std::span<const bf16> weight, float eps,
              Matrix<float> out, Rounding rounding) {
  const int64_t size = x.shape[1];
  Dims("rms_norm").bind('T', x.shape[0]).bind('D', size).bind('D', int64_t(weight.size()))
      .bind('T', out.shape[0]).bind('D', out.shape[1]);
  const bool swapped = mutated("rms_norm");
  each_item(ctx, x.shape[0], 3 * size, [&](int64_t t, int) HWY_ATTR {
    const float* in = x.row(t);
    LaneSum squares;
    each_sixteen(0, size, swapped, [&](auto access, int r, int64_t i) HWY_ATTR {
      const FloatVector v = access.load(in + i);
      squares.add(access, r, v, v);
    });
    const FloatVector r = hn::Set(FloatTag(), inverse_rms(squares.fold(), size, eps));
    each_vector(0, size, [&](auto access, int64_t i) HWY_ATTR {
      const FloatVector scaled = hn::Mul(access.load(in + i), r);
      const FloatVector y = hn::Mul(scaled, access.load(weight.data() + i));
      access.store(rounded(y, rounding), out.row(t) + i);
    });
  });
}

void rope(KernelContext& ctx, TensorView<float, 3> x, Matrix<const float> cos,
          Matrix<const float> sin, bool inverse, Rounding rounding) {
  const int64_t pairs = cos.shape[1];
  Dims("rope").bind('T', x.shape[0]).bind('T', cos.shape[0]).bind('T', sin.shape[0])
      .bind('P', pairs).bind('P', sin.shape[1]);
  MR_CHECK_OP(2 * pairs, <=, x.shape[2]);
  const bool mutant = mutated("rope");
  each_item(ctx, x.shape[0] * x.shape[1], 2 * pairs, [&](int64_t item, int) HWY_ATTR {
    const int64_t t = item / x.shape[1], h = item % x.shape[1];
    float* tail = x.row(t, h) + x.shape[2] - 2 * pairs;
    each_vector(0, pairs, [&](auto access, int64_t i) HWY_ATTR {
      FloatVector a, b;
      access.load_pairs(tail + 2 * i, a, b);
      const FloatVector c = access.load(cos.row(t) + i), sine = access.load(sin.row(t) + i);
      const FloatVector s = inverse ? hn::Neg(sine) : sine;
      const FloatVector even = mutant ? fused_multiply_add(hn::Neg(b), s, hn::Mul(a, c))
                                      : fused_multiply_add(a, c, hn::Neg(hn::Mul(b, s)));
      const FloatVector odd = fused_multiply_add(a, s, hn::Mul(b, c));
      access.store_pairs(rounded(even, rounding), rounded(odd, rounding), tail + 2 * i);
    });
  });
}

// ---- Hyper-connections. The long dots of hc_mixes: every weight row of `fn` with every token's
// streams, in blocks of tokens by columns that stay in the cache, lanes kept between blocks.

constexpr int64_t kTokenBlock = 16, kColumnBlock = 1024;
constexpr int64_t kDotRows = 3, kDotTokens = 2;  // held in registers at once

// lanes[t * lane_stride + k * 16 ...] of kTokens x kRows lane sums += the columns [begin, end).
// Not inlined: it uses every register, and a caller would keep one.
template <int kTokens, int kRows>
HWY_NOINLINE void add_dots(Matrix<const float> streams, int64_t token, const float* fn,
                           int64_t begin, int64_t end, bool swapped, float* lanes,
                           int64_t lane_stride) {
  LaneSum sums[kTokens][kRows];
  const float* f[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    f[t] = streams.row(token + t);
    for (int k = 0; k < kRows; ++k) sums[t][k].load(lanes + t * lane_stride + k * 16);
  }
  const int64_t size = streams.shape[1];
  each_sixteen(begin, end, swapped, [&](auto access, int r, int64_t i) HWY_ATTR {
    FloatVector x[kTokens];
    for (int t = 0; t < kTokens; ++t) x[t] = access.load(f[t] + i);
    for (int k = 0; k < kRows; ++k) {
      const FloatVector w = access.load(fn + k * size + i);
      for (int t = 0; t < kTokens; ++t) sums[t][k].add(access, r, x[t], w);
    }
  });
  for (int t = 0; t < kTokens; ++t) {
    for (int k = 0; k < kRows; ++k) sums[t][k].store(lanes + t * lane_stride + k * 16);
  }
}

// The same for one row of any number of tokens' own squares.
void add_squares(Matrix<const float> streams, int64_t token, int64_t begin, int64_t end,
                 float* lanes) {
  LaneSum sum;
  sum.load(lanes);
  const float* f = streams.row(token);
  each_sixteen(begin, end, false, [&](auto access, int r, int64_t i) HWY_ATTR {
    const FloatVector v = access.load(f + i);
    sum.add(access, r, v, v);
  });
  sum.store(lanes);
}

template <int kTokens>
void add_rows(Matrix<const float> streams, int64_t token, const F32Matrix& fn, int64_t row_begin,
              int64_t row_end, int64_t begin, int64_t end, bool swapped, float* lanes,
              int64_t lane_stride) {
  int64_t k = row_begin;
  for (; k + kDotRows <= row_end; k += kDotRows) {
    add_dots<kTokens, kDotRows>(streams, token, fn.data + k * fn.k, begin, end, swapped,
                                lanes + k * 16, lane_stride);
  }
  for (; k < row_end; ++k) {
    add_dots<kTokens, 1>(streams, token, fn.data + k * fn.k, begin, end, swapped, lanes + k * 16,
                         lane_stride);
  }
}

void hc_mixes(KernelContext& ctx, Matrix<const float> streams, const HcWeights& weights,
              const HcParameters& parameters, Matrix<float> pre, Matrix<float> post,
              Matrix<float> comb) {
  const int64_t m = pre.shape[1], size = streams.shape[1], tokens = streams.shape[0];
  const int64_t rows = weights.fn.n;
  Dims("hc_mixes").bind('T', tokens).bind('F', size).bind('F', weights.fn.k)
      .bind('T', pre.shape[0]).bind('T', post.shape[0]).bind('T', comb.shape[0]).bind('M', m)
      .bind('M', post.shape[1]).bind('C', comb.shape[1]).bind('C', m * m)
      .bind('R', (2 + m) * m).bind('R', rows);
  const bool swapped = mutated("hc_mixes");
  // Per token: the lanes of each row of fn, then those of the squares. One thread's scratch, which
  // all threads fill; the next region reads it.
  const int64_t lane_stride = (rows + 1) * 16;
  float* lanes = ctx.scratch<float>(0, tokens * lane_stride);
  // With few tokens the rows of fn are split too; the squares are one more row group.
  const int64_t token_blocks = (tokens + kTokenBlock - 1) / kTokenBlock;
  const int64_t row_groups =
      token_blocks >= ctx.pool().num_threads() ? 1 : (rows + kDotRows - 1) / kDotRows;
  const int64_t group_rows = row_groups == 1 ? rows : kDotRows;
  const int64_t cost = size * (row_groups == 1 ? rows * kTokenBlock : tokens * kDotRows);
  each_item(ctx, token_blocks * (row_groups + 1), cost, [&](int64_t item, int) HWY_ATTR {
    const int64_t token_begin = item / (row_groups + 1) * kTokenBlock;
    const int64_t token_end =
        token_begin + kTokenBlock < tokens ? token_begin + kTokenBlock : tokens;
    const int64_t group = item % (row_groups + 1);
    const bool is_squares = group == row_groups;
    const int64_t row_begin = is_squares ? rows : group * group_rows;
    const int64_t row_end = is_squares                        ? rows + 1
                            : row_begin + group_rows < rows ? row_begin + group_rows
                                                              : rows;
    for (int64_t t = token_begin; t < token_end; ++t) {
      for (int64_t i = row_begin * 16; i < row_end * 16; ++i) lanes[t * lane_stride + i] = 0;
    }
    for (int64_t begin = 0; begin < size; begin += kColumnBlock) {
      const int64_t end = begin + kColumnBlock < size ? begin + kColumnBlock : size;
      int64_t t = token_begin;
      if (is_squares) {
        for (; t < token_end; ++t) {
          add_squares(streams, t, begin, end, lanes + t * lane_stride + rows * 16);
        }
        continue;
      }
      const bool swap_here = swapped && begin == 0;
      for (; t + kDotTokens <= token_end; t += kDotTokens) {
        add_rows<kDotTokens>(streams, t, weights.fn, row_begin, row_end, begin, end, swap_here,
                             lanes + t * lane_stride, lane_stride);
      }
      for (; t < token_end; ++t) {
        add_rows<1>(streams, t, weights.fn, row_begin, row_end, begin, end, swap_here,
                    lanes + t * lane_stride, lane_stride);
      }
    }
  });
  // The scalar end of a token, with Sinkhorn's iterations, takes as long as 30,000 elements.
  each_item(ctx, tokens, 30000, [&](int64_t t, int) HWY_ATTR {
    float* token_lanes = lanes + t * lane_stride;
    const float r = inverse_rms(fold_lanes(token_lanes + rows * 16), size, parameters.norm_eps);
    // Row k's mix goes where the lanes of rows up to k were.
    for (int64_t k = 0; k < rows; ++k) token_lanes[k] = fold_lanes(token_lanes + k * 16) * r;
    finish_hc_mixes(token_lanes, int(m), weights, parameters, pre.row(t), post.row(t),
                    comb.row(t));
  });
}

void hc_collapse(KernelContext& ctx, Matrix<const float> streams, Matrix<const float> mix,
                 Matrix<float> y, Rounding rounding) {
  const int64_t m = mix.shape[1], size = y.shape[1];
  Dims("hc_collapse").bind('T', streams.shape[0]).bind('F', streams.shape[1]).bind('F', m * size)
      .bind('T', mix.shape[0]).bind('T', y.shape[0]);
  const bool swapped = mutated("hc_collapse");
  each_piece(ctx, y.shape[0], size, m + 1, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    const float* h = streams.row(t);
    each_vector(begin, end, [&](auto access, int64_t d) HWY_ATTR {
      const FloatTag tag;
      FloatVector acc = hn::Mul(hn::Set(tag, mix.row(t)[0]), access.load(h + d));
      for (int64_t n = 1; n < m; ++n) {
        const int64_t i = nth(n, m, swapped);
        acc = fused_multiply_add(hn::Set(tag, mix.row(t)[i]), access.load(h + i * size + d), acc);
      }
      access.store(rounded(acc, rounding), y.row(t) + d);
    });
  });
}

void hc_expand(KernelContext& ctx, Matrix<const float> y, Matrix<const float> post,
               Matrix<const float> comb, Matrix<float> streams, Rounding rounding) {
  const int64_t m = post.shape[1], size = y.shape[1];
  Dims("hc_expand").bind('T', streams.shape[0]).bind('F', streams.shape[1]).bind('F', m * size)
      .bind('T', y.shape[0]).bind('T', post.shape[0]).bind('T', comb.shape[0])
      .bind('C', comb.shape[1]).bind('C', m * m);
  constexpr int64_t kMaxStreams = 16;
  MR_CHECK_OP(m, <=, kMaxStreams);
  const bool swapped = mutated("hc_expand");
  const int64_t cost = (m + 1) * (m + 1);
  each_piece(ctx, y.shape[0], size, cost, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    float* h = streams.row(t);
    each_vector(begin, end, [&](auto access, int64_t d) HWY_ATTR {
      const FloatTag tag;
      FloatVector old[kMaxStreams];
      for (int64_t i = 0; i < m; ++i) old[i] = access.load(h + i * size + d);
      const FloatVector added = access.load(y.row(t) + d);
      for (int64_t j = 0; j < m; ++j) {
        FloatVector acc = hn::Mul(hn::Set(tag, post.row(t)[j]), added);
        for (int64_t n = 0; n < m; ++n) {
          const int64_t i = nth(n, m, swapped);
          acc = fused_multiply_add(hn::Set(tag, comb.row(t)[i * m + j]), old[i], acc);
        }
        access.store(rounded(acc, rounding), h + j * size + d);
      }
    });
  });
}

void hc_mean(KernelContext& ctx, Matrix<const float> streams, int num_streams, Matrix<float> mean,
             Rounding rounding) {
  const int64_t m = num_streams, size = mean.shape[1];
  Dims("hc_mean").bind('T', streams.shape[0]).bind('T', mean.shape[0])
      .bind('F', streams.shape[1]).bind('F', m * size);
  const bool swapped = mutated("hc_mean");
  each_piece(ctx, mean.shape[0], size, m + 1, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    const float* h = streams.row(t);
    each_vector(begin, end, [&](auto access, int64_t d) HWY_ATTR {
      FloatVector sum = access.load(h + d);
      for (int64_t n = 1; n < m; ++n) {
        sum = hn::Add(sum, access.load(h + nth(n, m, swapped) * size + d));
      }
      sum = hn::Div(sum, hn::Set(FloatTag(), float(m)));
      access.store(rounded(sum, rounding), mean.row(t) + d);
    });
  });
}

}  // namespace

void add_norm(KernelTable& table) {
  table.rms_norm = rms_norm;
  table.rope = rope;
  table.hc_mixes = hc_mixes;
  table.hc_collapse = hc_collapse;
  table.hc_expand = hc_expand;
  table.hc_mean = hc_mean;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
