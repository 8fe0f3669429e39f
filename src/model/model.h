#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kvcache/kv_layout.h"
#include "model/numerics.h"
#include "model/weights.h"
#include "model_config/engram_constants.h"
#include "model_config/layer_map.h"
#include "model_config/needed_tokens.h"
#include "model_config/model_config.h"

namespace millrace {

// How the state of sequences is stored.
inline KvFormat kv_format_of(Numerics numerics) {
  return numerics == Numerics::kReference ? KvFormat::kQuantized : KvFormat::kFp32;
}

// A loaded model: what never changes while it runs. Read by any number of runners.
struct Model {
  ModelConfig config;
  Numerics numerics = Numerics::kReference;
  std::vector<LayerInfo> layers;
  LayerReach reach;
  std::vector<EngramTable> engram_tables;
  std::vector<int32_t> token_map;  // [vocab_size] compressed id of each token
  std::vector<float> window_frequencies, compressed_frequencies;  // [qk_rope_head_dim / 2]
  ModelWeights weights;            // views into the weight source

  // Binds every weight. `token_map` comes from the tokenizer; a size or a number of compressed
  // ids that does not fit the config is refused, since it would silently re-hash every table.
  static Result<Model> load(const ModelConfig& config, const WeightSource& source,
                            std::vector<int32_t> token_map, Numerics numerics);
};

}  // namespace millrace
