// Calls in which layers leave out the rows that nothing depends on: a prompt of which only the last
// token's logits are wanted, and a prefix whose compressed rows exist while the rings know nothing
// of it. What comes after is the same, bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "loaded_model.h"
#include "model/lone_sequence.h"
#include "model_config/needed_tokens.h"

namespace millrace {
namespace {

constexpr int64_t kMaxTokens = 250;
constexpr int64_t kDecoded = 4;  // tokens after the prompt

class NeededRows : public ::testing::TestWithParam<Numerics> {
 protected:
  const Model& model() const { return loaded_.model(); }
  const ModelConfig& config() const { return model().config; }

  std::vector<int32_t> tokens(int64_t count, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      ids.push_back(int32_t((seed >> 33) % uint64_t(config().vocab_size)));
    }
    return ids;
  }

  LoneSequence new_sequence() const {
    return std::move(LoneSequence::create(config(), GetParam(), kMaxTokens).value());
  }

  void forward(LoneSequence& sequence, std::span<const BatchSegment> segments,
               std::vector<float>& logits) {
    Runner runner(model(), loaded_.experts(), sequence.store(), *fast_kernels()[0],
                  kernel_context_);
    const Status status = runner.forward(segments, {.feed_draft = true}, logits);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }

  // What a sequence shows after its prompt: the last logits, then those of more tokens one by one,
  // then a draft.
  struct Answer {
    std::vector<float> logits;
    std::vector<int32_t> drafted;
    std::vector<float> confidences;
    bool operator==(const Answer& other) const {
      return logits.size() == other.logits.size() && drafted == other.drafted &&
             std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0 &&
             std::memcmp(confidences.data(), other.confidences.data(),
                         confidences.size() * sizeof(float)) == 0;
    }
  };
  // `ids` begin with the prompt, which has been computed; `answer` has its last logits.
  void go_on(LoneSequence& sequence, std::span<const int32_t> ids, Answer& answer) {
    std::vector<float> logits;
    for (size_t t = size_t(sequence.num_tokens()); t < ids.size(); ++t) {
      const BatchSegment segment = sequence.append(ids.subspan(t, 1), LogitsFor::kLast);
      forward(sequence, {&segment, 1}, logits);
      answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
    }
    Runner runner(model(), loaded_.experts(), sequence.store(), *fast_kernels()[0],
                  kernel_context_);
    const Result<Draft> draft = runner.draft(sequence.slot(), sequence.num_tokens(), 1);
    ASSERT_TRUE(draft.has_value());
    answer.drafted = draft.value().tokens;
    answer.confidences = draft.value().confidences;
  }

  Answer cold(const std::vector<int32_t>& ids, int64_t num_prompt) {
    LoneSequence sequence = new_sequence();
    Answer answer;
    const BatchSegment segment =
        sequence.append(std::span(ids).first(size_t(num_prompt)), LogitsFor::kLast);
    forward(sequence, {&segment, 1}, answer.logits);
    go_on(sequence, ids, answer);
    return answer;
  }

  // The tokens [begin, end) of the prompt in calls of `chunk`.
  void compute(LoneSequence& sequence, const std::vector<int32_t>& ids, int64_t begin, int64_t end,
               int64_t chunk, int64_t num_cached, int64_t first_output,
               std::vector<float>& logits) {
    for (int64_t at = begin; at < end; at += chunk) {
      const int64_t until = std::min(end, at + chunk);
      BatchSegment segment = whole(sequence, ids, until);
      segment.first_position = at;
      segment.num_cached_tokens = num_cached;
      segment.first_output = first_output;
      segment.logits = until == end ? LogitsFor::kLast : LogitsFor::kNone;
      forward(sequence, {&segment, 1}, logits);
    }
  }

  // The sequence's first `end` tokens.
  BatchSegment whole(LoneSequence& sequence, const std::vector<int32_t>& ids, int64_t end) {
    const int64_t known = std::min(sequence.num_tokens(), end);
    BatchSegment segment = sequence.append(
        std::span(ids).subspan(size_t(known), size_t(end - known)), LogitsFor::kNone);
    segment.tokens = segment.tokens.first(size_t(end));
    return segment;
  }

  int64_t first_token(const WantedTokens& wanted) const {
    return millrace::first_token(model().reach, wanted);
  }

