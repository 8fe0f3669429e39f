#include "synth/shapes.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/format.h"
#include "model_config/layer_map.h"

namespace millrace {
namespace {

constexpr std::string_view kShapeNames[] = {"mini", "real-structure", "v4.1"};

// `count` times the ratio, for every pair.
std::vector<int64_t> ratios(std::initializer_list<std::pair<int64_t, int64_t>> runs) {
  std::vector<int64_t> all;
  for (const auto& [count, ratio] : runs) all.insert(all.end(), size_t(count), ratio);
  return all;
}

ModelConfig v41_shape() {
  ModelConfig c;
  c.image_token_id = 129264;
  c.quantization_config = {"fp8", "ue8m0", "fp4", {32, 32}};
  c.vision_config = VisionConfig{32, 1024, 2816, 14, 3};

  c.vocab_size = 129280;
  c.hidden_size = 5120;
  c.num_hidden_layers = 40;
  c.max_position_embeddings = 1 << 20;
  c.rms_norm_eps = 1e-20;

  c.num_attention_heads = 64;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 1280;
  c.o_lora_rank = 1024;
  c.o_groups = 8;
  c.sliding_window = 128;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.rope_scaling = {16, 32, 1, 65536};

  c.compress_ratios = ratios({{2, 0}, {18, 2}, {20, 1}, {3, 0}});
  c.kv_source_layer_ids = {2, 8, 14, 20};
  c.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  c.index_n_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.candidate_source_layer_id = 20;
  c.candidate_topk_blocks = 2048;
  c.candidate_block_size = 8;

  c.moe_intermediate_size = 2304;
  c.n_routed_experts = 384;
  c.num_experts_per_tok = 6;
  c.swiglu_limit = 10;
  c.routed_scaling_factor = 1.5;

  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;

  c.engram_layer_ids = {1, 14};
  c.engram_max_ngram_size = 4;
  c.engram_vocab_size = 16'000'000;
  c.engram_n_heads = 8;
  c.engram_head_dim = 256;
  c.engram_pad_token_id = 2;
  c.engram_compressed_vocab_size = 99092;

  c.num_nextn_predict_layers = 3;
  c.dspark_block_size = 5;
  c.dspark_noise_token_id = 128799;
  c.dspark_target_layer_ids = {37, 38, 39};
  c.dspark_markov_rank = 256;
  c.dspark_n_routed_experts = 128;
  c.dspark_num_experts_per_tok = 3;
  return c;
}

// Small widths for the release's structure.
ModelConfig real_structure_shape() {
  ModelConfig c = v41_shape();
  c.vision_config.reset();
  c.image_token_id = 1001;
  c.vocab_size = 1024;
  c.hidden_size = 256;
  c.num_attention_heads = 4;
  c.head_dim = 64;
  c.qk_rope_head_dim = 16;
  c.q_lora_rank = 64;
  c.o_lora_rank = 32;
  c.o_groups = 2;
  c.index_n_heads = 2;
  c.index_head_dim = 32;
  c.moe_intermediate_size = 64;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.engram_vocab_size = 1024;
  c.engram_n_heads = 2;
  c.engram_head_dim = 32;
  c.engram_compressed_vocab_size = 512;
  c.dspark_noise_token_id = 1000;
  c.dspark_markov_rank = 32;
  c.dspark_n_routed_experts = 4;
  c.dspark_num_experts_per_tok = 2;
  return c;
}

// Every mechanism, with windows that short prompts leave.
ModelConfig mini_shape() {
  ModelConfig c = real_structure_shape();
  c.num_hidden_layers = 10;
  c.max_position_embeddings = 1024;
  c.num_attention_heads = 8;
  c.q_lora_rank = 128;
  c.o_lora_rank = 64;
  c.o_groups = 4;
  c.sliding_window = 16;
  c.compress_rope_theta = 40000;
  c.rope_scaling.original_max_position_embeddings = 64;
  c.compress_ratios = ratios({{2, 0}, {4, 2}, {4, 1}, {2, 0}});
  c.kv_source_layer_ids = {2, 4, 6};
  c.index_source_layer_ids = {2, 4, 6, 8};
  c.index_n_heads = 4;
  c.index_topk = 8;
  c.candidate_source_layer_id = 6;
  c.candidate_topk_blocks = 4;
  c.candidate_block_size = 4;
  c.moe_intermediate_size = 128;
  c.engram_layer_ids = {1, 4};
  c.num_nextn_predict_layers = 2;
  c.dspark_block_size = 3;
  c.dspark_target_layer_ids = {7, 8, 9};
  return c;
}

Error bad_flag(std::string_view flag, int64_t found, std::string_view expected) {
  return {Code::kInvalidArgument, format(flag, ": found ", found, ", expected ", expected)};
}

// The layers that are left keep what they read: of the layers `ids` refers to, those that are
// left, by their new numbers.
std::vector<int64_t> renumbered(const std::vector<int64_t>& ids, const std::vector<int64_t>& kept) {
  std::vector<int64_t> left;
  for (size_t l = 0; l < kept.size(); ++l) {
    if (std::ranges::count(ids, kept[l]) > 0) left.push_back(int64_t(l));
  }
  return left;
}

// The layer that `layer` reads something of and that is not among those kept, or -1.
int64_t missing_source(const ModelConfig& c, const LayerInfo& layer,
                       const std::vector<int64_t>& kept) {
  const int64_t filter = layer.is_candidate_filtered ? c.candidate_source_layer_id : -1;
  for (const int64_t source : {layer.kv_source, layer.index_source, filter}) {
    if (source >= 0 && std::ranges::count(kept, source) == 0) return source;
  }
  return -1;
}

// Requires: ids of layers, ascending.
Status keep_layers(const std::vector<int64_t>& kept, std::string_view flag, ModelConfig& c) {
  const std::vector<LayerInfo> layers = layer_map(c);
  std::vector<int64_t> compress_ratios;
  for (const int64_t l : kept) {
    const int64_t missing = missing_source(c, layers[size_t(l)], kept);
    if (missing >= 0) {
      return bad_flag(flag, l, format("layer ", missing, " with it, of which it reads"));
    }
    compress_ratios.push_back(c.compress_ratios[size_t(l)]);
  }
  c.num_hidden_layers = int64_t(kept.size());
  c.compress_ratios = compress_ratios;  // complete() adds the draft stages again
  c.kv_source_layer_ids = renumbered(c.kv_source_layer_ids, kept);
  c.index_source_layer_ids = renumbered(c.index_source_layer_ids, kept);
  c.engram_layer_ids = renumbered(c.engram_layer_ids, kept);
  const std::vector<int64_t> filter = renumbered({c.candidate_source_layer_id}, kept);
  c.candidate_source_layer_id = filter.empty() ? -1 : filter[0];
  const std::vector<int64_t> targets = renumbered(c.dspark_target_layer_ids, kept);
  const int64_t num_targets = std::min<int64_t>(std::ssize(c.dspark_target_layer_ids),
                                                c.num_hidden_layers);
  c.dspark_target_layer_ids = targets;
  if (std::ssize(targets) < num_targets) {
    // As many of the last layers: the projection's width is their number.
    c.dspark_target_layer_ids.resize(size_t(num_targets));
    std::iota(c.dspark_target_layer_ids.begin(), c.dspark_target_layer_ids.end(),
              c.num_hidden_layers - num_targets);
  }
  return {};
}

Status keep_first_layers(int64_t layers, ModelConfig& c) {
  if (layers < 1 || layers > c.num_hidden_layers) {
    return bad_flag("--layers", layers,
                    format("1 to ", c.num_hidden_layers, ", what the config has"));
  }
  std::vector<int64_t> kept(static_cast<size_t>(layers));
  std::iota(kept.begin(), kept.end(), 0);
  return keep_layers(kept, "--layers", c);
}

Status keep_chosen_layers(const std::vector<int64_t>& ids, ModelConfig& c) {
  int64_t least = 0;
  for (const int64_t id : ids) {
    if (id < least || id >= c.num_hidden_layers) {
      return bad_flag("--layer-ids", id,
                      format("ids ascending, this one ", least, " to ", c.num_hidden_layers - 1));
    }
    least = id + 1;
  }
  return keep_layers(ids, "--layer-ids", c);
}

Status change_vocab(int64_t vocab, ModelConfig& c) {
  if (vocab < 1) return bad_flag("--vocab", vocab, "at least 1");
  c.vocab_size = vocab;
  for (const auto& [name, id] : {std::pair{"bos_token_id", &c.bos_token_id},
                                 {"eos_token_id", &c.eos_token_id},
                                 {"pad_token_id", &c.pad_token_id},
                                 {"engram_pad_token_id", &c.engram_pad_token_id}}) {
    if (*id >= vocab) {
      return bad_flag("--vocab", vocab, format("more than ", name, ", ", *id));
    }
  }
  if (c.image_token_id >= vocab) c.image_token_id = vocab - 2;
  if (c.dspark_noise_token_id >= vocab) c.dspark_noise_token_id = vocab - 1;
  return {};
}

}  // namespace

std::span<const std::string_view> shape_names() { return kShapeNames; }

ModelConfig named_shape(std::string_view name) {
  ModelConfig config = name == "v4.1"             ? v41_shape()
                       : name == "real-structure" ? real_structure_shape()
                                                  : mini_shape();
  MR_CHECK(std::ranges::count(kShapeNames, name) == 1);
  const Status status = complete(config);
  MR_CHECK(status.ok());
  return config;
}

Status apply(const SizeChanges& changes, ModelConfig& c) {
  if (!changes.layer_ids.empty()) RETURN_IF_ERROR(keep_chosen_layers(changes.layer_ids, c));
  if (changes.layers) RETURN_IF_ERROR(keep_first_layers(*changes.layers, c));
  if (changes.experts) {
    if (*changes.experts < 1) return bad_flag("--experts", *changes.experts, "at least 1");
    c.n_routed_experts = *changes.experts;
    c.num_experts_per_tok = std::min(c.num_experts_per_tok, c.n_routed_experts);
    c.dspark_n_routed_experts = std::min(c.dspark_n_routed_experts, c.n_routed_experts);
    c.dspark_num_experts_per_tok =
        std::min(c.dspark_num_experts_per_tok, c.dspark_n_routed_experts);
  }
  if (changes.hidden) c.hidden_size = *changes.hidden;
  if (changes.vocab) RETURN_IF_ERROR(change_vocab(*changes.vocab, c));
  if (changes.engram_rows) {
    if (*changes.engram_rows < 0)
      return bad_flag("--engram-rows", *changes.engram_rows, "at least 0");
    if (*changes.engram_rows == 0) {
      c.engram_layer_ids.clear();
    } else if (!c.engram_layer_ids.empty()) {
      c.engram_vocab_size = std::max<int64_t>(1, *changes.engram_rows / c.engram_num_columns());
    }
  }
  if (changes.draft) {
    if (*changes.draft < 0) return bad_flag("--draft", *changes.draft, "at least 0");
    if (*changes.draft > 0 && c.num_nextn_predict_layers == 0) {
      return bad_flag("--draft", *changes.draft, "0: the config has no sizes of draft stages");
    }
    c.num_nextn_predict_layers = *changes.draft;
    c.compress_ratios.resize(size_t(c.num_hidden_layers));
  }
  if (!changes.vision) c.vision_config.reset();
  c.engram_num_embeddings.clear();  // complete() computes them
  return {};
}

}  // namespace millrace
