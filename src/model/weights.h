#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/weight_source.h"
#include "kernels/kernels.h"
#include "model_config/layer_map.h"
#include "model_config/model_config.h"
#include "tensor/quantized.h"

// The checkpoint's tensors bound once, by name, into structs. All are views into the
// weight source, which must outlive them. D = hidden_size, hd = head_dim, H = heads.

namespace millrace {

struct CompressorWeights {
  Bf16Matrix wkv;                    // [hd, D]
  std::optional<Bf16Matrix> wgate;   // [hd, D]; absent when compress_ratio == 1
  std::span<const bf16> norm;        // [hd]
  Bf16Matrix index_wk;               // [index_head_dim, hd]
  std::span<const bf16> index_norm;  // [index_head_dim]
};

struct IndexerWeights {
  Fp8Matrix wq_b;           // [index_n_heads * index_head_dim, q_lora_rank]
  Bf16Matrix weights_proj;  // [index_n_heads, D]
};

struct AttentionWeights {
  Fp8Matrix wq_a;                // [q_lora_rank, D]
  std::span<const bf16> q_norm;  // [q_lora_rank]
  Fp8Matrix wq_b;                // [H * hd, q_lora_rank]
  Fp8Matrix wkv;                 // [hd, D]
  std::span<const bf16> kv_norm; // [hd]
  Fp8Matrix wo_a;                // [o_groups * o_lora_rank, H / o_groups * hd]
  Fp8Matrix wo_b;                // [D, o_groups * o_lora_rank]
  std::span<const float> sink;   // [H]
  std::optional<CompressorWeights> compressor;  // KV sources
  std::optional<IndexerWeights> indexer;        // index sources
};

struct MoeWeights {
  Bf16Matrix gate;                 // [n_routed_experts, D]
  std::span<const float> bias;     // [n_routed_experts]
  std::span<const float> bias_vl;  // [n_routed_experts], at image positions
  Fp8Matrix shared_w1, shared_w3;  // [moe_intermediate_size, D]
  Fp8Matrix shared_w2;             // [D, moe_intermediate_size]
};

struct EngramWeights {
  Fp8Table embed;                    // [rows, engram_head_dim]
  Fp8Matrix wkv;                     // [(hc_mult + 1) * D, columns * engram_head_dim]
  std::span<const bf16> q_weight;    // [hc_mult * D]
  std::span<const bf16> k_weight;    // [hc_mult * D]
};

// A backbone layer or a draft stage.
struct BlockWeights {
  std::span<const bf16> attn_norm, ffn_norm;  // [D]
  HcWeights hc_attn, hc_ffn;
  AttentionWeights attention;
  MoeWeights moe;
  std::optional<EngramWeights> engram;
};

// DSpark: what the draft stages have besides their blocks.
struct DraftWeights {
  std::vector<BlockWeights> stages;
  Fp8Matrix main_proj;              // [D, number of target layers * D]
  std::span<const bf16> main_norm;  // [D]
  std::span<const bf16> norm;       // [D]
  Bf16Matrix markov_embed;          // [vocab_size, markov_rank]
  Bf16Matrix markov_head;           // [vocab_size, markov_rank]
  Bf16Matrix confidence;            // [1, D + markov_rank]
};

struct ModelWeights {
  Bf16Matrix embed;            // [vocab_size, D]
  Bf16Matrix head;             // [vocab_size, D]
  std::span<const bf16> norm;  // [D]
  std::vector<BlockWeights> layers;
  std::optional<DraftWeights> draft;

  // Fails with the name of the first tensor that is missing or misshapen.
  static Result<ModelWeights> bind(const ModelConfig& config, const WeightSource& source);
};

}  // namespace millrace
