#include "loadgen/prompt_source.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

constexpr int64_t kFirstSliceTokens = 16;
constexpr int64_t kSliceTokens = 256;

// Calls on_slice(random number, tokens) for each slice of a part.
template <class OnSlice>
void each_slice(const PromptPart& part, uint64_t seed, OnSlice on_slice) {
  const uint64_t key = mix64(seed, part.key);
  int64_t left = part.num_tokens;
  for (uint64_t i = 0; left > 0; ++i) {
    const int64_t count = std::min(left, i == 0 ? kFirstSliceTokens : kSliceTokens);
    on_slice(mix64(key, i), count);
    left -= count;
  }
}

bool is_inside_character(char byte) { return (uint8_t(byte) & 0xC0) == 0x80; }

}  // namespace

PromptSource PromptSource::of_tokens(std::vector<int32_t> corpus, uint64_t seed) {
  MR_CHECK(!corpus.empty());
  PromptSource source(seed);
  source.tokens_ = std::move(corpus);
  return source;
}

PromptSource PromptSource::of_random_tokens(std::vector<int32_t> vocabulary, uint64_t seed) {
  PromptSource source = of_tokens(std::move(vocabulary), seed);
  source.is_random_ = true;
  return source;
}

PromptSource PromptSource::of_text(std::string corpus, double bytes_per_token, uint64_t seed) {
  MR_CHECK(!corpus.empty() && bytes_per_token > 0);
  PromptSource source(seed);
  source.text_ = std::move(corpus);
  source.bytes_per_token_ = bytes_per_token;
  return source;
}

std::vector<int32_t> PromptSource::tokens(const PlannedRequest& request) const {
  MR_CHECK(has_tokens());
  std::vector<int32_t> out;
  out.reserve(size_t(num_prompt_tokens(request)));
  for (const PromptPart& part : request.prompt) {
    each_slice(part, seed_, [&](uint64_t random, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t at =
            is_random_ ? mix64(random, uint64_t(i)) : random % tokens_.size() + uint64_t(i);
        out.push_back(tokens_[size_t(at % tokens_.size())]);
      }
    });
  }
  return out;
}

std::string PromptSource::text(const PlannedRequest& request) const {
  MR_CHECK(!has_tokens());
  std::string out;
  for (const PromptPart& part : request.prompt) {
    each_slice(part, seed_, [&](uint64_t random, int64_t count) {
      size_t at = size_t(random % text_.size());
      while (at > 0 && is_inside_character(text_[at])) --at;
      const size_t num_bytes = size_t(double(count) * bytes_per_token_) + 1;
      for (size_t i = 0; i < num_bytes || is_inside_character(text_[at]); ++i) {
        out += text_[at];
        at = (at + 1) % text_.size();
      }
    });
  }
  return out;
}

std::vector<int32_t> plain_tokens(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_added(id) && !tokenizer.token_bytes(id).empty()) ids.push_back(id);
  }
  return ids;
}

}  // namespace millrace
