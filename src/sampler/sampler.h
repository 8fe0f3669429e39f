#pragma once

// From logits to a token. What comes out is a function of the request, the tokens so far and the
// logits: never of the step, the batch or the clock (docs/numerics.md). All of it is scalar code
// in fixed order, so that it gives the same bits on every machine.
//
// Stages, in this order:
//   1. bans           allowed_token_ids, bad_words_token_ids, and end and stop tokens before
//                     min_tokens: a banned token cannot come out
//   2. penalties      as in vLLM, on fp32 logits. repetition: of a token in the prompt or the
//                     output, l / r if l > 0, l * r otherwise; then l -= frequency * n and
//                     l -= presence for a token that stands n > 0 times in the output
//   3. logit_bias     l += bias, which validate() keeps within -100..100
//   4. temperature    below kGreedyTemperature the largest l wins, the lower id on ties, and the
//                     rest is skipped; otherwise weight w = exp((l - max l) / temperature)
//   5. min_p          keeps w >= min_p * (the largest w)
//   6. top_k          keeps the first k in the order of descending l, ascending id
//   7. top_p          keeps a token if those before it, in the same order, weigh less than top_p
//                     of all that are left
//   8. draw           the first token at which the running sum exceeds u * (the sum of the kept)
//
// The difference to vLLM: where several tokens tie for the last place of top_k it keeps them all;
// here ids decide, so top_k = 1 is the greedy choice.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "request/request.h"

namespace millrace {

// Working memory of sample(), for any number of samplers: a few vocabularies long.
//
// Threading: one thread at a time.
class SamplerScratch {
 private:
  friend class Sampler;
  std::vector<float> logits_;        // minus infinity: banned
  std::vector<double> weights_;      // by token id
  std::vector<int32_t> candidates_;  // ids; the first num_sorted_ are in their final order
  size_t num_sorted_ = 0;
};

// The sampler of one sequence: of the tokens so far what the request's stages need.
//
// Threading: one thread at a time. Allocates when built; sample() and append() do not, up to
// max_tokens (but at most 2^20) tokens, once the scratch has been used with this vocabulary.
class Sampler {
 public:
  struct Options {
    int64_t vocab_size = 0;
    std::vector<int32_t> eos_token_ids;  // banned until min_tokens, unless ignore_eos
    uint64_t seed = 0;                   // the request's own, or one drawn for it
    int64_t max_tokens = 0;              // that will be appended, as far as known
  };

  // Requires: validate(request.sampling, vocab_size) is ok and every prompt token is in the
  // vocabulary.
  Sampler(const Request& request, Options options);

  // The token that follows the tokens so far. Refuses logits that are not finite (kCorrupt), and
  // a request whose bans leave no token (kInvalidArgument); the message names request and
  // position.
  Result<int32_t> sample(std::span<const float> logits /*[vocab_size]*/, SamplerScratch& scratch);

  void append(int32_t token_id);  // the token was taken
  void pop();                     // and was taken back; requires num_output_tokens() > 0

  const std::string& request_id() const { return request_id_; }
  int64_t num_tokens() const { return num_prompt_tokens_ + num_output_tokens(); }
  int64_t num_output_tokens() const { return int64_t(output_.size()); }

 private:
  struct Seen {
    int32_t output_count = 0;
    bool in_prompt = false;
    bool listed = false;  // in seen_ids_
  };

  Error error(Code code, const std::string& what) const;
  bool has_penalties() const;
  bool leaves_logits_alone() const;
  void see(int32_t token_id);
  void ban_tokens(std::vector<float>& logits) const;
  void apply_penalties(std::vector<float>& logits) const;
  int32_t draw(double u, SamplerScratch& scratch) const;
  void keep_candidates(float max_logit, SamplerScratch& scratch) const;

  std::string request_id_;
  SamplingParams params_;
  Options options_;
  uint32_t choice_idx_;

  int64_t num_prompt_tokens_;
  std::vector<int32_t> output_;
  // With penalties only.
  std::vector<Seen> seen_;         // by token id
  std::vector<int32_t> seen_ids_;  // tokens that stand, or stood, anywhere
  std::vector<uint8_t> is_allowed_;  // by token id; empty: all are
};

// kCorrupt, naming request, position and token, unless every logit is a finite number.
Status check_finite(std::span<const float> logits, std::string_view request_id, int64_t position);

// Log-probabilities of raw logits: of `token_id`, and of the `num_top` likeliest (-1: all).
// Allocates only when `out.top` must grow. Requires: finite logits.
void compute_logprobs(std::span<const float> logits, int32_t token_id, int64_t num_top,
                      TokenLogprobs& out);

}  // namespace millrace
