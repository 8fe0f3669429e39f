#include "synth/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/format.h"
#include "checkpoint/checkpoint.h"
#include "model_config/config_json.h"
#include "model_config/layer_map.h"
#include "synth/random_weights.h"
#include "synth/synth_tokenizer.h"
#include "sys/file.h"
#include "tensor/dtype.h"
#include "tokenizer/token_map.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

SynthPlan planned(const ModelConfig& base, const SizeChanges& changes = {}) {
  Result<SynthPlan> plan = plan_synth(base, changes);
  if (!plan.has_value()) ADD_FAILURE() << plan.error().message;
  return std::move(plan.value());
}

std::string message_of(const ModelConfig& base, const SizeChanges& changes) {
  const Result<SynthPlan> plan = plan_synth(base, changes);
  return plan.has_value() ? "accepted" : plan.error().message;
}

// ---- Shapes.

TEST(Shapes, V41IsTheRelease) {
  const std::string released =
      read_file(MILLRACE_SOURCE_DIR "/tests/golden/config-v4.1-flash.json").value();
  EXPECT_EQ(config_json(named_shape("v4.1")), config_json(parse_model_config(released).value()));
}

TEST(Shapes, MiniHasEveryMechanismIn15MillionParameters) {
  const ModelConfig mini = named_shape("mini");
  int64_t parameters = 0;
  for (const TensorSpec& tensor : tensor_list(mini)) parameters += tensor.parameters();
  EXPECT_EQ(parameters, 14'857'560);
  EXPECT_THAT(mini.engram_num_embeddings, ElementsAre(6264, 6500));
}

TEST(Shapes, RealStructureKeepsLayersWindowAndSelectionsOfTheRelease) {
  const ModelConfig small = named_shape("real-structure"), release = named_shape("v4.1");
  EXPECT_EQ(small.hidden_size, 256);
  EXPECT_EQ(small.compress_ratios, release.compress_ratios);
  EXPECT_EQ(small.kv_source_layer_ids, release.kv_source_layer_ids);
  EXPECT_EQ(small.index_source_layer_ids, release.index_source_layer_ids);
  EXPECT_EQ(small.sliding_window, 128);
  EXPECT_EQ(small.index_topk, 512);
  EXPECT_EQ(small.candidate_source_layer_id, 20);
  EXPECT_EQ(small.candidate_topk_blocks, 2048);
  EXPECT_EQ(small.candidate_block_size, 8);
  EXPECT_EQ(small.max_position_embeddings, release.max_position_embeddings);
}

TEST(Shapes, EveryNumberOfLayersGivesAConsistentMap) {
  for (const std::string_view name : shape_names()) {
    const ModelConfig base = named_shape(name);
    for (int64_t layers = 1; layers <= base.num_hidden_layers; ++layers) {
      ModelConfig config = base;
      SizeChanges changes;
      changes.layers = layers;
      ASSERT_TRUE(apply(changes, config).ok());
      const Status status = complete(config);
      ASSERT_TRUE(status.ok()) << name << " " << layers << ": " << status.error().message;
      const std::vector<LayerInfo> map = layer_map(config), whole = layer_map(base);
      for (size_t l = 0; l < map.size(); ++l) {
        EXPECT_EQ(map[l].compress_ratio, whole[l].compress_ratio) << layers;
        EXPECT_EQ(map[l].kv_source, whole[l].kv_source) << layers;
        EXPECT_EQ(map[l].index_source, whole[l].index_source) << layers;
        EXPECT_EQ(map[l].engram_table, whole[l].engram_table) << layers;
        EXPECT_EQ(map[l].is_candidate_filtered, whole[l].is_candidate_filtered) << layers;
      }
    }
  }
}

