#pragma once

// Which tokens each layer has to compute where not every layer needs every token: before a prefix
// that is cached, and in the layers of a prompt that nothing but its last tokens depends on.

#include <cstdint>
#include <span>
#include <vector>

#include "model_config/layer_map.h"

namespace millrace {

struct WantedTokens {
  // Compressed rows and index keys of the tokens before it exist.
  int64_t first_new = 0;
  // What the last layer makes of the tokens before it is of no use.
  int64_t first_output = 0;
};

// first[l] is the first token that enters layer l; first[layers] is wanted.first_output.
//
// A layer's output at a token depends on its input there and on its keys of the window before. So
// whatever enters layer l + 1 goes through layer l, whose keys reach back sliding_window - 1 tokens
// more; and a KV source sees every new token. With both wanted from token t on, t - first[0] is the
// halo: what a cached prefix of t tokens costs, most of it in the lower layers.
//   first  [layers.size() + 1]
void first_tokens(const std::vector<LayerInfo>& layers, int64_t sliding_window,
                  const WantedTokens& wanted, std::span<int64_t> first);

}  // namespace millrace
