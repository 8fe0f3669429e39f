#include "kernels/ref/ref.h"

namespace millrace {

const KernelTable& ref_kernels() {
  static constexpr KernelTable kTable = {
      .name = "ref",
      .matmul_fp8 = ref::matmul_fp8,
      .matmul_fp4 = ref::matmul_fp4,
      .matmul_fp4_f32 = ref::matmul_fp4_f32,
      .matmul_bf16 = ref::matmul_bf16,
      .quantize_fp8 = ref::quantize_fp8,
      .fake_quantize_fp8 = ref::fake_quantize_fp8,
      .fake_quantize_mxfp4 = ref::fake_quantize_mxfp4,
      .pack_keys = ref::pack_keys,
      .unpack_keys = ref::unpack_keys,
      .rms_norm = ref::rms_norm,
      .rope = ref::rope,
      .hc_mixes = ref::hc_mixes,
      .hc_collapse = ref::hc_collapse,
      .hc_expand = ref::hc_expand,
      .hc_mean = ref::hc_mean,
      .attention = ref::attention,
      .compress_pairs = ref::compress_pairs,
      .index_scores = ref::index_scores,
      .gather_fp8 = ref::gather_fp8,
      .engram_update = ref::engram_update,
      .route = ref::route,
      .swiglu = ref::swiglu,
      .combine_experts = ref::combine_experts,
  };
  return kTable;
}

}  // namespace millrace
