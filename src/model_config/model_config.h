#pragma once

// What a checkpoint's config.json says about the model, checked once: the rest of the program
// trusts these numbers, divides by them and sizes its memory with them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

// YaRN's stretch of the rotary frequencies of compressed layers.
struct RopeScaling {
  double factor = 0;
  double beta_fast = 0;
  double beta_slow = 0;
  int64_t original_max_position_embeddings = 0;
};

struct QuantizationConfig {
  std::string quant_method;
  std::string scale_fmt;
  std::string expert_dtype;
  std::vector<int64_t> weight_block_size;  // {rows, columns}
};

// The part of vision_config that decides which tensors the checkpoint holds. The vision tower
// itself is not run.
struct VisionConfig {
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t patch_size = 0;
  int64_t downsample_ratio = 0;
};

// Fields repeat config.json's spelling; those of text_config stand beside the top-level ones.
struct ModelConfig {
  // Top level.
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;
  int64_t image_token_id = -1;  // -1: no token stands for an image
  QuantizationConfig quantization_config;
  std::optional<VisionConfig> vision_config;

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;

  // Attention.
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 1;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t sliding_window = 0;
  double rope_theta = 0;           // layers without compressed rows, and the draft stages
  double compress_rope_theta = 0;  // layers with them, stretched by rope_scaling
  RopeScaling rope_scaling;

  // Compressed rows, their index and the candidate filter. compress_ratios has one entry per
  // layer and draft stage.
  std::vector<int64_t> compress_ratios;
  std::vector<int64_t> kv_source_layer_ids;
  std::vector<int64_t> index_source_layer_ids;
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = -1;  // -1: no filter
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;

  // Experts.
  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 1;
  int64_t num_experts_per_tok = 0;
  int64_t num_hash_layers = 0;
  double swiglu_limit = 0;
  double routed_scaling_factor = 0;
  double gate_temp = 1;
  bool norm_topk_prob = true;

  // Hyper-connections.
  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;

  // Engram. Without layers the other fields stay 0.
  std::vector<int64_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // rows of each layer's table
  int64_t engram_max_ngram_size = 0;
  int64_t engram_vocab_size = 0;
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int64_t engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;

  // Draft stages. Without stages the other fields stay 0.
  int64_t num_nextn_predict_layers = 0;
  int64_t dspark_block_size = 0;
  int64_t dspark_noise_token_id = 0;
  std::vector<int64_t> dspark_target_layer_ids;
  int64_t dspark_markov_rank = 0;
  int64_t dspark_n_routed_experts = 0;
  int64_t dspark_num_experts_per_tok = 0;

  // Rows gathered per token and Engram layer: one per n-gram length from 2 and head.
  int64_t engram_num_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  // Outputs of one hyper-connection mix: pre and post weights and the combination matrix.
  int64_t hc_num_mixes() const { return hc_mult * (2 + hc_mult); }
};

// Reads config.json: the nested form, or the flat one with the reference's own names. Unknown
// fields are ignored. The result is complete. Messages name the key, what was found and what was
// expected.
Result<ModelConfig> parse_model_config(std::string_view json);

// Fills what follows from other fields (entries of compress_ratios for draft stages,
// engram_num_embeddings) and checks every rule between them, with limits that keep all products
// of sizes below 2^62. Everything else in the program takes a config that passed this.
Status complete(ModelConfig& config);

}  // namespace millrace
