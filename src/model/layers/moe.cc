#include "model/layers/moe.h"

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

// Where each token sends its rows: chosen experts ascending, with their weights.
struct Routes {
  Matrix<int32_t> experts;  // [T, k]
  Matrix<float> weights;    // [T, k]
};

Routes make_routes(LayerContext& ctx, const MoeWeights& weights, int64_t k, Matrix<const float> x,
                   std::span<const RowKind> kinds) {
  const int64_t rows = x.shape[0];
  const Matrix<float> logits = linear(ctx, x, weights.gate, Rounding::kNone);
  const std::span<const float*> bias = ctx.list<const float*>(rows);
  for (size_t t = 0; t < bias.size(); ++t) {
    bias[t] = kinds[t] == RowKind::kImage ? weights.bias_vl.data() : weights.bias.data();
  }
  const Routes routes{ctx.matrix<int32_t>(rows, k), ctx.matrix(rows, k)};
  ctx.kernels.route(ctx.kernel_context, logits, bias, float(ctx.config.routed_scaling_factor),
                    ctx.config.norm_topk_prob && k > 1, routes.experts, routes.weights);
  return routes;
}

// Activations as the expert products take them: fp8 codes in reference numerics, floats in fp32.
class ExpertInput {
 public:
  ExpertInput(LayerContext& ctx, Matrix<const float> x) : ctx_(ctx), x_(x) {
    if (ctx.numerics == Numerics::kFp32) return;
    const int64_t rows = x.shape[0], k = x.shape[1], blocks = k / kQuantBlock;
    const MutableFp8Rows quantised{ctx.matrix<uint8_t>(rows, k),
                                   ctx.matrix<uint8_t>(rows, blocks)};
    ctx.kernels.quantize_fp8(ctx.kernel_context, x, quantised);
    fp8_ = quantised;
  }

  void multiply(const RowGroups& groups, Matrix<float> out) const {
    if (ctx_.numerics == Numerics::kFp32) {
      ctx_.kernels.matmul_fp4_f32(ctx_.kernel_context, x_, groups, out, Rounding::kNone);
    } else {
      ctx_.kernels.matmul_fp4(ctx_.kernel_context, fp8_, groups, out, Rounding::kBf16);
    }
  }

 private:
  LayerContext& ctx_;
  Matrix<const float> x_;
  Fp8Rows fp8_;  // empty in fp32 numerics
};

Matrix<float> activate(LayerContext& ctx, Matrix<const float> gate, Matrix<const float> up,
                       std::span<const float> weight) {
  const Matrix<float> z = ctx.matrix(gate.shape[0], gate.shape[1]);
  ctx.kernels.swiglu(ctx.kernel_context, gate, up, weight, float(ctx.config.swiglu_limit), z,
                     ctx.rounding());
  return z;
}

Matrix<float> shared_expert(LayerContext& ctx, const MoeWeights& weights, Matrix<const float> x) {
  const Matrix<const float> in = ctx.linear_input(x);
  const std::span<float> one = ctx.list<float>(x.shape[0]);
  std::fill(one.begin(), one.end(), 1.0f);
  const Matrix<float> z = activate(ctx, linear(ctx, in, weights.shared_w1),
                                   linear(ctx, in, weights.shared_w3), one);
  return linear(ctx, ctx.linear_input(z), weights.shared_w2);
}

// (token, slot) pairs in order of expert; tokens ascending within one.
struct ByExpert {
  std::span<int32_t> experts;  // that have rows
  std::span<int64_t> begin;    // [experts + 1] where their rows begin
  std::span<int32_t> tokens;   // [R]
  std::span<int32_t> slots;    // [R] token * k + slot
  std::span<float> weights;    // [R]
};

ByExpert make_by_expert(LayerContext& ctx, int64_t num_experts, int64_t num_rows) {
  return {ctx.list<int32_t>(num_experts), ctx.list<int64_t>(num_experts + 1),
          ctx.list<int32_t>(num_rows), ctx.list<int32_t>(num_rows), ctx.list<float>(num_rows)};
}

ByExpert group_by_expert(LayerContext& ctx, const Routes& routes, int64_t num_experts,
                         std::span<const RowKind> kinds) {
  const int64_t k = routes.experts.shape[1];
  const auto next = ctx.list<int64_t>(num_experts + 1);  // row of the expert's next pair
  std::fill(next.begin(), next.end(), 0);
  for (size_t t = 0; t < kinds.size(); ++t) {
    if (kinds[t] == RowKind::kPad) continue;
    const int32_t* chosen = routes.experts.row(int64_t(t));
    for (int64_t slot = 0; slot < k; ++slot) ++next[size_t(chosen[slot]) + 1];
  }
  const auto is_used = [&](size_t e) { return next[e + 1] > 0; };
  int64_t num_used = 0;
  for (size_t e = 0; e < size_t(num_experts); ++e) num_used += is_used(e);
  const int64_t num_rows = std::accumulate(next.begin(), next.end(), int64_t{0});
  const ByExpert groups = make_by_expert(ctx, num_used, num_rows);
  size_t used = 0;
  for (size_t e = 0; e < size_t(num_experts); ++e) {
    if (is_used(e)) {
      groups.experts[used] = int32_t(e);
      groups.begin[used++] = next[e];
    }
    next[e + 1] += next[e];
  }
  groups.begin[used] = num_rows;
  for (size_t t = 0; t < kinds.size(); ++t) {
    if (kinds[t] == RowKind::kPad) continue;
    for (int64_t slot = 0; slot < k; ++slot) {
      const size_t row = size_t(next[size_t(routes.experts.row(int64_t(t))[slot])]++);
      groups.tokens[row] = int32_t(t);
      groups.slots[row] = int32_t(int64_t(t) * k + slot);
      groups.weights[row] = routes.weights.row(int64_t(t))[slot];
    }
  }
  return groups;
}

