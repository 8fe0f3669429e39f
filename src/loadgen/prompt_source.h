#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loadgen/workload.h"
#include "tokenizer/tokenizer.h"

namespace millrace {

// From a plan to the prompt itself: real text, cut from a corpus. The same seed, key and corpus
// give the same tokens. A part is put together of slices at random places, a short one first: parts
// with different keys differ from the beginning, so no cache of prefixes takes one for another.
class PromptSource {
 public:
  // Requires: tokens and corpus are not empty.
  static PromptSource of_tokens(std::vector<int32_t> corpus, uint64_t seed);
  // Tokens at random among `vocabulary`. For prefill ceilings only: no text looks like this.
  static PromptSource of_random_tokens(std::vector<int32_t> vocabulary, uint64_t seed);
  // Without a tokenizer: a token counts as so many bytes.
  static PromptSource of_text(std::string corpus, double bytes_per_token, uint64_t seed);

  bool has_tokens() const { return !tokens_.empty(); }
  std::vector<int32_t> tokens(const PlannedRequest& request) const;  // requires: has_tokens()
  std::string text(const PlannedRequest& request) const;             // requires: not has_tokens()

 private:
  explicit PromptSource(uint64_t seed) : seed_(seed) {}

  uint64_t seed_;
  std::vector<int32_t> tokens_;
  bool is_random_ = false;
  std::string text_;
  double bytes_per_token_ = 0;
};

// The ids that text can have: no control tokens.
std::vector<int32_t> plain_tokens(const Tokenizer& tokenizer);

}  // namespace millrace
