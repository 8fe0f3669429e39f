#include <gtest/gtest.h>

#include "base/test_counted_allocations.h"
#include "sampler/sampler.h"

namespace millrace {
namespace {

TEST(Sampler, AllocatesNothingPerToken) {
  Request request;
  request.prompt_token_ids = {0, 7};
  request.sampling.temperature = 1.5;
  request.sampling.top_p = 0.95;
  request.sampling.presence_penalty = 0.5;
  request.sampling.bad_words_token_ids = {{3, 4}};
  std::vector<float> logits(4096);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i * 7919 % 4096) / 256;
  SamplerScratch scratch;
  Sampler sampler(request, {int64_t(logits.size()), {1}, 5, /*max_tokens=*/200});
  TokenLogprobs logprobs;
  logprobs.top.reserve(6);
  (void)sampler.sample(logits, scratch).value();  // the scratch grows to the vocabulary
  const int64_t before = num_allocations;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = sampler.sample(logits, scratch).value();
    compute_logprobs(logits, token, 5, logprobs);
    sampler.append(token);
  }
  EXPECT_EQ(num_allocations, before);
  // The counter itself. A direct call: a compiler may leave out an allocation nobody looks at.
  ::operator delete(::operator new(1));
  EXPECT_EQ(num_allocations, before + 1);
}

}  // namespace
}  // namespace millrace