TEST(Shapes, ChosenLayersReadTheSameLayersAsBefore) {
  const ModelConfig release = named_shape("v4.1");
  SizeChanges changes;
  changes.layer_ids = {0, 1, 2, 3, 14, 20, 21, 24};
  ModelConfig config = release;
  ASSERT_TRUE(apply(changes, config).ok());
  ASSERT_TRUE(complete(config).ok());
  EXPECT_THAT(config.kv_source_layer_ids, ElementsAre(2, 4, 5));
  EXPECT_THAT(config.index_source_layer_ids, ElementsAre(2, 4, 5, 7));
  EXPECT_THAT(config.engram_layer_ids, ElementsAre(1, 4));
  EXPECT_EQ(config.candidate_source_layer_id, 5);
  EXPECT_THAT(config.dspark_target_layer_ids, ElementsAre(5, 6, 7));
  const std::vector<LayerInfo> map = layer_map(config), whole = layer_map(release);
  const auto in_release = [&](int64_t id) { return id < 0 ? id : changes.layer_ids[size_t(id)]; };
  for (size_t l = 0; l < map.size(); ++l) {
    const LayerInfo& before = whole[size_t(changes.layer_ids[l])];
    EXPECT_EQ(map[l].compress_ratio, before.compress_ratio) << l;
    EXPECT_EQ(in_release(map[l].kv_source), before.kv_source) << l;
    EXPECT_EQ(in_release(map[l].index_source), before.index_source) << l;
    EXPECT_EQ(map[l].engram_table, before.engram_table) << l;
    EXPECT_EQ(map[l].is_candidate_source, before.is_candidate_source) << l;
    EXPECT_EQ(map[l].is_candidate_filtered, before.is_candidate_filtered) << l;
  }
}

TEST(Shapes, ChosenLayersWithoutWhatTheyReadAreRefused) {
  const auto chosen = [](std::vector<int64_t> ids) {
    SizeChanges changes;
    changes.layer_ids = std::move(ids);
    return message_of(named_shape("v4.1"), changes);
  };
  EXPECT_EQ(chosen({0, 3}), "--layer-ids: found 3, expected layer 2 with it, of which it reads");
  EXPECT_EQ(chosen({2, 25}), "--layer-ids: found 25, expected layer 20 with it, of which it reads");
  EXPECT_EQ(chosen({20, 25}),
            "--layer-ids: found 25, expected layer 24 with it, of which it reads");
  EXPECT_EQ(chosen({1, 0}), "--layer-ids: found 0, expected ids ascending, this one 2 to 39");
  EXPECT_EQ(chosen({0, 40}), "--layer-ids: found 40, expected ids ascending, this one 1 to 39");
}

TEST(Shapes, ChangesReachWhatFollowsFromThem) {
  SizeChanges changes;
  changes.layers = 3;
  changes.experts = 4;
  changes.hidden = 512;
  changes.vocab = 600;
  changes.engram_rows = 24'000;
  changes.draft = 1;
  changes.vision = false;
  const ModelConfig c = planned(named_shape("v4.1"), changes).config;
  EXPECT_EQ(c.num_hidden_layers, 3);
  EXPECT_THAT(c.compress_ratios, ElementsAre(0, 0, 2, 0));
  EXPECT_THAT(c.kv_source_layer_ids, ElementsAre(2));
  EXPECT_THAT(c.dspark_target_layer_ids, ElementsAre(0, 1, 2));
  EXPECT_EQ(c.candidate_source_layer_id, -1);
  EXPECT_EQ(c.n_routed_experts, 4);
  EXPECT_EQ(c.num_experts_per_tok, 4);
  EXPECT_EQ(c.dspark_n_routed_experts, 4);
  EXPECT_EQ(c.hidden_size, 512);
  EXPECT_EQ(c.vocab_size, 600);
  EXPECT_LT(c.image_token_id, 600);
  EXPECT_LT(c.dspark_noise_token_id, 600);
  EXPECT_NEAR(double(c.engram_num_embeddings[0]), 24'000, 2'500);
  EXPECT_EQ(c.num_nextn_predict_layers, 1);
  EXPECT_FALSE(c.vision_config.has_value());

  SizeChanges none;
  none.engram_rows = 0;
  none.draft = 0;
  const ModelConfig bare = planned(named_shape("mini"), none).config;
  EXPECT_THAT(bare.engram_layer_ids, IsEmpty());
  EXPECT_EQ(bare.num_nextn_predict_layers, 0);
}

