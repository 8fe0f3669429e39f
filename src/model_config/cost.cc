#include "model_config/cost.h"

#include <algorithm>

#include "model_config/layer_map.h"

namespace millrace {
namespace {

constexpr double kBlock = 32;  // columns under one scale

// Bytes of a weight [n, k] with its scales.
double fp8_bytes(double n, double k) { return n * k + n * k / (kBlock * kBlock); }
double fp4_bytes(double n, double k) { return n * k / 2 + n * k / kBlock; }
double bf16_bytes(double n, double k) { return 2 * n * k; }
double f32_bytes(double n, double k) { return 4 * n * k; }

// Collects costs by operation.
class Costs {
 public:
  void add(std::string_view operation, double flops, double weight_bytes, double state_bytes = 0) {
    auto cost = std::find_if(costs_.begin(), costs_.end(),
                             [&](const OperationCost& c) { return c.operation == operation; });
    if (cost == costs_.end()) cost = costs_.insert(cost, OperationCost{.operation = operation});
    ++cost->num_calls;
    cost->flops += flops;
    cost->weight_bytes += weight_bytes;
    cost->state_bytes += state_bytes;
  }
  void product(std::string_view operation, int64_t n, int64_t k, double (*bytes)(double, double)) {
    add(operation, 2 * double(n) * double(k), bytes(double(n), double(k)));
  }
  std::vector<OperationCost> take() { return std::move(costs_); }

