#include <algorithm>

#include "kernels/math.h"
#include "kernels/ref/ref.h"
#include "kernels/scalar.h"
#include "tensor/dims.h"

namespace millrace::ref {

void route(KernelContext&, Matrix<const float> logits, std::span<const float* const> bias,
           float scaling, bool normalize, Matrix<int32_t> experts, Matrix<float> weights) {
  Dims("route").bind('T', logits.shape[0]).bind('T', int64_t(bias.size()))
      .bind('T', experts.shape[0]).bind('k', experts.shape[1]).bind('T', weights.shape[0])
      .bind('k', weights.shape[1]);
  MR_CHECK_OP(experts.shape[1], <=, logits.shape[1]);
  for (int64_t t = 0; t < logits.shape[0]; ++t) {
    const size_t k = size_t(experts.shape[1]);
    route_token({logits.row(t), size_t(logits.shape[1])}, bias[size_t(t)], scaling, normalize,
                {experts.row(t), k}, {weights.row(t), k});
  }
}

void swiglu(KernelContext&, Matrix<const float> gate, Matrix<const float> up,
            std::span<const float> weight, float limit, Matrix<float> z, Rounding rounding) {
  Dims("swiglu").bind('T', gate.shape[0]).bind('F', gate.shape[1]).bind('T', up.shape[0])
      .bind('F', up.shape[1]).bind('T', int64_t(weight.size())).bind('T', z.shape[0])
      .bind('F', z.shape[1]);
  for (int64_t t = 0; t < z.shape[0]; ++t) {
    for (int64_t i = 0; i < z.shape[1]; ++i) {
      const float g = std::min(gate.row(t)[i], limit);
      const float u = std::clamp(up.row(t)[i], -limit, limit);
      z.row(t)[i] = rounded(((weight[size_t(t)] * g) / (1.0f + exp_f32(-g))) * u, rounding);
    }
  }
}

void combine_experts(KernelContext&, TensorView<const float, 3> expert_out,
                     Matrix<const float> shared, Matrix<float> out, Rounding rounding) {
  Dims("combine_experts").bind('T', expert_out.shape[0]).bind('D', expert_out.shape[2])
      .bind('T', shared.shape[0]).bind('D', shared.shape[1]).bind('T', out.shape[0])
      .bind('D', out.shape[1]);
  for (int64_t t = 0; t < out.shape[0]; ++t) {
    for (int64_t d = 0; d < out.shape[1]; ++d) {
      float acc = expert_out.row(t, 0)[d];
      for (int64_t slot = 1; slot < expert_out.shape[1]; ++slot) acc += expert_out.row(t, slot)[d];
      out.row(t)[d] = rounded(acc + shared.row(t)[d], rounding);
    }
  }
}

}  // namespace millrace::ref