TEST(Shapes, SizesWithoutSenseAreRefusedByTheNameOfTheirFlag) {
  const ModelConfig mini = named_shape("mini");
  SizeChanges none;
  none.draft = 0;
  const ModelConfig without_draft = planned(mini, none).config;
  const auto with = [](auto member, int64_t value) {
    SizeChanges changes;
    changes.*member = value;
    return changes;
  };
  EXPECT_EQ(message_of(mini, with(&SizeChanges::layers, 11)),
            "--layers: found 11, expected 1 to 10, what the config has");
  EXPECT_THAT(message_of(mini, with(&SizeChanges::layers, 0)), HasSubstr("--layers: found 0"));
  EXPECT_THAT(message_of(mini, with(&SizeChanges::experts, 0)), HasSubstr("--experts: found 0"));
  EXPECT_THAT(message_of(mini, with(&SizeChanges::experts, 1 << 20)),
              HasSubstr("--experts: n_routed_experts: found 1048576"));
  EXPECT_EQ(message_of(mini, with(&SizeChanges::hidden, 100)),
            "--hidden: hidden_size: found 100, expected a multiple of 32");
  EXPECT_THAT(message_of(mini, with(&SizeChanges::vocab, 0)), HasSubstr("--vocab: found 0"));
  EXPECT_EQ(message_of(mini, with(&SizeChanges::vocab, 2)),
            "--vocab: found 2, expected more than pad_token_id, 2");
  EXPECT_EQ(
      message_of(mini, with(&SizeChanges::vocab, 200)),
      "--vocab: vocab_size: found 200, expected at least 273: the bytes and the control tokens");
  EXPECT_THAT(message_of(mini, with(&SizeChanges::vocab, int64_t{1} << 40)),
              HasSubstr("--vocab: vocab_size: found 1099511627776"));
  EXPECT_THAT(message_of(mini, with(&SizeChanges::engram_rows, -1)),
              HasSubstr("--engram-rows: found -1"));
  EXPECT_THAT(message_of(mini, with(&SizeChanges::engram_rows, int64_t{1} << 50)),
              HasSubstr("--engram-rows: engram_vocab_size: found "));
  EXPECT_THAT(message_of(mini, with(&SizeChanges::draft, -1)), HasSubstr("--draft: found -1"));
  EXPECT_THAT(message_of(mini, with(&SizeChanges::draft, 1000)),
              HasSubstr("--draft: num_nextn_predict_layers: found 1000"));
  EXPECT_EQ(message_of(without_draft, with(&SizeChanges::draft, 1)),
            "--draft: found 1, expected 0: the config has no sizes of draft stages");
}

// ---- Tokenizer.

TEST(SynthTokenizer, HasTheSizeTheCompressedSizeAndTheTokenIdsOfItsConfig) {
  for (const char* name : {"mini", "v4.1"}) {
    const ModelConfig config = named_shape(name);
    const Tokenizer tokenizer = Tokenizer::parse(planned(config).tokenizer_json).value();
    EXPECT_EQ(tokenizer.vocab_size(), config.vocab_size) << name;
    EXPECT_EQ(make_token_map(tokenizer).compressed_vocab_size, config.engram_compressed_vocab_size)
        << name;
    EXPECT_EQ(tokenizer.token_id("<｜begin▁of▁sentence｜>"), config.bos_token_id);
    EXPECT_EQ(tokenizer.token_id("<｜end▁of▁sentence｜>"), config.eos_token_id);
    EXPECT_EQ(tokenizer.token_id("<｜deepseek_image｜>"), config.image_token_id);
    EXPECT_TRUE(tokenizer.token_id("<｜User｜>").has_value());
    const std::string text = "Hello HELLO hello, 12345 wörld \xff\n\n 你好 <think>";
    const std::vector<int32_t> ids = tokenizer.encode(text, SpecialTokens::kPlainText);
    std::string bytes;
    for (const int32_t id : ids) bytes += tokenizer.token_bytes(id);
    EXPECT_EQ(bytes, text);
    EXPECT_LT(ids.size(), text.size()) << "words are merged";
  }
}

