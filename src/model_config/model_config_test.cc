#include "model_config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>

#include "model_config/tensor_list.h"

namespace millrace {
namespace {

namespace json = boost::json;
using testing::AllOf;
using testing::HasSubstr;

std::string read_text(const std::string& path) {
  std::ifstream in(std::string(MILLRACE_SOURCE_DIR) + path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

json::object released() {
  return json::parse(read_text("/tests/golden/config-v4.1-flash.json")).as_object();
}

Result<ModelConfig> parse(const json::object& root) {
  return parse_model_config(std::string(json::serialize(root)));
}

std::string message_of(const Result<ModelConfig>& result) {
  return result.has_value() ? "accepted" : result.error().message;
}

// The reference's flat file with the values of the release.
json::object flat() {
  json::object root = released();
  json::object out = root["text_config"].as_object();
  const auto rename = [&out](const char* from, const char* to) {
    out[to] = out[from];
    out.erase(from);
  };
  rename("hidden_size", "dim");
  rename("num_hidden_layers", "n_layers");
  rename("num_attention_heads", "n_heads");
  rename("moe_intermediate_size", "moe_inter_dim");
  rename("scoring_func", "score_func");
  rename("sliding_window", "window_size");
  rename("index_source_layer_ids", "index_source_layers");
  rename("kv_source_layer_ids", "kv_source_layers");
  rename("candidate_source_layer_id", "candidate_source_layer");
  rename("engram_pad_token_id", "engram_pad_id");
  rename("rms_norm_eps", "norm_eps");
  rename("num_nextn_predict_layers", "n_mtp_layers");
  rename("qk_rope_head_dim", "rope_head_dim");
  rename("num_experts_per_tok", "n_activated_experts");
  rename("dspark_num_experts_per_tok", "dspark_n_activated_experts");
  rename("routed_scaling_factor", "route_scale");
  const json::object rope = out["rope_scaling"].as_object();
  out["rope_factor"] = rope.at("factor");
  out["beta_fast"] = rope.at("beta_fast");
  out["beta_slow"] = rope.at("beta_slow");
  out["original_seq_len"] = rope.at("original_max_position_embeddings");
  const json::object vision = root["vision_config"].as_object();
  out["vision_n_layers"] = vision.at("num_hidden_layers");
  out["vision_dim"] = vision.at("hidden_size");
  out["vision_inter_dim"] = vision.at("intermediate_size");
  out["vision_patch_size"] = vision.at("patch_size");
  out["vision_downsample_ratio"] = vision.at("downsample_ratio");
  out["dtype"] = "fp8";
  out["scale_fmt"] = "ue8m0";
  out["expert_dtype"] = "fp4";
  for (const char* key :
       {"rope_scaling", "model_type", "hidden_act", "attention_bias", "topk_method",
        "norm_topk_prob", "num_key_value_heads", "max_position_embeddings"}) {
    out.erase(key);
  }
  return out;
}

TEST(ModelConfig, ReadsTheReleasedFile) {
  const ModelConfig c = parse(released()).value();
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_EQ(c.eos_token_id, 1);
  EXPECT_EQ(c.image_token_id, 129264);
  EXPECT_EQ(c.hidden_size, 5120);
  EXPECT_EQ(c.num_hidden_layers, 40);
  EXPECT_EQ(c.rms_norm_eps, 1e-20);
  EXPECT_EQ(c.rope_scaling.factor, 16);
  EXPECT_EQ(c.rope_scaling.original_max_position_embeddings, 65536);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  EXPECT_EQ(c.compress_ratios.size(), 43u);
  EXPECT_EQ(c.index_source_layer_ids, (std::vector<int64_t>{2, 8, 14, 20, 24, 28, 32, 36}));
  EXPECT_EQ(c.engram_num_embeddings, (std::vector<int64_t>{384006168, 384016682}));
  EXPECT_EQ(c.engram_num_columns(), 24);
  EXPECT_EQ(c.hc_num_mixes(), 24);
  EXPECT_EQ(c.num_hash_layers, 0);
  EXPECT_EQ(c.gate_temp, 1);
  EXPECT_TRUE(c.norm_topk_prob);
  ASSERT_TRUE(c.vision_config.has_value());
  EXPECT_EQ(c.vision_config->downsample_ratio, 3);
}

TEST(ModelConfig, ReadsTheSmallCheckpointsWithoutVision) {
  for (const char* path : {"/tests/golden/tiny-v41/config.json", "/models/nano/config.json"}) {
    const Result<ModelConfig> config = parse_model_config(read_text(path));
    ASSERT_TRUE(config.has_value()) << path << ": " << config.error().message;
    EXPECT_FALSE(config.value().vision_config.has_value());
    EXPECT_EQ(config.value().num_hidden_layers, 8);
  }
}

TEST(ModelConfig, FlatFormMeansTheSame) {
  const ModelConfig nested = parse(released()).value();
  const Result<ModelConfig> result = parse(flat());
  ASSERT_TRUE(result.has_value()) << result.error().message;
  const ModelConfig& c = result.value();
  EXPECT_EQ(c.hidden_size, nested.hidden_size);
  EXPECT_EQ(c.num_hidden_layers, nested.num_hidden_layers);
  EXPECT_EQ(c.num_attention_heads, nested.num_attention_heads);
  EXPECT_EQ(c.moe_intermediate_size, nested.moe_intermediate_size);
  EXPECT_EQ(c.sliding_window, nested.sliding_window);
  EXPECT_EQ(c.kv_source_layer_ids, nested.kv_source_layer_ids);
  EXPECT_EQ(c.index_source_layer_ids, nested.index_source_layer_ids);
  EXPECT_EQ(c.candidate_source_layer_id, nested.candidate_source_layer_id);
  EXPECT_EQ(c.engram_pad_token_id, nested.engram_pad_token_id);
  EXPECT_EQ(c.rms_norm_eps, nested.rms_norm_eps);
  EXPECT_EQ(c.num_nextn_predict_layers, nested.num_nextn_predict_layers);
  EXPECT_EQ(c.qk_rope_head_dim, nested.qk_rope_head_dim);
  EXPECT_EQ(c.num_experts_per_tok, nested.num_experts_per_tok);
  EXPECT_EQ(c.dspark_num_experts_per_tok, nested.dspark_num_experts_per_tok);
  EXPECT_EQ(c.routed_scaling_factor, nested.routed_scaling_factor);
  EXPECT_EQ(c.rope_scaling.factor, nested.rope_scaling.factor);
  EXPECT_EQ(c.rope_scaling.beta_fast, nested.rope_scaling.beta_fast);
  EXPECT_EQ(c.rope_scaling.beta_slow, nested.rope_scaling.beta_slow);
  EXPECT_EQ(c.max_position_embeddings, nested.max_position_embeddings);
  EXPECT_EQ(c.vision_config->intermediate_size, nested.vision_config->intermediate_size);
  EXPECT_EQ(c.quantization_config.expert_dtype, "fp4");
}

TEST(ModelConfig, NestedNamesMayStandAtTheTopLevel) {
  json::object root = released();
  const json::object text = root["text_config"].as_object();
  root.erase("text_config");
  for (const auto& field : text) {
    if (field.key() != "model_type") root[field.key()] = field.value();
  }
  const Result<ModelConfig> result = parse(root);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(result.value().hidden_size, 5120);
}

TEST(ModelConfig, UnknownFieldsAreIgnored) {
  json::object root = released();
  root["transformers_version"] = "9.9";
  root["text_config"].as_object()["use_cache"] = true;
  EXPECT_EQ(message_of(parse(root)), "accepted");
}

TEST(ModelConfig, DerivesTableSizesAndDraftRatiosWhenTheyAreAbsent) {
  json::object root = released();
  json::object& text = root["text_config"].as_object();
  text.erase("engram_num_embeddings");
  json::array& ratios = text["compress_ratios"].as_array();
  ratios.pop_back();
  ratios.pop_back();
  ratios.pop_back();
  const Result<ModelConfig> result = parse(root);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(result.value().engram_num_embeddings, (std::vector<int64_t>{384006168, 384016682}));
  EXPECT_EQ(result.value().compress_ratios.size(), 43u);
  EXPECT_EQ(result.value().compress_ratios.back(), 0);
}

TEST(ModelConfig, WhatNamesTheKindOfModelMayBeAbsent) {
  json::object root = released();
  root.erase("model_type");
  root.erase("architectures");
  root["text_config"].as_object().erase("model_type");
  root["vision_config"].as_object().erase("model_type");
  root["quantization_config"].as_object().erase("activation_scheme");
  EXPECT_EQ(message_of(parse(root)), "accepted");
}

TEST(ModelConfig, ACandidateSourceOfMinusOneMeansNoFilter) {
  json::object root = released();
  json::object& text = root["text_config"].as_object();
  text["candidate_source_layer_id"] = -1;
  text.erase("candidate_topk_blocks");
  text.erase("candidate_block_size");
  EXPECT_EQ(message_of(parse(root)), "accepted");
}

TEST(ModelConfig, ModelsWithoutEngramOrDraftNeedNoneOfTheirFields) {
  json::object root = released();
  json::object& text = root["text_config"].as_object();
  for (const char* key :
       {"engram_num_embeddings", "engram_max_ngram_size", "engram_vocab_size", "engram_n_heads",
        "engram_head_dim", "engram_pad_token_id", "engram_compressed_vocab_size",
        "dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids",
        "dspark_markov_rank", "dspark_n_routed_experts", "dspark_num_experts_per_tok"}) {
    text.erase(key);
  }
  text["engram_layer_ids"] = json::array{};
  text["num_nextn_predict_layers"] = 0;
  text["compress_ratios"].as_array().resize(40);
  EXPECT_EQ(message_of(parse(root)), "accepted");
}

// One changed field and the refusal it must cause. "-" removes the field.
struct Refusal {
  const char* pointer;  // "text_config.hidden_size"
  const char* value;    // JSON
  const char* message;  // part of it
};

class Refuses : public testing::TestWithParam<Refusal> {};

TEST_P(Refuses, NamingKeyFoundAndExpected) {
  const Refusal& r = GetParam();
  json::object root = released();
  json::object* object = &root;
  std::string_view key = r.pointer;
  for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.')) {
    object = &(*object)[key.substr(0, dot)].as_object();
    key.remove_prefix(dot + 1);
  }
  if (std::string_view(r.value) == "-") {
    ASSERT_EQ(object->erase(key), 1u);
  } else {
    (*object)[key] = json::parse(r.value);
  }
  const std::string message = message_of(parse(root));
  EXPECT_THAT(message, HasSubstr(r.message)) << r.pointer << " = " << r.value;
  EXPECT_THAT(message, AllOf(HasSubstr(": found "), HasSubstr(", expected "))) << r.pointer;
}

constexpr const char* kRatiosThreeStages =
    "[0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,1,0]";
constexpr const char* kRatiosTooLong =
    "[0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0,0]";
constexpr const char* kRatiosOfThree =
    "[0,0,3,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0]";
constexpr const char* kRatiosZeroAtASource =
    "[0,0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0]";
constexpr const char* kRatiosBelowTheFirstSource =
    "[0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0]";
constexpr const char* kRatiosUnlikeTheSource =
    "[0,0,2,1,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,0,0]";

INSTANTIATE_TEST_SUITE_P(
    Config, Refuses,
    testing::Values(
        Refusal{"model_type", "\"llama\"", "model_type: found \"llama\", expected deepseek_v41"},
        Refusal{"text_config.model_type", "\"deepseek_v4\"", "expected deepseek_v41_text"},
        Refusal{"text_config", "7", "text_config: found 7, expected an object"},
        Refusal{"tie_word_embeddings", "true", "tie_word_embeddings: found true, expected false"},
        Refusal{"text_config.hidden_act", "\"gelu\"", "found \"gelu\", expected silu"},
        Refusal{"text_config.scoring_func", "\"softmax\"", "expected sqrtsoftplus"},
        Refusal{"text_config.topk_method", "\"greedy\"", "expected noaux_tc"},
        Refusal{"text_config.attention_bias", "true", "expected false"},
        Refusal{"text_config.rope_scaling.rope_type", "\"linear\"", "expected yarn"},
        Refusal{"architectures", "[\"DeepseekV3ForCausalLM\"]",
                "architectures: found [\"DeepseekV3ForCausalLM\"], expected "
                "[\"DeepseekV41ForCausalLM\"]"},
        Refusal{"architectures", "[\"DeepseekV41ForCausalLM\", \"Other\"]", "architectures: found"},
        Refusal{"architectures", "[]", "architectures: found [], expected [\"Deepseek"},
        Refusal{"architectures", "[7]", "architectures: found [7], expected a list of strings"},
        Refusal{"quantization_config.activation_scheme", "\"static\"",
                "quantization_config.activation_scheme: found \"static\", expected dynamic"},
        Refusal{"vision_config.model_type", "\"clip\"",
                "vision_config.model_type: found \"clip\", expected deepseek_v41_vision"},
        // Presence and types.
        Refusal{"text_config.hidden_size", "-",
                "text_config.hidden_size: found nothing, expected an integer"},
        Refusal{"text_config.hidden_size", "\"5120\"", "found \"5120\", expected an integer"},
        Refusal{"text_config.hidden_size", "5120.5", "expected an integer"},
        Refusal{"text_config.hidden_size", "18446744073709551615", "expected an integer"},
        Refusal{"text_config.swiglu_limit", "[]", "found [], expected a number"},
        Refusal{"text_config.compress_ratios", "{}", "expected a list"},
        Refusal{"text_config.engram_layer_ids", "[1, \"x\"]", "expected a list"},
        Refusal{"text_config.rope_scaling", "-", "rope_scaling.factor: found nothing"},
        Refusal{"text_config.norm_topk_prob", "1", "expected true or false"},
        Refusal{"quantization_config", "-", "quantization_config.scale_fmt: found nothing"},
        Refusal{"quantization_config.weight_block_size", "-", "weight_block_size: found nothing"},
        Refusal{"quantization_config.weight_block_size", "[128, 128]",
                "found [128, 128], expected [32, 32]"},
        Refusal{"quantization_config.scale_fmt", "\"float32\"", "expected ue8m0"},
        Refusal{"quantization_config.expert_dtype", "\"fp8\"", "expected fp4"},
        // Sizes.
        Refusal{"text_config.num_hidden_layers", "0", "num_hidden_layers: found 0"},
        Refusal{"text_config.num_hidden_layers", "-9223372036854775808", "num_hidden_layers"},
        Refusal{"text_config.num_hidden_layers", "44", "found 43 entries, expected 44"},
        Refusal{"text_config.vocab_size", "-1", "vocab_size: found -1"},
        Refusal{"text_config.hidden_size", "5121", "found 5121, expected a multiple of 32"},
        Refusal{"text_config.hidden_size", "1073741824", "hidden_size: found 1073741824"},
        Refusal{"text_config.head_dim", "0", "head_dim: found 0"},
        Refusal{"text_config.head_dim", "520", "head_dim: found 520, expected a multiple of 32"},
        Refusal{"text_config.num_key_value_heads", "8", "num_key_value_heads: found 8"},
        Refusal{"text_config.n_shared_experts", "2", "n_shared_experts: found 2"},
        Refusal{"text_config.num_hash_layers", "3", "num_hash_layers: found 3"},
        Refusal{"text_config.gate_temp", "2", "gate_temp: found 2"},
        Refusal{"text_config.o_groups", "0", "o_groups: found 0"},
        Refusal{"text_config.o_groups", "7",
                "num_attention_heads: found 64, expected a multiple of o_groups = 7"},
        Refusal{"text_config.o_lora_rank", "1000", "o_lora_rank: found 1000"},
        Refusal{"text_config.q_lora_rank", "1300", "q_lora_rank: found 1300"},
        Refusal{"text_config.qk_rope_head_dim", "63", "found 63, expected an even number"},
        Refusal{"text_config.qk_rope_head_dim", "130",
                "found 130, expected an integer from 2 to 128"},
        Refusal{"text_config.index_head_dim", "100", "index_head_dim: found 100"},
        Refusal{"text_config.index_topk", "0", "index_topk: found 0"},
        Refusal{"text_config.index_topk", "2147483648", "index_topk: found 2147483648"},
        Refusal{"text_config.sliding_window", "0", "sliding_window: found 0"},
        Refusal{"text_config.sliding_window", "65537",
                "sliding_window: found 65537, expected an integer from 1 to 65536"},
        Refusal{"text_config.moe_intermediate_size", "2300", "found 2300"},
        Refusal{"text_config.num_experts_per_tok", "385", "expected an integer from 1 to 384"},
        Refusal{"text_config.hc_mult", "0", "hc_mult: found 0"},
        Refusal{"text_config.hc_sinkhorn_iters", "0", "hc_sinkhorn_iters: found 0"},
        Refusal{"text_config.rms_norm_eps", "0", "rms_norm_eps: found 0"},
        Refusal{"text_config.rms_norm_eps", "1e-40", "rms_norm_eps: found 1e-40"},
        Refusal{"text_config.rope_theta", "0", "rope_theta: found 0"},
        Refusal{"text_config.rope_scaling.factor", "0", "rope_scaling.factor: found 0"},
        Refusal{"text_config.rope_scaling.beta_fast", "0.5", "rope_scaling.beta_fast"},
        Refusal{"text_config.rope_scaling.original_max_position_embeddings", "0", "found 0"},
        Refusal{"text_config.max_position_embeddings", "33554432", "found 33554432"},
        Refusal{"text_config.num_attention_heads", "0", "num_attention_heads: found 0"},
        Refusal{"text_config.num_attention_heads", "4160", "num_attention_heads: found 4160"},
        Refusal{"text_config.n_routed_experts", "0", "n_routed_experts: found 0"},
        Refusal{"text_config.n_routed_experts", "4096",
                "experts of all layers and draft stages: found 164224, expected at most 65536"},
        Refusal{"text_config.num_experts_per_tok", "0", "num_experts_per_tok: found 0"},
        Refusal{"text_config.index_n_heads", "0", "index_n_heads: found 0"},
        Refusal{"text_config.index_head_dim", "8192", "index_head_dim: found 8192"},
        Refusal{"text_config.q_lora_rank", "0", "q_lora_rank: found 0"},
        Refusal{"text_config.o_lora_rank", "131072", "o_lora_rank: found 131072"},
        Refusal{"text_config.moe_intermediate_size", "-32", "moe_intermediate_size: found -32"},
        Refusal{"text_config.hc_mult", "9", "hc_mult: found 9, expected an integer from 1 to 8"},
        Refusal{"text_config.hc_sinkhorn_iters", "1001", "hc_sinkhorn_iters: found 1001"},
        Refusal{"text_config.hc_eps", "0", "hc_eps: found 0"},
        Refusal{"text_config.swiglu_limit", "-1", "swiglu_limit: found -1"},
        Refusal{"text_config.routed_scaling_factor", "1e39", "routed_scaling_factor: found 1e+39"},
        Refusal{"text_config.swiglu_limit", "65537",
                "swiglu_limit: found 65537, expected a number from 1.17549e-38 to 65536"},
        Refusal{"text_config.swiglu_limit", "4611686018427387904", "found 4.61169e+18"},
        Refusal{"text_config.routed_scaling_factor", "1025",
                "routed_scaling_factor: found 1025, expected a number from 1.17549e-38 to 1024"},
        Refusal{"text_config.routed_scaling_factor", "4611686018427387904", "found 4.61169e+18"},
        Refusal{"text_config.compress_rope_theta", "1", "compress_rope_theta: found 1"},
        Refusal{"text_config.rope_theta", "1e300", "rope_theta: found 1e+300, expected a number"},
        Refusal{"text_config.rope_scaling.factor", "1000001", "factor: found 1e+06"},
        Refusal{"text_config.rope_scaling.beta_slow", "0", "rope_scaling.beta_slow: found 0"},
        Refusal{"text_config.vocab_size", "33554432", "vocab_size: found 33554432"},
        Refusal{"bos_token_id", "-1", "bos_token_id: found -1"},
        Refusal{"eos_token_id", "129280", "eos_token_id: found 129280"},
        Refusal{"pad_token_id", "129280", "pad_token_id: found 129280"},
        Refusal{"image_token_id", "129280", "image_token_id: found 129280"},
        Refusal{"image_token_id", "-2", "image_token_id: found -2"},
        Refusal{"image_token_id", "-1",
                "image_token_id: found -1, expected an integer of at least 0, or no such key"},
        Refusal{"eos_token_id", "[1, 2]", "eos_token_id: found [1, 2], expected an integer"},
        // Layer map.
        Refusal{"text_config.compress_ratios", "[0, 0]", "compress_ratios: found 2 entries"},
        Refusal{"text_config.compress_ratios", kRatiosTooLong, "found 44 entries"},
        Refusal{"text_config.compress_ratios", kRatiosThreeStages,
                "compress_ratios[41]: found 1, expected 0 for a draft stage"},
        Refusal{"text_config.compress_ratios", kRatiosOfThree,
                "compress_ratios[2]: found 3, expected 0, 1 or 2"},
        Refusal{"text_config.compress_ratios", kRatiosZeroAtASource,
                "compress_ratios[2]: found 0, expected 1 or 2"},
        Refusal{"text_config.compress_ratios", kRatiosBelowTheFirstSource,
                "expected a source at or below compressed layer 1"},
        Refusal{"text_config.compress_ratios", kRatiosUnlikeTheSource,
                "compress_ratios[3]: found 1, expected the ratio 2 of its KV source 2"},
        Refusal{"text_config.kv_source_layer_ids", "[2, 8, 14]", "compress_ratios[20]"},
        Refusal{"text_config.kv_source_layer_ids", "[2, 9, 14, 20]", "KV source 9 among them"},
        Refusal{"text_config.kv_source_layer_ids", "[8, 2, 14, 20]", "strictly ascending"},
        Refusal{"text_config.kv_source_layer_ids", "[2, 8, 14, 20, 40]", "layers from 0 to 39"},
        Refusal{"text_config.candidate_source_layer_id", "24",
                "candidate_source_layer_id: found 24, expected -1 (no filter) or one of "
                "kv_source_layer_ids = [2, 8, 14, 20]"},
        Refusal{"text_config.candidate_source_layer_id", "-2", "found -2, expected -1 (no filter)"},
        Refusal{"text_config.candidate_source_layer_id", "null", "found nothing"},
        Refusal{"text_config.candidate_source_layer_id", "8", "of candidate source 8"},
        Refusal{"text_config.candidate_topk_blocks", "0", "candidate_topk_blocks: found 0"},
        Refusal{"text_config.candidate_block_size", "-8", "candidate_block_size: found -8"},
        // Engram.
        Refusal{"text_config.engram_num_embeddings", "[384006168, 384016683]",
                "engram_num_embeddings[1]: found 384016683, expected 384016682"},
        Refusal{"text_config.engram_num_embeddings", "[384006168]", "found 1 entries"},
        Refusal{"text_config.engram_num_embeddings", "null",
                "text_config.engram_num_embeddings: found null, expected a list"},
        Refusal{"text_config.engram_layer_ids", "[14, 1]", "strictly ascending"},
        Refusal{"text_config.engram_max_ngram_size", "1", "engram_max_ngram_size: found 1"},
        Refusal{"text_config.engram_head_dim", "100", "engram_head_dim: found 100"},
        Refusal{"text_config.engram_vocab_size", "0", "engram_vocab_size: found 0"},
        Refusal{"text_config.engram_compressed_vocab_size", "129281", "found 129281"},
        Refusal{"text_config.engram_pad_token_id", "129280", "engram_pad_token_id"},
        Refusal{"text_config.engram_n_heads", "32",
                "engram_num_embeddings[0]: found 384006168"},
        Refusal{"text_config.engram_n_heads", "33", "engram_n_heads: found 33"},
        Refusal{"text_config.engram_max_ngram_size", "9", "engram_max_ngram_size: found 9"},
        Refusal{"text_config.engram_head_dim", "0", "engram_head_dim: found 0"},
        Refusal{"text_config.engram_vocab_size", "2147483649", "found 2147483649"},
        Refusal{"text_config.engram_compressed_vocab_size", "0", "found 0"},
        Refusal{"text_config.engram_layer_ids", "[1, 1]", "strictly ascending"},
        Refusal{"text_config.engram_layer_ids", "[1, 40]", "layers from 0 to 39"},
        // Draft and vision.
        Refusal{"text_config.num_nextn_predict_layers", "-1", "found -1"},
        Refusal{"text_config.num_nextn_predict_layers", "2", "found 43 entries"},
        Refusal{"text_config.dspark_block_size", "99", "dspark_block_size: found 99"},
        Refusal{"text_config.dspark_target_layer_ids", "[]", "at least one layer"},
        Refusal{"text_config.dspark_target_layer_ids", "[37, 38, 40]", "layers from 0 to 39"},
        Refusal{"text_config.dspark_num_experts_per_tok", "129", "from 1 to 128"},
        Refusal{"text_config.dspark_noise_token_id", "129280", "dspark_noise_token_id"},
        Refusal{"text_config.dspark_markov_rank", "0", "dspark_markov_rank: found 0"},
        Refusal{"text_config.dspark_n_routed_experts", "0", "dspark_n_routed_experts: found 0"},
        Refusal{"text_config.dspark_target_layer_ids", "[38, 37]", "strictly ascending"},
        Refusal{"text_config.index_source_layer_ids", "[-1, 2]", "layers from 0 to 39"},
        Refusal{"vision_config.num_hidden_layers", "0", "vision_config.num_hidden_layers: found 0"},
        Refusal{"vision_config.hidden_size", "65537", "vision_config.hidden_size: found 65537"},
        Refusal{"vision_config.intermediate_size", "0", "intermediate_size: found 0"},
        Refusal{"vision_config.downsample_ratio", "65", "downsample_ratio: found 65"},
        Refusal{"vision_config.hidden_size", "-", "vision_config.hidden_size: found nothing"},
        Refusal{"vision_config.patch_size", "0", "vision_config.patch_size: found 0"}));

TEST(ModelConfig, RefusesWhatIsNotAJsonObject) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "found incomplete JSON at byte 0, expected JSON"},
      {"{\"a\": 1} x", "found extra data at byte 9, expected JSON"},
      {"{\"a\": \"\xfe\"}", "found syntax error at byte 7, expected JSON"},
      {"[1, 2]", "found [1, 2], expected an object"},
      {std::string(5000, '['), "found too deep at byte 32, expected JSON of at most 32 levels"},
      {std::string(2 << 20, ' '), "found 2097152 bytes, expected at most 1048576"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(message_of(parse_model_config(text)), want);
}

TEST(ModelConfig, RefusesAKeyThatAppearsTwice) {
  std::string text = read_text("/tests/golden/config-v4.1-flash.json");
  text.insert(text.find("\"hidden_size\""), "\"hidden_size\": 64, ");
  EXPECT_THAT(message_of(parse_model_config(text)),
              HasSubstr("text_config.hidden_size: found again at byte "));
}

// The same meaning under both of its names is as ambiguous as one name twice.
TEST(ModelConfig, RefusesAFieldUnderBothOfItsNames) {
  json::object root = flat();
  root["hidden_size"] = 64;
  EXPECT_EQ(message_of(parse(root)), "dim: found 5120, expected no second name of hidden_size");
  root = flat();
  root["dim"] = nullptr;
  root["hidden_size"] = 5120;
  EXPECT_EQ(message_of(parse(root)), "accepted");
}

TEST(ModelConfig, BoundsThePrimesThatItSearches) {
  json::object root = released();
  json::object& text = root["text_config"].as_object();
  text["engram_layer_ids"] = {1, 2, 3, 4, 5};
  text["engram_n_heads"] = 32;
  text["engram_max_ngram_size"] = 8;
  EXPECT_EQ(message_of(parse(root)),
            "columns of all engram tables: found 1120, expected at most 1024");
}

// What is allocated for a config is bounded by the limits, whatever its numbers say.
TEST(ModelConfig, TheLargestModelThatIsAcceptedHasAListOfModerateSize) {
  json::object root = released();
  json::object& text = root["text_config"].as_object();
  text["n_routed_experts"] = (65536 - 3 * 128) / 40;
  const Result<ModelConfig> config = parse(root);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_LT(tensor_list(config.value()).size(), 400'000u);
}

}  // namespace
}  // namespace millrace
