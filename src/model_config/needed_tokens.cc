#include "model_config/needed_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

// From the last layer down: calls visit(layer, first token that enters it).
template <class Visit>
void visit_layers(const LayerReach& reach, const WantedTokens& wanted, const Visit& visit) {
  int64_t first = wanted.first_output;
  size_t num_sources = reach.kv_source_layer_ids.size();
  for (int64_t layer = reach.num_layers; layer-- > 0;) {
    first = std::max<int64_t>(0, first - (reach.sliding_window - 1));
    if (num_sources > 0 && reach.kv_source_layer_ids[num_sources - 1] == layer) {
      first = std::min(first, wanted.first_new);
      --num_sources;
    }
    visit(layer, first);
  }
}

}  // namespace

LayerReach layer_reach(const ModelConfig& config) {
  LayerReach reach{config.num_hidden_layers, config.sliding_window, {}};
  for (const int64_t layer : config.kv_source_layer_ids) {
    reach.kv_source_layer_ids.push_back(int32_t(layer));
  }
  std::sort(reach.kv_source_layer_ids.begin(), reach.kv_source_layer_ids.end());
  return reach;
}

void first_tokens(const LayerReach& reach, const WantedTokens& wanted, std::span<int64_t> first) {
  MR_CHECK_OP(int64_t(first.size()), ==, reach.num_layers + 1);
  first[size_t(reach.num_layers)] = wanted.first_output;
  visit_layers(reach, wanted, [&](int64_t layer, int64_t token) { first[size_t(layer)] = token; });
}

int64_t first_token(const LayerReach& reach, const WantedTokens& wanted) {
  int64_t first = wanted.first_output;
  visit_layers(reach, wanted, [&](int64_t, int64_t token) { first = token; });
  return first;
}

double num_whole_tokens(const LayerReach& reach, const WantedTokens& wanted, int64_t begin,
                        int64_t end) {
  if (reach.num_layers == 0) return double(end - begin);
  int64_t num = 0;  // of a token in a layer
  visit_layers(reach, wanted, [&](int64_t, int64_t token) {
    num += std::max<int64_t>(0, end - std::max(begin, token));
  });
  return double(num) / double(reach.num_layers);
}

bool has_whole_windows(const LayerReach& reach, const WantedTokens& wanted, int64_t end) {
  const int64_t first_key = std::max<int64_t>(0, end - (reach.sliding_window - 1));
  bool has_all = true;
  visit_layers(reach, wanted, [&](int64_t, int64_t token) { has_all &= token <= first_key; });
  return has_all;
}

}  // namespace millrace