 private:
  std::vector<OperationCost> costs_;
};

// Attention of one token over its window and compressed rows.
void add_attention(Costs& costs, const ModelConfig& c, int64_t num_window_keys, int64_t num_rows) {
  const KvSize kv = kv_size(c);
  const double key_flops = 4.0 * double(c.num_attention_heads * c.head_dim);  // q k, then p v
  costs.add("attention", key_flops * double(num_window_keys + num_rows), 0,
            double(num_window_keys * kv.window_entry_bytes + num_rows * kv.compressed_row_bytes));
}

// What every backbone layer and draft stage does, but for the attention over its keys.
void add_block(Costs& costs, const ModelConfig& c, int64_t num_experts, int64_t num_chosen) {
  const int64_t hidden = c.hidden_size;
  const int64_t inner = c.moe_intermediate_size;
  const int64_t heads_dim = c.num_attention_heads * c.head_dim;
  for (int sublayer = 0; sublayer < 2; ++sublayer) {
    costs.product("hyper_connection", c.hc_num_mixes(), c.hc_mult * hidden, f32_bytes);
  }
  costs.product("attn.wq_a", c.q_lora_rank, hidden, fp8_bytes);
  costs.product("attn.wq_b", heads_dim, c.q_lora_rank, fp8_bytes);
  costs.product("attn.wkv", c.head_dim, hidden, fp8_bytes);
  costs.product("attn.wo_a", c.o_groups * c.o_lora_rank, heads_dim / c.o_groups, fp8_bytes);
  costs.product("attn.wo_b", hidden, c.o_groups * c.o_lora_rank, fp8_bytes);
  costs.product("ffn.gate", num_experts, hidden, bf16_bytes);
  costs.product("ffn.shared_experts", 3 * inner, hidden, fp8_bytes);
  for (int64_t chosen = 0; chosen < num_chosen; ++chosen) {
    costs.product("ffn.experts", 3 * inner, hidden, fp4_bytes);
  }
}

// Scoring is needed only where more rows are visible than may be selected.
void add_index(Costs& costs, const ModelConfig& c, const LayerInfo& layer, int64_t num_visible) {
  costs.product("indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, fp8_bytes);
  costs.product("indexer.weights_proj", c.index_n_heads, c.hidden_size, bf16_bytes);
  if (num_visible <= c.index_topk) return;
  int64_t num_scored = num_visible;
  if (layer.is_candidate_filtered) {
    num_scored = std::min(num_scored, c.candidate_topk_blocks * c.candidate_block_size);
  }
  // Per row and head: a dot product, a rectifier and a weighted sum.
  const double row_flops = double(c.index_n_heads) * (2 * double(c.index_head_dim) + 2);
  costs.add("indexer.score", double(num_scored) * row_flops, 0,
            double(num_scored * kv_size(c).index_key_bytes));
}

void add_layer(Costs& costs, const ModelConfig& c, const LayerInfo& layer, int64_t position) {
  if (layer.has_engram()) {
    costs.add("engram.embed", 0,
              double(c.engram_num_columns() * c.engram_head_dim) * (1 + 1 / kBlock));
    costs.product("engram.wkv", c.hidden_size * (c.hc_mult + 1),
                  c.engram_num_columns() * c.engram_head_dim, fp8_bytes);
  }
  if (layer.owns_compressor) {
    const int64_t num_products = layer.compress_ratio > 1 ? 2 : 1;
    costs.product("compressor", num_products * c.head_dim, c.hidden_size, bf16_bytes);
    costs.product("indexer.wk", c.index_head_dim, c.head_dim, bf16_bytes);
  }
  const int64_t num_visible =
      layer.reads_compressed_rows() ? (position + 1) / layer.compress_ratio : 0;
  if (layer.owns_index) add_index(costs, c, layer, num_visible);
  add_attention(costs, c, std::min(position + 1, c.sliding_window),
                std::min(num_visible, c.index_topk));
  add_block(costs, c, c.n_routed_experts, c.num_experts_per_tok);
}

}  // namespace

CheckpointSize checkpoint_size(std::span<const TensorSpec> tensors) {
  CheckpointSize size;
  for (const TensorSpec& tensor : tensors) {
    for (PartSize* part : {&size.parts[size_t(tensor.part)], &size.total}) {
      ++part->num_tensors;
      part->parameters += tensor.parameters();
      part->bytes += tensor.bytes();
    }
  }
  return size;
}

KvSize kv_size(const ModelConfig& c) {
  KvSize kv;
  kv.compressed_row_bytes = c.head_dim / 2 + c.head_dim / 16;
  kv.index_key_bytes = c.index_head_dim / 2 + c.index_head_dim / 32;
  kv.window_entry_bytes = c.head_dim + c.head_dim / 32;
  for (const int64_t source : c.kv_source_layer_ids) {
    const int64_t ratio = c.compress_ratios[size_t(source)];
    kv.compressed_bytes_per_token += double(kv.compressed_row_bytes) / double(ratio);
    kv.index_bytes_per_token += double(kv.index_key_bytes) / double(ratio);
    // Value and gate of each token that a row still waits with.
    kv.open_group_bytes += (ratio - 1) * 2 * c.head_dim * int64_t(sizeof(float));
  }
  const int64_t ring_bytes = c.sliding_window * kv.window_entry_bytes;
  kv.window_bytes = c.num_hidden_layers * ring_bytes;
  kv.draft_window_bytes = c.num_nextn_predict_layers * ring_bytes;
  if (!c.engram_layer_ids.empty()) {
    kv.token_id_bytes = (c.engram_max_ngram_size - 1) * int64_t(sizeof(int32_t));
  }
  return kv;
}

std::vector<OperationCost> decode_costs(const ModelConfig& c, int64_t position) {
  Costs costs;
  costs.add("embed", 0, bf16_bytes(1, double(c.hidden_size)));
  for (const LayerInfo& layer : layer_map(c)) add_layer(costs, c, layer, position);
  costs.product("head", c.vocab_size, c.hidden_size, bf16_bytes);
  return costs.take();
}

std::vector<OperationCost> draft_costs(const ModelConfig& c, int64_t position) {
  Costs costs;
  if (c.num_nextn_predict_layers == 0) return costs.take();
  costs.add("embed", 0, bf16_bytes(1, double(c.hidden_size)));
  costs.product("main_proj", c.hidden_size,
                c.hidden_size * int64_t(c.dspark_target_layer_ids.size()), fp8_bytes);
  for (int64_t stage = 0; stage < c.num_nextn_predict_layers; ++stage) {
    // Every row also sees the whole block.
    add_attention(costs, c, std::min(position + 1, c.sliding_window) + c.dspark_block_size, 0);
    add_block(costs, c, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok);
  }
  costs.product("head", c.vocab_size, c.hidden_size, bf16_bytes);
  costs.add("markov_head.embed", 0, bf16_bytes(1, double(c.dspark_markov_rank)));
  costs.product("markov_head.head", c.vocab_size, c.dspark_markov_rank, bf16_bytes);
  costs.product("confidence_head", 1, c.hidden_size + c.dspark_markov_rank, bf16_bytes);
  return costs.take();
}

OperationCost total(std::span<const OperationCost> costs) {
  OperationCost sum{.operation = "total"};
  for (const OperationCost& cost : costs) {
    sum.num_calls += cost.num_calls;
    sum.flops += cost.flops;
    sum.weight_bytes += cost.weight_bytes;
    sum.state_bytes += cost.state_bytes;
  }
  return sum;
}

}  // namespace millrace
