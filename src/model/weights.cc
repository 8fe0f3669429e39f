#include "model/weights.h"

#include <string>

#include "base/format.h"

namespace millrace {
namespace {

// Looks tensors up under one prefix and remembers the first failure, so that binding reads as a
// list of names.
class Binder {
 public:
  Binder(const WeightSource& source, std::string prefix)
      : source_(source), prefix_(std::move(prefix)) {}

  Fp8Matrix fp8(const char* name) { return take(source_.fp8_matrix(prefix_ + name)); }
  Fp8Table table(const char* name) { return take(source_.fp8_table(prefix_ + name)); }
  Bf16Matrix bf16_matrix(const char* name) { return take(source_.bf16_matrix(prefix_ + name)); }
  std::span<const bf16> bf16_vector(const char* name) {
    return take(source_.bf16_vector(prefix_ + name));
  }
  // A matrix whose rows are used one after the other.
  std::span<const bf16> bf16_rows(const char* name) {
    const Bf16Matrix m = bf16_matrix(name);
    return {m.data, size_t(m.n * m.k)};
  }
  F32Matrix f32_matrix(const char* name) { return take(source_.f32_matrix(prefix_ + name)); }
  std::span<const float> f32_vector(const char* name) {
    return take(source_.f32_vector(prefix_ + name));
  }

  Status status() const { return status_; }

 private:
  template <class T>
  T take(Result<T> found) {
    if (found.has_value()) return found.value();
    if (status_.ok()) status_ = found.error();
    return T{};
  }

  const WeightSource& source_;
  std::string prefix_;
  Status status_;
};

HcWeights bind_hc(Binder& in, const char* fn, const char* scale, const char* base) {
  return {in.f32_matrix(fn), in.f32_vector(scale), in.f32_vector(base)};
}

AttentionWeights bind_attention(Binder& in, const LayerInfo& layer) {
  AttentionWeights w{.wq_a = in.fp8("attn.wq_a"),
                     .q_norm = in.bf16_vector("attn.q_norm.weight"),
                     .wq_b = in.fp8("attn.wq_b"),
                     .wkv = in.fp8("attn.wkv"),
                     .kv_norm = in.bf16_vector("attn.kv_norm.weight"),
                     .wo_a = in.fp8("attn.wo_a"),
                     .wo_b = in.fp8("attn.wo_b"),
                     .sink = in.f32_vector("attn.attn_sink"),
                     .compressor = {},
                     .indexer = {}};
  if (layer.owns_compressor) {
    w.compressor = CompressorWeights{
        .wkv = in.bf16_matrix("attn.compressor.wkv.weight"),
        .wgate = {},
        .norm = in.bf16_vector("attn.compressor.norm.weight"),
        .index_wk = in.bf16_matrix("attn.indexer.wk.weight"),
        .index_norm = in.bf16_vector("attn.indexer.k_norm.weight")};
    if (layer.compress_ratio > 1) {
      w.compressor->wgate = in.bf16_matrix("attn.compressor.wgate.weight");
    }
  }
  if (layer.owns_index) {
    w.indexer = IndexerWeights{in.fp8("attn.indexer.wq_b"),
                               in.bf16_matrix("attn.indexer.weights_proj.weight")};
  }
  return w;
}

MoeWeights bind_moe(Binder& in) {
  return {.gate = in.bf16_matrix("ffn.gate.weight"),
          .bias = in.f32_vector("ffn.gate.bias"),
          .bias_vl = in.f32_vector("ffn.gate.bias_vl"),
          .shared_w1 = in.fp8("ffn.shared_experts.w1"),
          .shared_w3 = in.fp8("ffn.shared_experts.w3"),
          .shared_w2 = in.fp8("ffn.shared_experts.w2")};
}

Result<BlockWeights> bind_block(const WeightSource& source, const std::string& prefix,
                                const LayerInfo& layer) {
  Binder in(source, prefix);
  BlockWeights w{.attn_norm = in.bf16_vector("attn_norm.weight"),
                 .ffn_norm = in.bf16_vector("ffn_norm.weight"),
                 .hc_attn = bind_hc(in, "hc_attn_fn", "hc_attn_scale", "hc_attn_base"),
                 .hc_ffn = bind_hc(in, "hc_ffn_fn", "hc_ffn_scale", "hc_ffn_base"),
                 .attention = bind_attention(in, layer),
                 .moe = bind_moe(in),
                 .engram = {}};
  if (layer.has_engram()) {
    w.engram = EngramWeights{in.table("engram.embed"), in.fp8("engram.wkv"),
                             in.bf16_rows("engram.q_weight"), in.bf16_rows("engram.k_weight")};
  }
  RETURN_IF_ERROR(in.status());
  return w;
}

Result<DraftWeights> bind_draft(const ModelConfig& config, const WeightSource& source) {
  DraftWeights w;
  for (int64_t s = 0; s < config.num_nextn_predict_layers; ++s) {
    ASSIGN_OR_RETURN(BlockWeights stage, bind_block(source, format("mtp.", s, "."), LayerInfo{}));
    w.stages.push_back(std::move(stage));
  }
  Binder first(source, "mtp.0.");
  w.main_proj = first.fp8("main_proj");
  w.main_norm = first.bf16_vector("main_norm.weight");
  RETURN_IF_ERROR(first.status());
  Binder last(source, format("mtp.", config.num_nextn_predict_layers - 1, "."));
  w.norm = last.bf16_vector("norm.weight");
  w.markov_embed = last.bf16_matrix("markov_head.embed.weight");
  w.markov_head = last.bf16_matrix("markov_head.head.weight");
  w.confidence = last.bf16_matrix("confidence_head.proj.weight");
  RETURN_IF_ERROR(last.status());
  return w;
}

}  // namespace

Result<ModelWeights> ModelWeights::bind(const ModelConfig& config, const WeightSource& source) {
  ModelWeights w;
  Binder top(source, "");
  w.embed = top.bf16_matrix("embed.weight");
  w.head = top.bf16_matrix("head.weight");
  w.norm = top.bf16_vector("norm.weight");
  RETURN_IF_ERROR(top.status());
  const std::vector<LayerInfo> layers = layer_map(config);
  for (size_t i = 0; i < layers.size(); ++i) {
    ASSIGN_OR_RETURN(BlockWeights block, bind_block(source, format("layers.", i, "."), layers[i]));
    w.layers.push_back(std::move(block));
  }
  if (config.num_nextn_predict_layers > 0) {
    ASSIGN_OR_RETURN(w.draft, bind_draft(config, source));
  }
  return w;
}

}  // namespace millrace
