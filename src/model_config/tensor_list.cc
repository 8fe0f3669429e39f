#include "model_config/tensor_list.h"

#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "model_config/layer_map.h"

namespace millrace {
namespace {

constexpr int64_t kBlock = 32;  // columns, and rows of dense fp8, under one scale

struct DtypeInfo {
  std::string_view name;
  int64_t bytes;
};
// In the order of the enumeration.
constexpr DtypeInfo kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},
};
static_assert(std::size(kDtypes) == size_t(Dtype::kF64) + 1);

constexpr std::string_view kPartNames[] = {
    "embedding",     "head",          "norm",         "hyper-connection", "attention",
    "compressor",    "indexer",       "engram table", "engram",           "router",
    "shared expert", "routed expert", "draft",        "vision",
};
static_assert(std::size(kPartNames) == size_t(kNumTensorParts));

// Adds tensors below a name prefix.
class Builder {
 public:
  Builder(std::vector<TensorSpec>& list, std::string prefix, int64_t layer)
      : list_(list), prefix_(std::move(prefix)), layer_(layer) {}

  void plain(TensorPart part, std::string_view name, Dtype dtype, std::vector<int64_t> shape) {
    std::string full;
    full.reserve(prefix_.size() + name.size());
    full.append(prefix_).append(name);
    list_.push_back({std::move(full), dtype, std::move(shape), part, layer_});
  }
  void bf16(TensorPart part, std::string_view name, std::vector<int64_t> shape) {
    plain(part, name, Dtype::kBF16, std::move(shape));
  }
  void f32(TensorPart part, std::string_view name, std::vector<int64_t> shape) {
    plain(part, name, Dtype::kF32, std::move(shape));
  }

  // Dense fp8 [n, k] under one scale per 32 x 32 block.
  void fp8(TensorPart part, const std::string& name, int64_t n, int64_t k) {
    plain(part, name + ".weight", Dtype::kF8E4M3, {n, k});
    plain(part, name + ".scale", Dtype::kF8E8M0,
          {(n + kBlock - 1) / kBlock, (k + kBlock - 1) / kBlock});
  }
  // fp4 [n, k], two codes to a byte, under one scale per row and 32 columns.
  void fp4(TensorPart part, const std::string& name, int64_t n, int64_t k) {
    plain(part, name + ".weight", Dtype::kI8, {n, k / 2});
    plain(part, name + ".scale", Dtype::kF8E8M0, {n, k / kBlock});
  }
  // fp8 rows [n, k] under one scale per row and 32 columns.
  void fp8_table(TensorPart part, const std::string& name, int64_t n, int64_t k) {
    plain(part, name + ".weight", Dtype::kF8E4M3, {n, k});
    plain(part, name + ".scale", Dtype::kF8E8M0, {n, k / kBlock});
  }

 private:
  std::vector<TensorSpec>& list_;
  const std::string prefix_;
  const int64_t layer_;
};

// A weight and its bias, as the vision tower has them.
void add_biased(Builder& add, const std::string& name, int64_t n, int64_t k) {
  add.bf16(TensorPart::kVision, name + ".weight", {n, k});
  add.bf16(TensorPart::kVision, name + ".bias", {n});
}

// What every backbone layer and every draft stage has.
void add_block(Builder& add, const ModelConfig& c, int64_t num_experts) {
  using enum TensorPart;
  const int64_t hidden = c.hidden_size;
  const int64_t inner = c.moe_intermediate_size;
  add.bf16(kNorm, "attn_norm.weight", {hidden});
  add.bf16(kNorm, "ffn_norm.weight", {hidden});
  for (const char* sublayer : {"attn", "ffn"}) {
    add.f32(kHyperConnection, format("hc_", sublayer, "_fn"),
            {c.hc_num_mixes(), c.hc_mult * hidden});
    add.f32(kHyperConnection, format("hc_", sublayer, "_base"), {c.hc_num_mixes()});
    add.f32(kHyperConnection, format("hc_", sublayer, "_scale"), {3});
  }

  const int64_t heads_dim = c.num_attention_heads * c.head_dim;
  add.f32(kAttention, "attn.attn_sink", {c.num_attention_heads});
  add.fp8(kAttention, "attn.wq_a", c.q_lora_rank, hidden);
  add.bf16(kAttention, "attn.q_norm.weight", {c.q_lora_rank});
  add.fp8(kAttention, "attn.wq_b", heads_dim, c.q_lora_rank);
  add.fp8(kAttention, "attn.wkv", c.head_dim, hidden);
  add.bf16(kAttention, "attn.kv_norm.weight", {c.head_dim});
  add.fp8(kAttention, "attn.wo_a", c.o_groups * c.o_lora_rank, heads_dim / c.o_groups);
  add.fp8(kAttention, "attn.wo_b", hidden, c.o_groups * c.o_lora_rank);

  add.bf16(kRouter, "ffn.gate.weight", {num_experts, hidden});
  add.f32(kRouter, "ffn.gate.bias", {num_experts});
  add.f32(kRouter, "ffn.gate.bias_vl", {num_experts});
  add.fp8(kSharedExpert, "ffn.shared_experts.w1", inner, hidden);
  add.fp8(kSharedExpert, "ffn.shared_experts.w2", hidden, inner);
  add.fp8(kSharedExpert, "ffn.shared_experts.w3", inner, hidden);
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const std::string prefix = "ffn.experts." + std::to_string(expert);
    add.fp4(kRoutedExpert, prefix + ".w1", inner, hidden);
    add.fp4(kRoutedExpert, prefix + ".w2", hidden, inner);
    add.fp4(kRoutedExpert, prefix + ".w3", inner, hidden);
  }
}

