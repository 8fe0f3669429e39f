#include "model_config/config_json.h"

#include <boost/json.hpp>
#include <string_view>

namespace millrace {
namespace {

namespace json = boost::json;

json::array to_json(const std::vector<int64_t>& values) {
  return json::array(values.begin(), values.end());
}

json::object text_config(const ModelConfig& c) {
  const RopeScaling& rope = c.rope_scaling;
  json::object text = {
      {"model_type", "deepseek_v41_text"},
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_key_value_heads},
      {"head_dim", c.head_dim},
      {"qk_rope_head_dim", c.qk_rope_head_dim},
      {"q_lora_rank", c.q_lora_rank},
      {"o_lora_rank", c.o_lora_rank},
      {"o_groups", c.o_groups},
      {"hidden_act", "silu"},
      {"swiglu_limit", c.swiglu_limit},
      {"rms_norm_eps", c.rms_norm_eps},
      {"attention_bias", false},
      {"max_position_embeddings", c.max_position_embeddings},
      {"rope_theta", c.rope_theta},
      {"rope_scaling",
       {{"rope_type", "yarn"},
        {"factor", rope.factor},
        {"beta_fast", rope.beta_fast},
        {"beta_slow", rope.beta_slow},
        {"original_max_position_embeddings", rope.original_max_position_embeddings}}},
      {"n_routed_experts", c.n_routed_experts},
      {"n_shared_experts", c.n_shared_experts},
      {"num_experts_per_tok", c.num_experts_per_tok},
      {"scoring_func", "sqrtsoftplus"},
      {"topk_method", "noaux_tc"},
      {"norm_topk_prob", c.norm_topk_prob},
      {"routed_scaling_factor", c.routed_scaling_factor},
      {"sliding_window", c.sliding_window},
      {"compress_ratios", to_json(c.compress_ratios)},
      {"compress_rope_theta", c.compress_rope_theta},
      {"kv_source_layer_ids", to_json(c.kv_source_layer_ids)},
      {"index_source_layer_ids", to_json(c.index_source_layer_ids)},
      {"index_n_heads", c.index_n_heads},
      {"index_head_dim", c.index_head_dim},
      {"index_topk", c.index_topk},
      {"candidate_source_layer_id", c.candidate_source_layer_id},
      {"candidate_topk_blocks", c.candidate_topk_blocks},
      {"candidate_block_size", c.candidate_block_size},
      {"hc_mult", c.hc_mult},
      {"hc_sinkhorn_iters", c.hc_sinkhorn_iters},
      {"hc_eps", c.hc_eps},
      {"engram_layer_ids", to_json(c.engram_layer_ids)},
      {"num_nextn_predict_layers", c.num_nextn_predict_layers},
  };
  if (!c.engram_layer_ids.empty()) {
    text["engram_num_embeddings"] = to_json(c.engram_num_embeddings);
    text["engram_max_ngram_size"] = c.engram_max_ngram_size;
    text["engram_vocab_size"] = c.engram_vocab_size;
    text["engram_n_heads"] = c.engram_n_heads;
    text["engram_head_dim"] = c.engram_head_dim;
    text["engram_pad_token_id"] = c.engram_pad_token_id;
    text["engram_compressed_vocab_size"] = c.engram_compressed_vocab_size;
  }
  if (c.num_nextn_predict_layers > 0) {
    text["dspark_block_size"] = c.dspark_block_size;
    text["dspark_noise_token_id"] = c.dspark_noise_token_id;
    text["dspark_target_layer_ids"] = to_json(c.dspark_target_layer_ids);
    text["dspark_markov_rank"] = c.dspark_markov_rank;
    text["dspark_n_routed_experts"] = c.dspark_n_routed_experts;
    text["dspark_num_experts_per_tok"] = c.dspark_num_experts_per_tok;
  }
  return text;
}

json::object vision_config(const VisionConfig& v) {
  return {{"model_type", "deepseek_v41_vision"},
          {"num_hidden_layers", v.num_hidden_layers},
          {"hidden_size", v.hidden_size},
          {"num_attention_heads", 16},
          {"intermediate_size", v.intermediate_size},
          {"patch_size", v.patch_size},
          {"rope_theta", 10000},
          {"downsample_ratio", v.downsample_ratio},
          {"max_image_tokens", 1024},
          {"min_pixels", 295936},
          {"max_wh_ratio", nullptr}};
}

// One key per line, two more blanks per level: for people.
void indent(const json::value& value, const std::string& margin, std::string& out) {
  if (!value.is_object()) {
    out += json::serialize(value);
    return;
  }
  const std::string inner = margin + "  ";
  std::string_view separator = "{\n";
  for (const auto& [key, member] : value.get_object()) {
    out += separator;
    out += inner + json::serialize(json::value(key)) + ": ";
    indent(member, inner, out);
    separator = ",\n";
  }
  out += "\n" + margin + "}";
}

}  // namespace

std::string config_json(const ModelConfig& c) {
  json::object root = {{"architectures", json::array{"DeepseekV41ForCausalLM"}},
                       {"model_type", "deepseek_v41"},
                       {"dtype", "bfloat16"},
                       {"bos_token_id", c.bos_token_id},
                       {"eos_token_id", c.eos_token_id},
                       {"pad_token_id", c.pad_token_id}};
  if (c.image_token_id >= 0) root["image_token_id"] = c.image_token_id;
  root["tie_word_embeddings"] = false;
  root["text_config"] = text_config(c);
  if (c.vision_config) root["vision_config"] = vision_config(*c.vision_config);
  const QuantizationConfig& q = c.quantization_config;
  root["quantization_config"] = {{"quant_method", q.quant_method},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", to_json(q.weight_block_size)},
                                 {"scale_fmt", q.scale_fmt},
                                 {"expert_dtype", q.expert_dtype}};
  std::string text;
  indent(root, "", text);
  return text + "\n";
}

}  // namespace millrace