TEST(SynthTokenizer, AnySizesItCanHaveItHas) {
  ModelConfig config = named_shape("mini");
  for (const int64_t vocab_size : {273, 274, 300, 1002, 5000}) {
    config.vocab_size = vocab_size;
    config.image_token_id = vocab_size - 1;
    const int64_t free_choice = make_tokenizer(config, {}).value().compressed_vocab_size;
    for (const int64_t wanted : {free_choice, free_choice - (vocab_size - 273) / 2}) {
      const SynthTokenizer made = make_tokenizer(config, wanted).value();
      const Tokenizer tokenizer = Tokenizer::parse(made.json).value();
      EXPECT_EQ(tokenizer.vocab_size(), vocab_size);
      EXPECT_EQ(make_token_map(tokenizer).compressed_vocab_size, wanted);
    }
  }
}

TEST(SynthTokenizer, RefusesSizesThatNoTokenizerHas) {
  ModelConfig config = named_shape("mini");
  EXPECT_EQ(make_tokenizer(config, 1024).error().message,
            "engram_compressed_vocab_size: found 1024, expected 370 to 995 for a tokenizer of 1024 "
            "tokens");
  config.pad_token_id = 1;
  EXPECT_THAT(make_tokenizer(config, {}).error().message, HasSubstr("found the same id twice"));
}

// ---- Weights.

std::vector<uint8_t> values_of(uint64_t seed, const TensorSpec& tensor) {
  std::vector<uint8_t> bytes(size_t(tensor.bytes()));
  random_values(seed, tensor, 0, bytes);
  return bytes;
}

TEST(RandomWeights, AreTheSameInWhateverPiecesTheyAreAskedFor) {
  for (const TensorSpec& tensor : tensor_list(named_shape("mini"))) {
    if (tensor.layer > 4) continue;
    const std::vector<uint8_t> whole = values_of(3, tensor);
    std::vector<uint8_t> pieces(whole.size());
    for (size_t at = 0, piece = 64; at < whole.size(); at += piece, piece = piece * 2 % 4032 + 64) {
      random_values(3, tensor, int64_t(at),
                    std::span(pieces).subspan(at, std::min(piece, whole.size() - at)));
    }
    EXPECT_EQ(pieces, whole) << tensor.name;
  }
}

TEST(RandomWeights, DifferBySeedAndByName) {
  const TensorSpec one{
      "layers.0.attn.wq_a.weight", Dtype::kF8E4M3, {64, 64}, TensorPart::kAttention, 0};
  TensorSpec other = one;
  other.name = "layers.1.attn.wq_a.weight";
  EXPECT_NE(values_of(1, one), values_of(2, one));
  EXPECT_NE(values_of(1, one), values_of(1, other));
}

// Deviation of a quantised matrix's values.
double deviation_fp8(int64_t n, int64_t k) {
  const std::string base = "layers.3.attn.wq_a";
  const std::vector<uint8_t> codes =
      values_of(1, {base + ".weight", Dtype::kF8E4M3, {n, k}, TensorPart::kAttention, 3});
  const std::vector<uint8_t> scales =
      values_of(1, {base + ".scale", Dtype::kF8E8M0, {n / 32, k / 32}, TensorPart::kAttention, 3});
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const double w = double(e4m3_to_float(codes[size_t(i * k + j)])) *
                       double(ue8m0_to_float(scales[size_t(i / 32 * (k / 32) + j / 32)]));
      squares += w * w;
    }
  }
  return std::sqrt(squares / double(n * k));
}

double deviation_fp4(int64_t n, int64_t k) {
  const std::string base = "layers.3.ffn.experts.5.w1";
  const std::vector<uint8_t> codes =
      values_of(1, {base + ".weight", Dtype::kI8, {n, k / 2}, TensorPart::kRoutedExpert, 3});
  const std::vector<uint8_t> scales =
      values_of(1, {base + ".scale", Dtype::kF8E8M0, {n, k / 32}, TensorPart::kRoutedExpert, 3});
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const int code = codes[size_t(i * (k / 2) + j / 2)] >> (j % 2 * 4);
      const double w = double(e2m1_to_float(uint8_t(code & 15))) *
                       double(ue8m0_to_float(scales[size_t(i * (k / 32) + j / 32)]));
      squares += w * w;
    }
  }
  return std::sqrt(squares / double(n * k));
}

