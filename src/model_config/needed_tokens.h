#pragma once

// Which tokens each layer has to compute where not every layer needs every token: before a prefix
// that is cached, and in the layers of a prompt that nothing but its last tokens depends on.

#include <cstdint>
#include <span>
#include <vector>

#include "model_config/model_config.h"

namespace millrace {

// How far each layer looks back.
struct LayerReach {
  int64_t num_layers = 0;
  int64_t sliding_window = 1;  // tokens whose keys a token sees, itself among them
  // Layers that see every new token, to make compressed rows of it. Ascending.
  std::vector<int32_t> kv_source_layer_ids;
  bool operator==(const LayerReach&) const = default;
};
LayerReach layer_reach(const ModelConfig& config);

struct WantedTokens {
  // Compressed rows and index keys of the tokens before it exist.
  int64_t first_new = 0;
  // What the last layer makes of the tokens before it is of no use.
  int64_t first_output = 0;
};

// first[l] is the first token that enters layer l; first[num_layers] is wanted.first_output.
//
// A layer's output at a token depends on its input there and on its keys of the window before. So
// whatever enters layer l + 1 goes through layer l, whose keys reach back sliding_window - 1 tokens
// more; and a KV source sees every new token. With both wanted from token t on, t - first[0] is the
// halo: what a cached prefix of t tokens costs, most of it in the lower layers.
//   first  [num_layers + 1]
void first_tokens(const LayerReach& reach, const WantedTokens& wanted, std::span<int64_t> first);

// first[0]: where computing has to begin.
int64_t first_token(const LayerReach& reach, const WantedTokens& wanted);

// What computing tokens [begin, end) takes, in tokens that go through all layers.
double num_whole_tokens(const LayerReach& reach, const WantedTokens& wanted, int64_t begin,
                        int64_t end);

// Whether every layer's keys of the window before token `end` have been computed by then: nothing
// that follows there has to be computed for their sake.
bool has_whole_windows(const LayerReach& reach, const WantedTokens& wanted, int64_t end);

}  // namespace millrace
