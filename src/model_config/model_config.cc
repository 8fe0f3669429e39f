#include "model_config/model_config.h"

#include <algorithm>
#include <cfloat>
#include <string_view>

#include "base/format.h"
#include "model_config/engram_constants.h"

// The limits below are far above any released size. Together they keep every count of elements
// and bytes below 2^62, and every table small enough to build before a mistake is noticed.

namespace millrace {
namespace {

constexpr int64_t kMaxLayers = 512;    // backbone and draft stages together
constexpr int64_t kMaxSize = 1 << 16;  // hidden, intermediate and low-rank sizes
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxExperts = 4096;     // of one layer
constexpr int64_t kMaxAllExperts = 1 << 16;  // six tensors each
constexpr int64_t kMaxVocab = 1 << 24;     // ids are also exact as floats
constexpr int64_t kMaxPosition = 1 << 24;  // rotary angles use positions as floats
constexpr int64_t kMaxWindow = 1 << 16;    // every layer of a sequence holds one, uncompressed
constexpr int64_t kMaxEngramTables = 64;
constexpr int64_t kMaxEngramColumns = 1024;  // of all tables; each needs a prime
constexpr int64_t kMaxEngramVocab = int64_t{1} << 31;
// The release has 10 and 1.5. An expert's inner values stay below the limit's square, and its
// output is multiplied by the factor: far inside fp32 even when thousands of them are added.
constexpr double kMaxSwigluLimit = 1 << 16;
constexpr double kMaxRoutedScalingFactor = 1 << 10;

template <class Found, class... Expected>
Error violation(std::string_view key, const Found& found, const Expected&... expected) {
  return {Code::kInvalidArgument, format(key, ": found ", found, ", expected ", expected...)};
}

std::string to_text(const std::vector<int64_t>& ids) {
  std::string text = "[";
  for (size_t i = 0; i < ids.size(); ++i) text += format(i == 0 ? "" : ", ", ids[i]);
  return text + "]";
}

bool contains(const std::vector<int64_t>& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

struct IntegerRule {
  const char* key;
  int64_t value, least, most;
};
Status check_integers(std::initializer_list<IntegerRule> rules) {
  for (const IntegerRule& r : rules) {
    if (r.value < r.least || r.value > r.most) {
      return violation(r.key, r.value, "an integer from ", r.least, " to ", r.most);
    }
  }
  return {};
}

struct NumberRule {
  const char* key;
  double value, least, most;
};
Status check_numbers(std::initializer_list<NumberRule> rules) {
  for (const NumberRule& r : rules) {
    if (!(r.value >= r.least && r.value <= r.most)) {
      return violation(r.key, r.value, "a number from ", r.least, " to ", r.most);
    }
  }
  return {};
}

// Quantised rows and columns are read in whole blocks of 32.
struct BlockRule {
  const char* what;
  int64_t value;
};
Status check_blocks(std::initializer_list<BlockRule> rules) {
  for (const BlockRule& r : rules) {
    if (r.value % 32 != 0) return violation(r.what, r.value, "a multiple of 32");
  }
  return {};
}

Status check_layer_ids(const char* key, const std::vector<int64_t>& ids, int64_t num_layers) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= num_layers) {
      return violation(key, to_text(ids), "layers from 0 to ", num_layers - 1);
    }
    if (i > 0 && ids[i] <= ids[i - 1]) {
      return violation(key, to_text(ids), "strictly ascending layers");
    }
  }
  return {};
}

Status check_quantization(const ModelConfig& c) {
  const QuantizationConfig& q = c.quantization_config;
  if (q.quant_method != "fp8") return violation("quant_method", q.quant_method, "fp8");
  if (q.scale_fmt != "ue8m0") return violation("scale_fmt", q.scale_fmt, "ue8m0");
  if (q.expert_dtype != "fp4") return violation("expert_dtype", q.expert_dtype, "fp4");
  if (q.weight_block_size != std::vector<int64_t>{32, 32}) {
    return violation("weight_block_size", to_text(q.weight_block_size), "[32, 32]");
  }
  return {};
}

