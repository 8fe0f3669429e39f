// What steps of a sequence that decodes take from the heap, with experts from the disk: nothing.

#include <gtest/gtest.h>

#include "base/test_counted_allocations.h"
#include "loaded_model.h"
#include "model/lone_sequence.h"

namespace millrace {
namespace {

constexpr int64_t kSteps = 40;

struct Steps {
  int64_t num_allocations = 0;
  ExpertReads reads;
};

// Of tokens one by one behind a prompt, when everything has grown to its size.
Steps decode(int64_t num_slots) {
  LoadedModel loaded(MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41", Numerics::kReference, num_slots);
  ThreadPool pool(2);
  KernelContext kernel_context(pool);
  const ModelConfig& config = loaded.model().config;
  LoneSequence sequence =
      std::move(LoneSequence::create(config, Numerics::kReference, 20 + 2 * kSteps).value());
  Runner runner(loaded.model(), loaded.experts(), sequence.store(), *fast_kernels()[0],
                kernel_context);
  std::vector<float> logits;
  logits.reserve(size_t(config.vocab_size));
  const auto run = [&](std::span<const int32_t> tokens) {
    const BatchSegment segment = sequence.append(tokens, LogitsFor::kLast);
    const int64_t before = num_allocations;
    MR_CHECK(runner.forward({&segment, 1}, {.feed_draft = true}, logits).ok());
    return num_allocations - before;
  };
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20 + 2 * kSteps; ++i) ids.push_back((i * 37 + 11) % 500);
  run(std::span(ids).first(20));
  size_t at = 20;
  for (int64_t i = 0; i < kSteps; ++i) run(std::span(ids).subspan(at++, 1));
  const ExpertReads before = loaded.experts().reads();
  Steps steps;
  for (int64_t i = 0; i < kSteps; ++i) {
    steps.num_allocations += run(std::span(ids).subspan(at++, 1));
  }
  const ExpertReads after = loaded.experts().reads();
  steps.reads.num_hits = after.num_hits - before.num_hits;
  steps.reads.num_misses = after.num_misses - before.num_misses;
  return steps;
}

TEST(StepsWithExpertsFromTheDisk, AllocateNothing) {
  const Steps mapped = decode(/*num_slots=*/0), from_disk = decode(/*num_slots=*/20);
  EXPECT_EQ(mapped.num_allocations, 0);
  EXPECT_EQ(from_disk.num_allocations, 0);
  EXPECT_GT(from_disk.reads.num_misses, kSteps) << "experts are read";
  EXPECT_GT(from_disk.reads.num_hits, kSteps) << "and found";
}

// The counter itself. Direct calls: a compiler may leave out an allocation nobody looks at.
TEST(StepsWithExpertsFromTheDisk, WouldShowWhatTheyAllocateTheKernelsScratchIncluded) {
  int64_t before = num_allocations;
  ::operator delete(::operator new(1));
  EXPECT_EQ(num_allocations, before + 1);
  ThreadPool pool(1);
  KernelContext kernel_context(pool);
  before = num_allocations;
  kernel_context.scratch(0, size_t{1});
  EXPECT_EQ(num_allocations, before + 1);
}

}  // namespace
}  // namespace millrace
