#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "sampler/sampler.h"

// This binary counts its allocations. Not inline: a compiler that sees through `delete` but not
// through `new` takes them for a mismatched pair. AddressSanitizer brings its own of every form
// that is not defined here, so forms that meet each other's memory are defined together.
namespace {
int64_t num_allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

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
