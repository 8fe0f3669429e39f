#include "model_config/needed_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {

void first_tokens(const std::vector<LayerInfo>& layers, int64_t sliding_window,
                  const WantedTokens& wanted, std::span<int64_t> first) {
  MR_CHECK_OP(first.size(), ==, layers.size() + 1);
  first[layers.size()] = wanted.first_output;
  for (size_t l = layers.size(); l-- > 0;) {
    const int64_t first_key = std::max<int64_t>(0, first[l + 1] - (sliding_window - 1));
    first[l] = layers[l].owns_compressor ? std::min(first_key, wanted.first_new) : first_key;
  }
}

}  // namespace millrace