TEST(RandomWeights, GiveProductsOfTheOrderOfOneWhateverTheirWidth) {
  // Scales are powers of two, so the aim of 1 / sqrt(k) is met within their steps.
  for (const int64_t k : {64, 256, 5120}) {
    EXPECT_GT(deviation_fp8(128, k) * std::sqrt(double(k)), 0.6) << k;
    EXPECT_LT(deviation_fp8(128, k) * std::sqrt(double(k)), 2.2) << k;
    EXPECT_GT(deviation_fp4(128, k) * std::sqrt(double(k)), 0.6) << k;
    EXPECT_LT(deviation_fp4(128, k) * std::sqrt(double(k)), 2.2) << k;
  }
}

TEST(RandomWeights, UseEveryCodeOfTheirFormatButNoNan) {
  std::vector<int> fp8(256), nibbles(16);
  for (const uint8_t code :
       values_of(1, {"a.weight", Dtype::kF8E4M3, {512, 512}, TensorPart::kAttention, 0})) {
    ++fp8[code];
  }
  EXPECT_EQ(fp8[0x7f] + fp8[0xff], 0);
  EXPECT_GT(fp8[0x7e], 0);  // 448
  EXPECT_GT(fp8[0xfe], 0);
  for (const uint8_t code :
       values_of(1, {"a.weight", Dtype::kI8, {512, 512}, TensorPart::kRoutedExpert, 0})) {
    ++nibbles[code & 15];
    ++nibbles[code >> 4];
  }
  for (int code = 0; code < 16; ++code) EXPECT_GT(nibbles[size_t(code)], 0) << code;
}

TEST(RandomWeights, NormsAreNearOneAndVectorsHaveTheSpreadOfTheirRole) {
  const auto moments = [](const std::string& name, Dtype dtype) {
    const std::vector<uint8_t> bytes = values_of(1, {name, dtype, {4096}, TensorPart::kNorm, 0});
    double sum = 0, squares = 0;
    for (size_t i = 0; i < 4096; ++i) {
      double x = 0;
      if (dtype == Dtype::kF32) {
        x = double(reinterpret_cast<const float*>(bytes.data())[i]);
      } else {
        x = double(to_float(reinterpret_cast<const bf16*>(bytes.data())[i]));
      }
      sum += x / 4096;
      squares += x * x / 4096;
    }
    return std::pair(sum, std::sqrt(squares - sum * sum));
  };
  EXPECT_NEAR(moments("layers.0.attn_norm.weight", Dtype::kBF16).first, 1, 0.01);
  EXPECT_NEAR(moments("layers.0.attn_norm.weight", Dtype::kBF16).second, 0.1, 0.01);
  EXPECT_NEAR(moments("layers.0.attn.attn_sink", Dtype::kF32).first, 0, 0.05);
  EXPECT_NEAR(moments("layers.0.attn.attn_sink", Dtype::kF32).second, 0.5, 0.05);
  EXPECT_NEAR(moments("layers.0.hc_attn_scale", Dtype::kF32).first, 0.7, 0.01);
}

// ---- The whole.

class SynthFolder : public ::testing::Test {
 protected:
  SynthFolder() {
    std::string name = testing::TempDir() + "millrace-synth-XXXXXX";
    MR_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~SynthFolder() override { fs::remove_all(folder_); }

  std::string write(const std::string& folder, const SynthOptions& options,
                    const WriteProgress& progress = {}) const {
    const Status status = write_synth(folder, plan_, options, progress);
    return status.ok() ? "written" : status.error().message;
  }
  static int64_t num_files(const std::string& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  }

  std::string folder_;
  const SynthPlan plan_ = planned(named_shape("mini"));
};

TEST_F(SynthFolder, IsACheckpointAndTheSameForTheSameSeed) {
  EXPECT_EQ(write(folder_ + "/a/deep", {.seed = 7, .num_shards = 3}), "written");
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder_ + "/a/deep");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint.value().copied_bytes(), 0);
  EXPECT_EQ(write(folder_ + "/b", {.seed = 7, .num_shards = 3}), "written");
  EXPECT_EQ(write(folder_ + "/c", {.seed = 8, .num_shards = 3}), "written");
  for (const auto& entry : fs::directory_iterator(folder_ + "/a/deep")) {
    const std::string name = entry.path().filename(), content = read_file(entry.path()).value();
    EXPECT_TRUE(read_file(folder_ + "/b/" + name).value() == content) << name;
    const bool differs = read_file(folder_ + "/c/" + name).value() != content;
    EXPECT_EQ(differs, name.ends_with(".safetensors")) << name;
  }
}

