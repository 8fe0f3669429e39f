#pragma once

// A tokenizer.json for a config: byte-level BPE of the asked size, with the control tokens of the
// chat encoding, whose tokens fold to the asked number of compressed ids.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model_config/model_config.h"

namespace millrace {

inline constexpr std::string_view kPadLiteral = "<｜▁pad▁｜>";

struct SynthTokenizer {
  std::string json;
  int64_t compressed_vocab_size = 0;  // distinct ids of its token map
};

// Takes from `config` the vocabulary size and the ids of the begin, end, padding and image tokens.
// Without `compressed_vocab_size`, about three quarters of the tokens have an id of their own, as
// in the release. The ordinary tokens are words over a to z in order of length, some of them again
// with a blank in front or in capitals, which share an id.
Result<SynthTokenizer> make_tokenizer(const ModelConfig& config,
                                      std::optional<int64_t> compressed_vocab_size);

}  // namespace millrace
