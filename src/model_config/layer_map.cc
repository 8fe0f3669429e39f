#include "model_config/layer_map.h"

#include <algorithm>

namespace millrace {
namespace {

bool contains(const std::vector<int64_t>& ids, int64_t layer) {
  return std::find(ids.begin(), ids.end(), layer) != ids.end();
}

}  // namespace

std::vector<LayerInfo> layer_map(const ModelConfig& config) {
  std::vector<LayerInfo> layers(size_t(config.num_hidden_layers));
  int64_t kv_source = -1;
  int64_t index_source = -1;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    LayerInfo& layer = layers[size_t(l)];
    layer.compress_ratio = config.compress_ratios[size_t(l)];
    layer.owns_compressor = contains(config.kv_source_layer_ids, l);
    layer.owns_index = contains(config.index_source_layer_ids, l);
    if (layer.owns_compressor) kv_source = l;
    if (layer.owns_index) index_source = l;
    if (layer.compress_ratio > 0) {
      layer.kv_source = kv_source;
      layer.index_source = index_source;
    }
    layer.is_candidate_source = l == config.candidate_source_layer_id;
    layer.is_candidate_filtered = layer.owns_index && config.candidate_source_layer_id >= 0 &&
                                  l > config.candidate_source_layer_id;
    layer.is_draft_target = contains(config.dspark_target_layer_ids, l);
  }
  for (size_t table = 0; table < config.engram_layer_ids.size(); ++table) {
    layers[size_t(config.engram_layer_ids[table])].engram_table = int64_t(table);
  }
  return layers;
}

}  // namespace millrace
