#include "model/model.h"

#include <algorithm>

#include "base/format.h"
#include "kernels/math.h"

namespace millrace {
namespace {

Status check_token_map(const ModelConfig& config, const std::vector<int32_t>& token_map) {
  if (config.engram_layer_ids.empty()) return {};
  if (int64_t(token_map.size()) != config.vocab_size) {
    return Error{Code::kInvalidArgument,
                 format("tokenizer.json: found ", token_map.size(), " tokens, expected vocab_size ",
                        config.vocab_size)};
  }
  const int64_t found = *std::max_element(token_map.begin(), token_map.end()) + int64_t{1};
  if (found != config.engram_compressed_vocab_size) {
    return Error{Code::kInvalidArgument,
                 format("tokenizer.json: found ", found, " compressed token ids, expected ",
                        "engram_compressed_vocab_size ", config.engram_compressed_vocab_size,
                        "; this tokenizer does not belong to this checkpoint")};
  }
  return {};
}

}  // namespace

Result<Model> Model::load(const ModelConfig& config, const WeightSource& source,
                          std::vector<int32_t> token_map, Numerics numerics) {
  RETURN_IF_ERROR(check_token_map(config, token_map));
  Model model;
  ASSIGN_OR_RETURN(model.weights, ModelWeights::bind(config, source));
  model.config = config;
  model.numerics = numerics;
  model.layers = layer_map(config);
  model.reach = layer_reach(config);
  model.engram_tables = millrace::engram_tables(config);
  model.token_map = std::move(token_map);
  const size_t pairs = size_t(config.qk_rope_head_dim / 2);
  model.window_frequencies.resize(pairs);
  model.compressed_frequencies.resize(pairs);
  const RopeScaling& scaling = config.rope_scaling;
  const YarnParameters yarn{scaling.factor, scaling.beta_fast, scaling.beta_slow,
                            double(scaling.original_max_position_embeddings)};
  rope_frequencies(config.rope_theta, nullptr, model.window_frequencies);
  rope_frequencies(config.compress_rope_theta, &yarn, model.compressed_frequencies);
  return model;
}

}  // namespace millrace