Status check_sizes(const ModelConfig& c) {
  // These bound other fields below.
  RETURN_IF_ERROR(check_integers({
      {"num_hidden_layers", c.num_hidden_layers, 1, kMaxLayers},
      {"vocab_size", c.vocab_size, 1, kMaxVocab},
      {"num_attention_heads", c.num_attention_heads, 1, kMaxHeads},
      {"head_dim", c.head_dim, 32, kMaxHeadDim},
      {"index_head_dim", c.index_head_dim, 32, kMaxHeadDim},
      {"n_routed_experts", c.n_routed_experts, 1, kMaxExperts},
  }));
  RETURN_IF_ERROR(check_integers({
      {"num_nextn_predict_layers", c.num_nextn_predict_layers, 0, kMaxLayers - c.num_hidden_layers},
      {"hidden_size", c.hidden_size, 32, kMaxSize},
      {"max_position_embeddings", c.max_position_embeddings, 1, kMaxPosition},
      {"bos_token_id", c.bos_token_id, 0, c.vocab_size - 1},
      {"eos_token_id", c.eos_token_id, 0, c.vocab_size - 1},
      {"pad_token_id", c.pad_token_id, 0, c.vocab_size - 1},
      {"image_token_id", c.image_token_id == -1 ? 0 : c.image_token_id, 0, c.vocab_size - 1},
      {"num_key_value_heads", c.num_key_value_heads, 1, 1},
      {"qk_rope_head_dim", c.qk_rope_head_dim, 2, std::min(c.head_dim, c.index_head_dim)},
      {"q_lora_rank", c.q_lora_rank, 32, kMaxSize},
      {"o_lora_rank", c.o_lora_rank, 32, kMaxSize},
      {"o_groups", c.o_groups, 1, c.num_attention_heads},
      {"sliding_window", c.sliding_window, 1, kMaxWindow},
      {"index_n_heads", c.index_n_heads, 1, kMaxHeads},
      {"index_topk", c.index_topk, 1, kMaxPosition},
      {"moe_intermediate_size", c.moe_intermediate_size, 32, kMaxSize},
      {"num_experts_per_tok", c.num_experts_per_tok, 1, c.n_routed_experts},
      {"n_shared_experts", c.n_shared_experts, 1, 1},
      {"num_hash_layers", c.num_hash_layers, 0, 0},
      {"hc_mult", c.hc_mult, 1, 8},
      {"hc_sinkhorn_iters", c.hc_sinkhorn_iters, 1, 1000},
  }));
  RETURN_IF_ERROR(check_numbers({
      // Zero would divide by an all-zero row's norm; below FLT_MIN it may be flushed to zero.
      {"rms_norm_eps", c.rms_norm_eps, FLT_MIN, 1},
      {"hc_eps", c.hc_eps, FLT_MIN, 1},
      {"swiglu_limit", c.swiglu_limit, FLT_MIN, kMaxSwigluLimit},
      {"routed_scaling_factor", c.routed_scaling_factor, FLT_MIN, kMaxRoutedScalingFactor},
      {"gate_temp", c.gate_temp, 1, 1},
      {"rope_theta", c.rope_theta, 1.5, 1e12},
      {"compress_rope_theta", c.compress_rope_theta, 1.5, 1e12},
      {"rope_scaling.factor", c.rope_scaling.factor, 1, 1e6},
      {"rope_scaling.beta_slow", c.rope_scaling.beta_slow, 1e-3, 1e6},
      {"rope_scaling.beta_fast", c.rope_scaling.beta_fast, c.rope_scaling.beta_slow, 1e6},
  }));
  RETURN_IF_ERROR(
      check_integers({{"rope_scaling.original_max_position_embeddings",
                       c.rope_scaling.original_max_position_embeddings, 1, kMaxPosition}}));
  if (c.qk_rope_head_dim % 2 != 0) {
    return violation("qk_rope_head_dim", c.qk_rope_head_dim, "an even number");
  }
  if (c.num_attention_heads % c.o_groups != 0) {
    return violation("num_attention_heads", c.num_attention_heads,
                     "a multiple of o_groups = ", c.o_groups);
  }
  return check_blocks({
      {"hidden_size", c.hidden_size},
      {"head_dim", c.head_dim},
      {"q_lora_rank", c.q_lora_rank},
      // Each output group must start on a row block of wo_a's scales.
      {"o_lora_rank", c.o_lora_rank},
      {"num_attention_heads * head_dim / o_groups",
       c.num_attention_heads / c.o_groups * c.head_dim},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"index_head_dim", c.index_head_dim},
  });
}

