#include "model/layers/moe.h"

#include <algorithm>

namespace millrace {
namespace {

// Where each token sends its rows: chosen experts ascending, with their weights.
struct Routes {
  Matrix<int32_t> experts;  // [T, k]
  Matrix<float> weights;    // [T, k]
};

Routes make_routes(LayerContext& ctx, const MoeWeights& weights, int64_t k, Matrix<const float> x,
                   std::span<const uint8_t> is_image) {
  const int64_t rows = x.shape[0];
  const Matrix<float> logits = linear(ctx, x, weights.gate, Rounding::kNone);
  const std::span<const float*> bias(ctx.arena.allocate<const float*>(rows), size_t(rows));
  for (size_t t = 0; t < bias.size(); ++t) {
    bias[t] = is_image[t] ? weights.bias_vl.data() : weights.bias.data();
  }
  const Routes routes{{ctx.arena.allocate<int32_t>(rows * k), {rows, k}}, ctx.matrix(rows, k)};
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
    const MutableFp8Rows quantised{{ctx.arena.allocate<uint8_t>(rows * k), {rows, k}},
                                   {ctx.arena.allocate<uint8_t>(rows * blocks), {rows, blocks}}};
    ctx.kernels.quantize_fp8(ctx.kernel_context, x, quantised);
    fp8_ = quantised;
  }

  // The rows of the given tokens, side by side.
  ExpertInput gather(std::span<const int32_t> tokens) const {
    ExpertInput part(ctx_);
    part.x_ = gather(x_, tokens);
    part.fp8_ = {gather(fp8_.codes, tokens), gather(fp8_.scales, tokens)};
    return part;
  }

  Matrix<float> times(const Fp4Matrix& w) const {
    if (ctx_.numerics == Numerics::kFp32) {
      const Matrix<float> out = ctx_.matrix(x_.shape[0], w.n);
      ctx_.kernels.matmul_fp4_f32(ctx_.kernel_context, x_, w, out, Rounding::kNone);
      return out;
    }
    const Matrix<float> out = ctx_.matrix(fp8_.codes.shape[0], w.n);
    ctx_.kernels.matmul_fp4(ctx_.kernel_context, fp8_, w, out, Rounding::kBf16);
    return out;
  }

 private:
  explicit ExpertInput(LayerContext& ctx) : ctx_(ctx) {}

  template <class T>
  Matrix<const T> gather(Matrix<const T> from, std::span<const int32_t> tokens) const {
    if (from.data == nullptr) return {};
    const int64_t width = from.shape[1];
    const Matrix<T> to(ctx_.arena.allocate<T>(int64_t(tokens.size()) * width),
                       {int64_t(tokens.size()), width});
    for (size_t i = 0; i < tokens.size(); ++i) std::copy_n(from.row(tokens[i]), width, to.row(i));
    return to;
  }

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
  const std::span<float> one(ctx.arena.allocate<float>(x.shape[0]), size_t(x.shape[0]));
  std::fill(one.begin(), one.end(), 1.0f);
  const Matrix<float> z = activate(ctx, linear(ctx, in, weights.shared_w1),
                                   linear(ctx, in, weights.shared_w3), one);
  return linear(ctx, ctx.linear_input(z), weights.shared_w2);
}

// The (token, slot) pairs of a call in order of expert: slots[begin[e] .. begin[e + 1]) are
// expert e's, tokens ascending.
struct ByExpert {
  std::span<int32_t> slots;  // token * k + slot
  std::span<int64_t> begin;  // [E + 1]
};

ByExpert group_by_expert(LayerContext& ctx, Matrix<const int32_t> experts, int64_t num_experts) {
  const int64_t count = experts.size();
  const ByExpert groups{{ctx.arena.allocate<int32_t>(count), size_t(count)},
                        {ctx.arena.allocate<int64_t>(num_experts + 1), size_t(num_experts) + 1}};
  std::fill(groups.begin.begin(), groups.begin.end(), 0);
  for (int64_t i = 0; i < count; ++i) ++groups.begin[size_t(experts.data[i]) + 1];
  for (size_t e = 1; e < groups.begin.size(); ++e) groups.begin[e] += groups.begin[e - 1];
  const std::span<int64_t> next(ctx.arena.allocate<int64_t>(num_experts), size_t(num_experts));
  std::copy_n(groups.begin.begin(), num_experts, next.begin());
  for (int64_t i = 0; i < count; ++i) {
    groups.slots[size_t(next[size_t(experts.data[i])]++)] = int32_t(i);
  }
  return groups;
}

}  // namespace

Result<Matrix<float>> moe(LayerContext& ctx, const MoeWeights& weights, ExpertSource& experts,
                          int64_t expert_layer, int64_t experts_per_token, Matrix<const float> x,
                          std::span<const uint8_t> is_image) {
  const int64_t rows = x.shape[0], k = experts_per_token, width = x.shape[1];
  const Routes routes = make_routes(ctx, weights, k, x, is_image);
  if (ctx.trace != nullptr) {
    ctx.trace->add(ctx.trace_prefix + "ffn.experts", Matrix<const int32_t>(routes.experts));
  }
  const ByExpert groups = group_by_expert(ctx, routes.experts, weights.gate.n);
  std::vector<int32_t> wanted;
  for (int32_t e = 0; e < weights.gate.n; ++e) {
    if (groups.begin[size_t(e)] < groups.begin[size_t(e) + 1]) wanted.push_back(e);
  }
  ExpertLease lease = experts.acquire(expert_layer, wanted);
  const Matrix<float> out = ctx.matrix(rows, width);
  const Matrix<float> shared = shared_expert(ctx, weights, x);
  const ExpertInput input(ctx, x);
  // Outputs stay apart per (token, slot), so that their sum has one order however they arrive.
  const TensorView<float, 3> expert_out(ctx.arena.allocate<float>(rows * k * width),
                                        {rows, k, width});
  ASSIGN_OR_RETURN(const std::span<const ExpertWeights> loaded, lease.wait());
  std::vector<int32_t> tokens;
  std::vector<float> row_weight;
  for (int32_t e : wanted) {
    const Arena::Scope scope(ctx.arena);
    const std::span<const int32_t> slots = groups.slots.subspan(
        size_t(groups.begin[size_t(e)]),
        size_t(groups.begin[size_t(e) + 1] - groups.begin[size_t(e)]));
    tokens.clear();
    row_weight.clear();
    for (int32_t slot : slots) {
      tokens.push_back(int32_t(slot / k));
      row_weight.push_back(routes.weights.data[slot]);
    }
    const ExpertWeights& expert = loaded[size_t(e)];
    const ExpertInput in = input.gather(tokens);
    const Matrix<float> z = activate(ctx, in.times(expert.w1), in.times(expert.w3), row_weight);
    const Matrix<float> y = ExpertInput(ctx, z).times(expert.w2);
    for (size_t i = 0; i < slots.size(); ++i) {
      std::copy_n(y.row(i), width, expert_out.data + slots[i] * width);
    }
  }
  ctx.kernels.combine_experts(ctx.kernel_context, expert_out, shared, out, ctx.rounding());
  return out;
}

}  // namespace millrace