void add_layer(std::vector<TensorSpec>& list, const ModelConfig& c, int64_t l,
               const LayerInfo& layer) {
  using enum TensorPart;
  Builder add(list, format("layers.", l, "."), l);
  add_block(add, c, c.n_routed_experts);
  if (layer.owns_compressor) {
    add.bf16(kCompressor, "attn.compressor.wkv.weight", {c.head_dim, c.hidden_size});
    if (layer.compress_ratio > 1) {
      add.bf16(kCompressor, "attn.compressor.wgate.weight", {c.head_dim, c.hidden_size});
    }
    add.bf16(kCompressor, "attn.compressor.norm.weight", {c.head_dim});
    add.bf16(kIndexer, "attn.indexer.wk.weight", {c.index_head_dim, c.head_dim});
    add.bf16(kIndexer, "attn.indexer.k_norm.weight", {c.index_head_dim});
  }
  if (layer.owns_index) {
    add.fp8(kIndexer, "attn.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
    add.bf16(kIndexer, "attn.indexer.weights_proj.weight", {c.index_n_heads, c.hidden_size});
  }
  if (layer.has_engram()) {
    add.fp8_table(kEngramTable, "engram.embed", c.engram_num_embeddings[size_t(layer.engram_table)],
                  c.engram_head_dim);
    add.fp8(kEngram, "engram.wkv", c.hidden_size * (c.hc_mult + 1),
            c.engram_num_columns() * c.engram_head_dim);
    add.bf16(kEngram, "engram.q_weight", {c.hc_mult, c.hidden_size});
    add.bf16(kEngram, "engram.k_weight", {c.hc_mult, c.hidden_size});
  }
}

void add_draft(std::vector<TensorSpec>& list, const ModelConfig& c) {
  using enum TensorPart;
  const int64_t num_stages = c.num_nextn_predict_layers;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    Builder add(list, format("mtp.", stage, "."), c.num_hidden_layers + stage);
    add_block(add, c, c.dspark_n_routed_experts);
    if (stage == 0) {
      add.fp8(kDraft, "main_proj", c.hidden_size,
              c.hidden_size * int64_t(c.dspark_target_layer_ids.size()));
      add.bf16(kNorm, "main_norm.weight", {c.hidden_size});
    }
    if (stage == num_stages - 1) {
      add.bf16(kNorm, "norm.weight", {c.hidden_size});
      add.bf16(kDraft, "markov_head.embed.weight", {c.vocab_size, c.dspark_markov_rank});
      add.bf16(kDraft, "markov_head.head.weight", {c.vocab_size, c.dspark_markov_rank});
      add.bf16(kDraft, "confidence_head.proj.weight", {1, c.hidden_size + c.dspark_markov_rank});
    }
  }
}

void add_vision(std::vector<TensorSpec>& list, const VisionConfig& v, int64_t text_hidden) {
  using enum TensorPart;
  Builder add(list, "", -1);
  add_biased(add, "vision.patch_embed.proj", v.hidden_size, v.patch_size * v.patch_size * 3);
  for (int64_t l = 0; l < v.num_hidden_layers; ++l) {
    const std::string block = format("vision.blocks.", l, ".");
    add.bf16(kVision, block + "norm1.weight", {v.hidden_size});
    add.bf16(kVision, block + "norm2.weight", {v.hidden_size});
    add_biased(add, block + "attn.wqkv", 3 * v.hidden_size, v.hidden_size);
    add_biased(add, block + "attn.wo", v.hidden_size, v.hidden_size);
    add.bf16(kVision, block + "mlp.w1.weight", {2 * v.intermediate_size, v.hidden_size});
    add.bf16(kVision, block + "mlp.w2.weight", {v.hidden_size, v.intermediate_size});
  }
  add.bf16(kVision, "vision.norm.weight", {v.hidden_size});
  add_biased(add, "aligner.w1", text_hidden,
             v.hidden_size * v.downsample_ratio * v.downsample_ratio);
  add_biased(add, "aligner.w2", text_hidden, text_hidden);
  for (const char* name : {"image_start", "image_end", "image_newline"}) {
    add.bf16(kVision, name, {text_hidden});
  }
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[size_t(dtype)].name; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kDtypes); ++i) {
    if (kDtypes[i].name == name) return Dtype(i);
  }
  return std::nullopt;
}

int64_t dtype_bytes(Dtype dtype) { return kDtypes[size_t(dtype)].bytes; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

std::string_view part_name(TensorPart part) { return kPartNames[size_t(part)]; }

int64_t TensorSpec::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

int64_t TensorSpec::parameters() const {
  if (dtype == Dtype::kF8E8M0) return 0;
  return dtype == Dtype::kI8 ? 2 * elements() : elements();
}

std::vector<TensorSpec> tensor_list(const ModelConfig& c) {
  using enum TensorPart;
  std::vector<TensorSpec> list;
  Builder top(list, "", -1);
  top.bf16(kEmbedding, "embed.weight", {c.vocab_size, c.hidden_size});
  top.bf16(kHead, "head.weight", {c.vocab_size, c.hidden_size});
  top.bf16(kNorm, "norm.weight", {c.hidden_size});
  const std::vector<LayerInfo> layers = layer_map(c);
  for (size_t l = 0; l < layers.size(); ++l) add_layer(list, c, int64_t(l), layers[l]);
  add_draft(list, c);
  if (c.vision_config.has_value()) add_vision(list, *c.vision_config, c.hidden_size);
  return list;
}

}  // namespace millrace