// The nearest entry of `sources` at or below `layer`, or -1.
int64_t nearest_source(const std::vector<int64_t>& sources, int64_t layer) {
  int64_t nearest = -1;
  for (const int64_t source : sources) {
    if (source <= layer) nearest = source;
  }
  return nearest;
}

Status complete_layers(ModelConfig& c) {
  const int64_t num_layers = c.num_hidden_layers;
  const int64_t num_entries = num_layers + c.num_nextn_predict_layers;
  const int64_t found = int64_t(c.compress_ratios.size());
  if (found < num_layers || found > num_entries) {
    return violation("compress_ratios", format(found, " entries"), num_layers, " (layers) to ",
                     num_entries, " (with draft stages)");
  }
  c.compress_ratios.resize(size_t(num_entries), 0);
  for (int64_t l = 0; l < num_entries; ++l) {
    const int64_t ratio = c.compress_ratios[size_t(l)];
    const std::string key = format("compress_ratios[", l, "]");
    if (ratio < 0 || ratio > 2) return violation(key, ratio, "0, 1 or 2");
    if (l >= num_layers && ratio != 0) return violation(key, ratio, "0 for a draft stage");
  }
  RETURN_IF_ERROR(check_layer_ids("kv_source_layer_ids", c.kv_source_layer_ids, num_layers));
  RETURN_IF_ERROR(check_layer_ids("index_source_layer_ids", c.index_source_layer_ids, num_layers));
  for (const int64_t source : c.kv_source_layer_ids) {
    if (!contains(c.index_source_layer_ids, source)) {
      return violation("index_source_layer_ids", to_text(c.index_source_layer_ids), "KV source ",
                       source, " among them");
    }
  }
  for (const int64_t source : c.index_source_layer_ids) {
    if (c.compress_ratios[size_t(source)] == 0) {
      return violation(format("compress_ratios[", source, "]"), 0,
                       "1 or 2 for a KV or index source");
    }
  }
  for (int64_t l = 0; l < num_layers; ++l) {
    const int64_t ratio = c.compress_ratios[size_t(l)];
    if (ratio == 0) continue;
    const int64_t source = nearest_source(c.kv_source_layer_ids, l);
    if (source < 0) {
      return violation("kv_source_layer_ids", to_text(c.kv_source_layer_ids),
                       "a source at or below compressed layer ", l);
    }
    if (c.compress_ratios[size_t(source)] != ratio) {
      return violation(format("compress_ratios[", l, "]"), ratio, "the ratio ",
                       c.compress_ratios[size_t(source)], " of its KV source ", source);
    }
  }
  return {};
}

Status check_candidates(const ModelConfig& c) {
  const int64_t source = c.candidate_source_layer_id;
  if (source == -1) return {};
  if (!contains(c.kv_source_layer_ids, source)) {
    return violation("candidate_source_layer_id", source,
                     "-1 (no filter) or one of kv_source_layer_ids = ", to_text(c.kv_source_layer_ids));
  }
  for (const int64_t l : c.index_source_layer_ids) {
    if (l <= source) continue;
    if (c.compress_ratios[size_t(l)] != c.compress_ratios[size_t(source)]) {
      return violation(format("compress_ratios[", l, "]"), c.compress_ratios[size_t(l)],
                       "the ratio ", c.compress_ratios[size_t(source)], " of candidate source ",
                       source);
    }
  }
  return check_integers({{"candidate_topk_blocks", c.candidate_topk_blocks, 1, kMaxPosition},
                         {"candidate_block_size", c.candidate_block_size, 1, kMaxPosition}});
}