  // A slot whose bytes are nobody's, and blocks that have a prompt's first `num_cached` tokens.
  LoneSequence with_cached_blocks(const std::vector<int32_t>& ids, int64_t num_cached) {
    LoneSequence sequence = new_sequence();
    std::vector<float> none;
    const BatchSegment segment =
        sequence.append(std::span(ids).first(size_t(num_cached)), LogitsFor::kNone);
    forward(sequence, {&segment, 1}, none);
    std::memset(sequence.store().slot(sequence.slot()), 0x55,
                size_t(sequence.store().layout().slot_bytes));
    return sequence;
  }

  LoadedModel loaded_{MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41", GetParam()};
  ThreadPool pool_{2};
  KernelContext kernel_context_{pool_};
};

INSTANTIATE_TEST_SUITE_P(EachNumerics, NeededRows,
                         ::testing::Values(Numerics::kReference, Numerics::kFp32),
                         [](const auto& info) {
                           return info.param == Numerics::kFp32 ? "Fp32" : "Reference";
                         });

TEST_P(NeededRows, OfAPromptTheLastLogitsAndWhatFollowsAreTheSame) {
  for (const int64_t num_prompt : {1, 2, 8, 9, 33, 151}) {
    const std::vector<int32_t> ids = tokens(num_prompt + kDecoded, uint64_t(num_prompt));
    const Answer want = cold(ids, num_prompt);
    for (const int64_t chunk : {int64_t{7}, num_prompt}) {
      LoneSequence sequence = new_sequence();
      Answer answer;
      compute(sequence, ids, 0, num_prompt, chunk, 0, num_prompt - 1, answer.logits);
      go_on(sequence, ids, answer);
      EXPECT_TRUE(answer == want) << num_prompt << " in chunks of " << chunk;
    }
  }
}

TEST_P(NeededRows, BehindACachedPrefixEverythingIsTheSame) {
  for (const int64_t num_cached : {2, 64, 128}) {
    for (const int64_t num_new : {1, 42}) {
      const int64_t num_prompt = num_cached + num_new;
      const std::vector<int32_t> ids = tokens(num_prompt + kDecoded, uint64_t(num_prompt));
      const Answer want = cold(ids, num_prompt);
      for (const int64_t first_output : {num_cached, num_prompt - 1}) {
        for (const int64_t chunk : {int64_t{13}, num_prompt}) {
          LoneSequence sequence = with_cached_blocks(ids, num_cached);
          const int64_t begin = first_token({num_cached, first_output});
          Answer answer;
          compute(sequence, ids, begin, num_prompt, chunk, num_cached, first_output,
                  answer.logits);
          go_on(sequence, ids, answer);
          EXPECT_TRUE(answer == want) << num_cached << " and " << num_new << " in chunks of "
                                      << chunk << ", outputs from " << first_output;
        }
      }
    }
  }
}

TEST_P(NeededRows, AHaloOneTokenShorterIsNotEnough) {
  const int64_t num_cached = 100, num_prompt = 101;
  const std::vector<int32_t> ids = tokens(num_prompt + kDecoded, 1);
  const int64_t begin = first_token({num_cached, num_cached});
  ASSERT_GT(begin, 0);
  const Answer want = cold(ids, num_prompt);
  for (const int64_t shorter : {0, 1}) {
    LoneSequence sequence = with_cached_blocks(ids, num_cached);
    Answer answer;
    compute(sequence, ids, begin + shorter, num_prompt, num_prompt, num_cached, num_cached,
            answer.logits);
    go_on(sequence, ids, answer);
    EXPECT_EQ(answer == want, shorter == 0);
  }
}

TEST_P(NeededRows, RowsInFrontOfTheHaloAreLeftOut) {
  const int64_t num_cached = 100, num_prompt = 110;
  const std::vector<int32_t> ids = tokens(num_prompt + kDecoded, 2);
  const Answer want = cold(ids, num_prompt);
  ASSERT_GT(first_token({num_cached, num_cached}), 13) << "a chunk of them alone";
  for (const int64_t chunk : {int64_t{13}, num_prompt}) {
    LoneSequence sequence = with_cached_blocks(ids, num_cached);
    Answer answer;
    compute(sequence, ids, 0, num_prompt, chunk, num_cached, num_cached, answer.logits);
    go_on(sequence, ids, answer);
    EXPECT_TRUE(answer == want) << "in chunks of " << chunk;
  }
}

TEST_P(NeededRows, AllLogitsAreThoseOfTheTokensThatAreWanted) {
  const int64_t num_prompt = 60, first_output = 37;
  const std::vector<int32_t> ids = tokens(num_prompt, 6);
  for (const int64_t chunk : {int64_t{7}, num_prompt}) {
    std::vector<float> logits[2];  // of all tokens, and of the wanted ones
    for (size_t i = 0; i < 2; ++i) {
      LoneSequence sequence = new_sequence();
      for (int64_t at = 0; at < num_prompt; at += chunk) {
        const int64_t count = std::min(chunk, num_prompt - at);
        BatchSegment segment = sequence.append(
            std::span(ids).subspan(size_t(at), size_t(count)), LogitsFor::kAll);
        if (i == 1) segment.first_output = first_output;
        std::vector<float> some;
        forward(sequence, {&segment, 1}, some);
        EXPECT_EQ(int64_t(some.size()), segment.num_logits() * config().vocab_size);
        logits[i].insert(logits[i].end(), some.begin(), some.end());
      }
    }
    const size_t skipped = size_t(first_output * config().vocab_size);
    ASSERT_EQ(logits[1].size(), logits[0].size() - skipped);
    EXPECT_EQ(std::memcmp(logits[1].data(), logits[0].data() + skipped,
                          logits[1].size() * sizeof(float)),
              0)
        << "in chunks of " << chunk;
  }
}

// Alone, a call may end before the layers that feed the draft; in company it goes on.
TEST_P(NeededRows, RowsThatDoNotReachAllLayersOfTheDraftLeaveItsRingsAlone) {
  const int64_t first_output = 150;
  std::vector<int64_t> first(model().layers.size() + 1);
  first_tokens(model().reach, {0, first_output}, first);
  const std::vector<int64_t>& targets = config().dspark_target_layer_ids;
  const int64_t before_all = first[size_t(targets.front())];
  const int64_t before_last = first[size_t(targets.back())];
  ASSERT_GT(before_last, before_all);
  const KvLayout layout = kv_layout(config(), kv_format_of(GetParam()), kMaxTokens);
  const std::vector<int32_t> ids = tokens(before_last, 3), others = tokens(20, 4);
  for (const int64_t end : {before_all, before_last}) {
    for (const bool is_in_company : {false, true}) {
      KvStore store = std::move(KvStore::create(layout, 2, 2).value());
      constexpr std::byte kNobodys{0x55};
      std::fill_n(store.slot(0), layout.slot_bytes, kNobodys);
      const BlockId blocks[] = {0, 1};
      const BatchSegment segments[] = {{.tokens = std::span(ids).first(size_t(end)),
                                        .block_table = std::span(blocks).first(1),
                                        .slot = 0,
                                        .first_output = first_output,
                                        .logits = LogitsFor::kNone},
                                       {.tokens = others,
                                        .block_table = std::span(blocks).last(1),
                                        .slot = 1}};
      Runner runner(model(), loaded_.experts(), store, *fast_kernels()[0], kernel_context_);
      std::vector<float> logits;
      const Status status = runner.forward(std::span(segments).first(is_in_company ? 2 : 1),
                                           {.feed_draft = true}, logits);
      ASSERT_TRUE(status.ok()) << status.error().message;
      for (const StatePlane& plane : layout.slot_planes) {
        if (plane.kind != StateKind::kDraftRing) continue;
        const std::byte* ring = store.slot(0) + plane.values_offset;
        const int64_t bytes = plane.num_rows * plane.row_bytes();
        EXPECT_EQ(std::count(ring, ring + bytes, kNobodys), bytes)
            << end << " tokens, " << (is_in_company ? "in company" : "alone");
      }
    }
  }
}

TEST_P(NeededRows, ACachedPrefixThatEndsInsideACompressedRowStopsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked process lacks the pool's threads
  LoneSequence sequence = new_sequence();
  const std::vector<int32_t> ids = tokens(20, 1);
  BatchSegment segment = sequence.append(ids, LogitsFor::kNone);
  std::vector<float> none;
  for (const int64_t num_cached : {9, 21}) {  // in the call, and behind it
    segment.num_cached_tokens = num_cached;
    EXPECT_DEATH(forward(sequence, {&segment, 1}, none),
                 "num_cached_tokens % layer.compress_ratio");
  }
  // What the slot goes on with may end anywhere.
  segment.num_cached_tokens = 0;
  forward(sequence, {&segment, 1}, none);
  BatchSegment next = sequence.append(std::span(ids).first(5), LogitsFor::kNone);
  next.num_cached_tokens = 19;
  forward(sequence, {&next, 1}, none);
}

}  // namespace
}  // namespace millrace