void count(const ByExpert& groups, int64_t expert_layer, ExpertCounts* counts) {
  if (counts == nullptr) return;
  for (size_t i = 0; i < groups.experts.size(); ++i) {
    counts->add(expert_layer, groups.experts[i], groups.begin[i + 1] - groups.begin[i]);
  }
}

// The pairs of those experts that can be read.
ByExpert pairs_of(LayerContext& ctx, const ByExpert& all, std::span<const LoadedExpert> loaded) {
  int64_t num_rows = 0;
  for (const LoadedExpert& expert : loaded) {
    num_rows += all.begin[size_t(expert.idx) + 1] - all.begin[size_t(expert.idx)];
  }
  const ByExpert part = make_by_expert(ctx, int64_t(loaded.size()), num_rows);
  size_t row = 0;
  for (size_t i = 0; i < loaded.size(); ++i) {
    const size_t from = size_t(loaded[i].idx);
    const size_t begin = size_t(all.begin[from]), count = size_t(all.begin[from + 1]) - begin;
    part.experts[i] = all.experts[from];
    part.begin[i] = int64_t(row);
    std::copy_n(&all.tokens[begin], count, &part.tokens[row]);
    std::copy_n(&all.slots[begin], count, &part.slots[row]);
    std::copy_n(&all.weights[begin], count, &part.weights[row]);
    row += count;
  }
  part.begin[loaded.size()] = num_rows;
  return part;
}

// Multiplies the inputs of these experts' rows, and writes every result where its pair says.
void run_experts(LayerContext& ctx, const ByExpert& pairs, std::span<const LoadedExpert> loaded,
                 const ExpertInput& input, Matrix<float> expert_out) {
  const int64_t num_rows = int64_t(pairs.tokens.size()), inner = ctx.config.moe_intermediate_size;
  const std::span<int32_t> rows = ctx.list<int32_t>(num_rows);
  std::iota(rows.begin(), rows.end(), 0);
  const auto product = [&](const ExpertInput& in, Fp4Matrix ExpertWeights::*matrix,
                           std::span<const int32_t> x_rows, std::span<const int32_t> out_rows,
                           Matrix<float> to) {
    const auto groups = ctx.list<RowGroups::Group>(int64_t(loaded.size()));
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i] = {loaded[i].weights->*matrix, pairs.begin[i], pairs.begin[i + 1]};
    }
    in.multiply({groups, x_rows, out_rows}, to);
  };
  const Matrix<float> gate = ctx.matrix(num_rows, inner), up = ctx.matrix(num_rows, inner);
  product(input, &ExpertWeights::w1, pairs.tokens, rows, gate);
  product(input, &ExpertWeights::w3, pairs.tokens, rows, up);
  const ExpertInput z(ctx, activate(ctx, gate, up, pairs.weights));
  product(z, &ExpertWeights::w2, rows, pairs.slots, expert_out);
}

}  // namespace

Result<Matrix<float>> moe(LayerContext& ctx, const MoeWeights& weights, ExpertSource& experts,
                          int64_t expert_layer, int64_t experts_per_token, Matrix<const float> x,
                          std::span<const RowKind> kinds) {
  const int64_t rows = x.shape[0], k = experts_per_token, width = x.shape[1];
  const Routes routes = make_routes(ctx, weights, k, x, kinds);
  if (ctx.trace != nullptr) {
    ctx.trace->add(ctx.trace_prefix + "ffn.experts", Matrix<const int32_t>(routes.experts));
  }
  const ByExpert groups = group_by_expert(ctx, routes, weights.gate.n, kinds);
  count(groups, expert_layer, ctx.expert_counts);
  ExpertLease lease = experts.acquire(expert_layer, groups.experts);
  const Matrix<float> out = ctx.matrix(rows, width);
  const Matrix<float> shared = shared_expert(ctx, weights, x);
  const ExpertInput input(ctx, x);
  // Outputs stay apart per (token, slot), so that their sum has one order however they arrive.
  const Matrix<float> expert_out = ctx.matrix(rows * k, width);
  for (size_t t = 0; t < kinds.size(); ++t) {
    if (kinds[t] == RowKind::kPad) std::fill_n(expert_out.row(int64_t(t) * k), k * width, 0.0f);
  }
  for (;;) {
    ASSIGN_OR_RETURN(const std::span<const LoadedExpert> loaded, lease.next());
    if (loaded.empty()) break;
    const Arena::Scope scope(ctx.arena);
    run_experts(ctx, pairs_of(ctx, groups, loaded), loaded, input, expert_out);
  }
  ctx.kernels.combine_experts(ctx.kernel_context, {expert_out.data, {rows, k, width}}, shared, out,
                              ctx.rounding());
  return out;
}

}  // namespace millrace
