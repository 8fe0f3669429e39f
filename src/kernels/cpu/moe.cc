#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/moe.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// Tokens side by side; each as the reference does it.
void route(KernelContext& ctx, Matrix<const float> logits, std::span<const float* const> bias,
           float scaling, bool normalize, Matrix<int32_t> experts, Matrix<float> weights) {
  Dims("route").bind('T', logits.shape[0]).bind('T', int64_t(bias.size()))
      .bind('T', experts.shape[0]).bind('k', experts.shape[1]).bind('T', weights.shape[0])
      .bind('k', weights.shape[1]);
  MR_CHECK_OP(experts.shape[1], <=, logits.shape[1]);
  const size_t num_experts = size_t(logits.shape[1]), k = size_t(experts.shape[1]);
  const bool mutant = mutated("route");
  constexpr int64_t kSoftplusCost = 64;  // elements that could be touched meanwhile
  each_item(ctx, logits.shape[0], int64_t(num_experts) * kSoftplusCost, [&](int64_t t, int) {
    route_token({logits.row(t), num_experts}, bias[size_t(mutant ? 0 : t)], scaling, normalize,
                {experts.row(t), k}, {weights.row(t), k});
  });
}

void swiglu(KernelContext& ctx, Matrix<const float> gate, Matrix<const float> up,
            std::span<const float> weight, float limit, Matrix<float> z, Rounding rounding) {
  Dims("swiglu").bind('T', gate.shape[0]).bind('F', gate.shape[1]).bind('T', up.shape[0])
      .bind('F', up.shape[1]).bind('T', int64_t(weight.size())).bind('T', z.shape[0])
      .bind('F', z.shape[1]);
  const bool mutant = mutated("swiglu");
  each_piece(ctx, z.shape[0], z.shape[1], 8, [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    const FloatTag d;
    const FloatVector high = hn::Set(d, limit), low = hn::Set(d, -limit);
    const FloatVector one = hn::Set(d, 1.0f), w = hn::Set(d, weight[size_t(t)]);
    each_vector(begin, end, [&](auto access, int64_t i) HWY_ATTR {
      // Selections, not minima and maxima: those of a NaN differ between targets.
      FloatVector g = access.load(gate.row(t) + i), u = access.load(up.row(t) + i);
      g = hn::IfThenElse(hn::Gt(g, high), high, g);
      u = hn::IfThenElse(hn::Gt(u, high), high, hn::IfThenElse(hn::Lt(u, low), low, u));
      const FloatVector denominator = hn::Add(one, exp_lanes(hn::Neg(g)));
      const FloatVector y = mutant ? hn::Mul(hn::Mul(w, hn::Div(g, denominator)), u)
                                   : hn::Mul(hn::Div(hn::Mul(w, g), denominator), u);
      access.store(rounded(y, rounding), z.row(t) + i);
    });
  });
}

void combine_experts(KernelContext& ctx, TensorView<const float, 3> expert_out,
                     Matrix<const float> shared, Matrix<float> out, Rounding rounding) {
  const int64_t slots = expert_out.shape[1];
  Dims("combine_experts").bind('T', expert_out.shape[0]).bind('D', expert_out.shape[2])
      .bind('T', shared.shape[0]).bind('D', shared.shape[1]).bind('T', out.shape[0])
      .bind('D', out.shape[1]);
  const bool swapped = mutated("combine_experts");
  each_piece(ctx, out.shape[0], out.shape[1], slots + 2,
             [&](int64_t t, int64_t begin, int64_t end) HWY_ATTR {
    each_vector(begin, end, [&](auto access, int64_t d) HWY_ATTR {
      FloatVector acc = access.load(expert_out.row(t, 0) + d);
      for (int64_t n = 1; n < slots; ++n) {
        acc = hn::Add(acc, access.load(expert_out.row(t, nth(n, slots, swapped)) + d));
      }
      acc = hn::Add(acc, access.load(shared.row(t) + d));
      access.store(rounded(acc, rounding), out.row(t) + d);
    });
  });
}

}  // namespace

void add_moe(KernelTable& table) {
  table.route = route;
  table.swiglu = swiglu;
  table.combine_experts = combine_experts;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