TEST_F(SynthFolder, FilesOfOthersAreWrittenOverOnlyWhenAsked) {
  ASSERT_TRUE(write_file(folder_ + "/other", "").ok());
  EXPECT_EQ(write(folder_, {}),
            folder_ + ": found files in the folder, expected none without --overwrite");
  EXPECT_EQ(num_files(folder_), 1);
  EXPECT_EQ(write(folder_, {.seed = 0, .num_shards = {}, .sparse = false, .overwrite = true}),
            "written");
  EXPECT_TRUE(Checkpoint::open(folder_).has_value());
  EXPECT_TRUE(fs::exists(folder_ + "/other"));
  EXPECT_EQ(write(folder_ + "/other", {}), folder_ + "/other: found a file, expected a folder");
}

TEST_F(SynthFolder, OfAModelThatIsWrittenOverNoShardIsLeft) {
  SynthOptions options{.seed = 0, .num_shards = 5, .sparse = false, .overwrite = true};
  EXPECT_EQ(write(folder_, options), "written");
  const int64_t with_five = num_files(folder_);
  // Of others, whatever they are called like.
  ASSERT_TRUE(write_file(folder_ + "/model-0001-of-00005.safetensors", "").ok());
  ASSERT_TRUE(write_file(folder_ + "/model.safetensors", "").ok());
  options.num_shards = 2;
  EXPECT_EQ(write(folder_, options), "written");
  EXPECT_EQ(num_files(folder_), with_five - 5 + 2 + 2);
  EXPECT_TRUE(Checkpoint::open(folder_).has_value());
}

TEST_F(SynthFolder, StoppedItLeavesNothingAndNoFolderThatItMade) {
  const auto stop = [](int64_t done, int64_t all) { return done < all / 2; };
  EXPECT_EQ(write(folder_ + "/new", {}, stop), "stopped");
  EXPECT_FALSE(fs::exists(folder_ + "/new"));
  EXPECT_EQ(write(folder_, {}, stop), "stopped");
  EXPECT_EQ(num_files(folder_), 0);
}

TEST_F(SynthFolder, ANumberOfShardsThatCannotBeIsRefused) {
  EXPECT_EQ(write(folder_ + "/new", {.seed = 0, .num_shards = 937}),
            "--shards: found 937, expected 1 to 936, the number of tensors");
  EXPECT_FALSE(fs::exists(folder_ + "/new"));
}

TEST_F(SynthFolder, WhatAKilledRunLeftStaysUntilACommandMayRun) {
  const pid_t gone = ::fork();
  ASSERT_GE(gone, 0);
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  const std::string left = format(folder_, "/model-00001-of-00001.safetensors.tmp.", gone);
  ASSERT_TRUE(write_file(left, "half").ok());
  EXPECT_THAT(write(folder_, {.seed = 0, .num_shards = 937}), testing::HasSubstr("--shards: "));
  EXPECT_TRUE(fs::exists(left));
  ASSERT_TRUE(write_file(folder_ + "/other", "").ok());
  EXPECT_THAT(write(folder_, {}), testing::HasSubstr("found files in the folder"));
  EXPECT_TRUE(fs::exists(left));
  fs::remove(folder_ + "/other");
  EXPECT_EQ(write(folder_, {}), "written") << "it does not count as a file of others";
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(SynthFolder, WhatDoesNotFitTheDiskIsRefusedBeforeItIsWritten) {
  SynthPlan huge = plan_;
  huge.tensor_bytes = int64_t{1} << 60;
  const Status status = write_synth(folder_ + "/new", huge, {.seed = 0, .num_shards = 1});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(
      status.error().message,
      testing::ContainsRegex("found [0-9]+ bytes free, expected 1152921504673955840; --sparse"));
  EXPECT_FALSE(fs::exists(folder_ + "/new"));
}

}  // namespace
}  // namespace millrace