Status complete_engram(ModelConfig& c) {
  if (c.engram_layer_ids.empty()) return {};
  RETURN_IF_ERROR(check_layer_ids("engram_layer_ids", c.engram_layer_ids, c.num_hidden_layers));
  RETURN_IF_ERROR(check_integers({
      {"number of engram_layer_ids", int64_t(c.engram_layer_ids.size()), 1, kMaxEngramTables},
      {"engram_max_ngram_size", c.engram_max_ngram_size, 2, 8},
      {"engram_n_heads", c.engram_n_heads, 1, 32},
      {"engram_head_dim", c.engram_head_dim, 32, kMaxHeadDim},
      {"engram_vocab_size", c.engram_vocab_size, 1, kMaxEngramVocab},
      {"engram_pad_token_id", c.engram_pad_token_id, 0, c.vocab_size - 1},
      {"engram_compressed_vocab_size", c.engram_compressed_vocab_size, 1, c.vocab_size},
  }));
  RETURN_IF_ERROR(check_blocks({{"engram_head_dim", c.engram_head_dim}}));
  const int64_t num_columns = int64_t(c.engram_layer_ids.size()) * c.engram_num_columns();
  if (num_columns > kMaxEngramColumns) {
    return violation("columns of all engram tables", num_columns, "at most ", kMaxEngramColumns);
  }
  const std::vector<EngramTable> tables = engram_tables(c);
  if (c.engram_num_embeddings.empty()) {
    for (const EngramTable& table : tables) c.engram_num_embeddings.push_back(table.num_rows);
  }
  if (c.engram_num_embeddings.size() != tables.size()) {
    return violation("engram_num_embeddings", format(c.engram_num_embeddings.size(), " entries"),
                     "one for each of ", tables.size(), " engram_layer_ids");
  }
  for (size_t t = 0; t < tables.size(); ++t) {
    if (c.engram_num_embeddings[t] != tables[t].num_rows) {
      return violation(format("engram_num_embeddings[", t, "]"), c.engram_num_embeddings[t],
                       tables[t].num_rows, ", the sum of layer ", tables[t].layer, "'s primes");
    }
  }
  return {};
}

Status check_draft(const ModelConfig& c) {
  if (c.num_nextn_predict_layers == 0) return {};
  RETURN_IF_ERROR(check_integers({
      {"dspark_block_size", c.dspark_block_size, 1, 64},
      {"dspark_noise_token_id", c.dspark_noise_token_id, 0, c.vocab_size - 1},
      {"dspark_markov_rank", c.dspark_markov_rank, 1, kMaxSize},
      {"dspark_n_routed_experts", c.dspark_n_routed_experts, 1, kMaxExperts},
      {"dspark_num_experts_per_tok", c.dspark_num_experts_per_tok, 1, c.dspark_n_routed_experts},
  }));
  if (c.dspark_target_layer_ids.empty()) {
    return violation("dspark_target_layer_ids", "[]", "at least one layer");
  }
  return check_layer_ids("dspark_target_layer_ids", c.dspark_target_layer_ids, c.num_hidden_layers);
}

// A config of a few bytes must not ask for a list of millions of tensors.
Status check_all_experts(const ModelConfig& c) {
  const int64_t count = c.num_hidden_layers * c.n_routed_experts +
                        c.num_nextn_predict_layers * c.dspark_n_routed_experts;
  if (count <= kMaxAllExperts) return {};
  return violation("experts of all layers and draft stages", count, "at most ", kMaxAllExperts);
}

Status check_vision(const ModelConfig& c) {
  if (!c.vision_config.has_value()) return {};
  const VisionConfig& v = *c.vision_config;
  return check_integers({
      {"vision_config.num_hidden_layers", v.num_hidden_layers, 1, kMaxLayers},
      {"vision_config.hidden_size", v.hidden_size, 1, kMaxSize},
      {"vision_config.intermediate_size", v.intermediate_size, 1, kMaxSize},
      {"vision_config.patch_size", v.patch_size, 1, 256},
      {"vision_config.downsample_ratio", v.downsample_ratio, 1, 64},
  });
}

}  // namespace

Status complete(ModelConfig& c) {
  RETURN_IF_ERROR(check_quantization(c));
  RETURN_IF_ERROR(check_sizes(c));
  RETURN_IF_ERROR(complete_layers(c));
  RETURN_IF_ERROR(check_candidates(c));
  RETURN_IF_ERROR(complete_engram(c));
  RETURN_IF_ERROR(check_draft(c));
  RETURN_IF_ERROR(check_all_experts(c));
  return check_vision(c);
}

}  // namespace millrace
