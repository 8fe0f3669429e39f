#include "model_config/cost.h"

#include <gtest/gtest.h>

#include <set>

#include "model_config/test_configs.h"

namespace millrace {
namespace {

ModelConfig mini() {
  ModelConfig c;
  c.quantization_config = {"fp8", "ue8m0", "fp4", {32, 32}};
  c.image_token_id = 1001;
  c.vocab_size = 1024;
  c.hidden_size = 256;
  c.num_hidden_layers = 10;
  c.max_position_embeddings = 1024;
  c.rms_norm_eps = 1e-20;
  c.num_attention_heads = 8;
  c.head_dim = 64;
  c.qk_rope_head_dim = 16;
  c.q_lora_rank = 128;
  c.o_lora_rank = 64;
  c.o_groups = 4;
  c.sliding_window = 16;
  c.rope_theta = 10000;
  c.compress_rope_theta = 40000;
  c.rope_scaling = {16, 32, 1, 64};
  c.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1};
  c.kv_source_layer_ids = {2, 4, 6};
  c.index_source_layer_ids = {2, 4, 6, 8};
  c.index_n_heads = 4;
  c.index_head_dim = 32;
  c.index_topk = 8;
  c.candidate_source_layer_id = 6;
  c.candidate_topk_blocks = 4;
  c.candidate_block_size = 4;
  c.moe_intermediate_size = 128;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.swiglu_limit = 10;
  c.routed_scaling_factor = 1.5;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.engram_layer_ids = {1, 4};
  c.engram_max_ngram_size = 4;
  c.engram_vocab_size = 1024;
  c.engram_n_heads = 2;
  c.engram_head_dim = 32;
  c.engram_pad_token_id = 2;
  c.engram_compressed_vocab_size = 512;
  c.num_nextn_predict_layers = 2;
  c.dspark_block_size = 3;
  c.dspark_noise_token_id = 1000;
  c.dspark_target_layer_ids = {7, 8, 9};
  c.dspark_markov_rank = 32;
  c.dspark_n_routed_experts = 4;
  c.dspark_num_experts_per_tok = 2;
  return c;
}

const OperationCost& of(const std::vector<OperationCost>& costs, std::string_view operation) {
  for (const OperationCost& cost : costs) {
    if (cost.operation == operation) return cost;
  }
  ADD_FAILURE() << "no operation " << operation;
  return costs.front();
}

TEST(TensorList, ReleasedConfigImpliesThePublishedTotals) {
  const std::vector<TensorSpec> tensors = tensor_list(test::released_config());
  const CheckpointSize size = checkpoint_size(tensors);
  EXPECT_EQ(size.total.num_tensors, 96'085);
  EXPECT_EQ(size.total.bytes, 510'286'023'000);
  EXPECT_EQ(size.of(TensorPart::kRoutedExpert).bytes, 295'997'276'160);
  EXPECT_EQ(size.of(TensorPart::kEngramTable).bytes + size.of(TensorPart::kEngram).bytes,
            203'073'076'240);
  EXPECT_EQ(size.of(TensorPart::kEngramTable).parameters, 196'613'849'600);
}

TEST(TensorList, ReleasedBackboneHasThePublishedParameters) {
  const ModelConfig config = test::released_config();
  int64_t parameters = 0;
  for (const TensorSpec& t : tensor_list(config)) {
    const bool is_backbone = t.layer < config.num_hidden_layers && t.part != TensorPart::kVision &&
                             t.part != TensorPart::kEngramTable;
    if (is_backbone) parameters += t.parameters();
  }
  EXPECT_EQ(parameters, 551'880'835'184);
}

TEST(TensorList, NamesEveryTensorOnce) {
  const std::vector<TensorSpec> tensors = tensor_list(test::released_config());
  std::set<std::string> names;
  for (const TensorSpec& t : tensors) names.insert(t.name);
  EXPECT_EQ(names.size(), tensors.size());
}

TEST(TensorList, MiniConfigurationHasItsPublishedParameters) {
  ModelConfig config = mini();
  ASSERT_TRUE(complete(config).ok()) << complete(config).error().message;
  EXPECT_EQ(checkpoint_size(tensor_list(config)).total.parameters, 14'857'560);
}

TEST(TensorList, NamesOfTypesAreThoseOfFiles) {
  EXPECT_EQ(dtype_name(Dtype::kF8E8M0), "F8_E8M0");
  EXPECT_EQ(dtype_bytes(Dtype::kF64), 8);
  for (int i = 0; i <= int(Dtype::kF64); ++i) {
    EXPECT_EQ(dtype_from_name(dtype_name(Dtype(i))), Dtype(i));
  }
  EXPECT_FALSE(dtype_from_name("F4").has_value());
  EXPECT_EQ(part_name(TensorPart::kEmbedding), "embedding");
  EXPECT_EQ(part_name(TensorPart::kVision), "vision");
  EXPECT_EQ(shape_text({2, 3}), "[2, 3]");
}

TEST(KvSize, ReleasedStateIsThePublishedOne) {
  const KvSize kv = kv_size(test::released_config());
  EXPECT_EQ(kv.compressed_row_bytes, 288);
  EXPECT_EQ(kv.index_key_bytes, 68);
  EXPECT_EQ(kv.window_entry_bytes, 528);
  EXPECT_EQ(kv.compressed_bytes_per_token, 720);
  EXPECT_EQ(kv.index_bytes_per_token, 170);
  EXPECT_EQ(kv.bytes_per_token(), 890);
  EXPECT_EQ(kv.window_bytes, 40 * 128 * 528);
  EXPECT_EQ(kv.draft_window_bytes, 3 * 128 * 528);
  EXPECT_EQ(kv.open_group_bytes, 12'288);
  EXPECT_EQ(kv.token_id_bytes, 12);
  EXPECT_EQ(kv.bytes_per_sequence(), 43 * 128 * 528 + 12'288 + 12);
}

TEST(DecodeCosts, ProductsTouchTheActiveParametersOfTheSpecification) {
  const std::vector<OperationCost> costs = decode_costs(test::released_config(), 0);
  double products = 0;
  for (const OperationCost& c : costs) {
    if (c.operation != "attention" && c.operation != "head") products += c.flops / 2;
  }
  EXPECT_NEAR(products, 15.47e9, 0.005e9);
  EXPECT_EQ(of(costs, "head").flops / 2, 129280.0 * 5120);
}

TEST(DecodeCosts, OneExpertAndOneTokensRowsHaveTheirPublishedBytes) {
  const std::vector<OperationCost> costs = decode_costs(test::released_config(), 0);
  EXPECT_EQ(of(costs, "ffn.experts").num_calls, 40 * 6);
  EXPECT_EQ(of(costs, "ffn.experts").weight_bytes, 40 * 6 * 18'800'640.0);
  EXPECT_EQ(of(costs, "engram.embed").weight_bytes, 12'672);
}

TEST(DecodeCosts, AttentionGrowsToTheWindowAndTheSelection) {
  const ModelConfig config = test::released_config();
  const double key_flops = 4.0 * 64 * 512;
  EXPECT_EQ(of(decode_costs(config, 0), "attention").flops, key_flops * (40 + 20));
  EXPECT_EQ(of(decode_costs(config, 1), "attention").flops, key_flops * (80 + 18 + 40));
  const OperationCost full = of(decode_costs(config, 1'000'000), "attention");
  EXPECT_EQ(full.flops, key_flops * (40 * 128 + 38 * 512));
  EXPECT_EQ(full.state_bytes, 40 * 128 * 528 + 38 * 512 * 288);
}

TEST(DecodeCosts, ScoringStartsBeyondTheSelectionAndStopsGrowingBehindTheFilter) {
  const ModelConfig config = test::released_config();
  for (const OperationCost& c : decode_costs(config, 511)) EXPECT_NE(c.operation, "indexer.score");
  // Layers 20, 24, 28, 32, 36 see 513 rows; layers 2, 8, 14 select all of their 256.
  EXPECT_EQ(of(decode_costs(config, 512), "indexer.score").num_calls, 5);
  EXPECT_EQ(of(decode_costs(config, 512), "indexer.score").state_bytes, 5 * 513 * 68);
  const int64_t length = 1'000'000;
  EXPECT_EQ(of(decode_costs(config, length - 1), "indexer.score").state_bytes,
            double(3 * length / 2 + length + 4 * 16'384) * 68);
}

TEST(DraftCosts, CountStagesWithTheirOwnExperts) {
  const std::vector<OperationCost> costs = draft_costs(test::released_config(), 1000);
  EXPECT_EQ(of(costs, "ffn.experts").num_calls, 3 * 3);
  EXPECT_EQ(of(costs, "attention").flops, 3 * 4.0 * 64 * 512 * (128 + 5));
  EXPECT_EQ(of(costs, "ffn.gate").weight_bytes, 3 * 2.0 * 128 * 5120);
}

TEST(DraftCosts, AreNothingWithoutStages) {
  ModelConfig config = mini();
  config.num_nextn_predict_layers = 0;
  EXPECT_TRUE(draft_costs(config, 0).empty());
}

TEST(Total, AddsEveryColumn) {
  const OperationCost costs[] = {{"a", 1, 2, 3, 4}, {"b", 10, 20, 30, 40}};
  const OperationCost sum = total(costs);
  EXPECT_EQ(sum.num_calls, 11);
  EXPECT_EQ(sum.flops, 22);
  EXPECT_EQ(sum.weight_bytes, 33);
  EXPECT_EQ(sum.state_bytes, 44);
}

}  // namespace
}  // namespace millrace
