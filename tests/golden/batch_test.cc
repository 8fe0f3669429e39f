// Calls with rows of several sequences, with padding, and calls that are given up: each sequence is
// as it would be alone.

#include <gtest/gtest.h>

#include <cstring>

#include "base/format.h"
#include "loaded_model.h"
#include "model/lone_sequence.h"

namespace millrace {
namespace {

constexpr int64_t kMaxTokens = 200;

class Batch : public ::testing::TestWithParam<Numerics> {
 protected:
  const ModelConfig& config() const { return loaded_.model().config; }

  std::vector<int32_t> tokens(size_t count, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < count; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      ids.push_back(int32_t((seed >> 33) % uint64_t(config().vocab_size)));
    }
    return ids;
  }

  // The logits of all tokens of a sequence that has the store to itself.
  std::vector<float> alone(const std::vector<int32_t>& ids) {
    LoneSequence sequence =
        std::move(LoneSequence::create(config(), GetParam(), kMaxTokens).value());
    Runner runner(loaded_.model(), loaded_.experts(), sequence.store(), *fast_kernels()[0],
                  kernel_context_);
    const BatchSegment segment = sequence.append(ids, LogitsFor::kAll);
    std::vector<float> logits;
    MR_CHECK(runner.forward({&segment, 1}, {.feed_draft = true}, logits).ok());
    return logits;
  }

  LoadedModel loaded_{MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41", GetParam()};
  ThreadPool pool_{2};
  KernelContext kernel_context_{pool_};
};

INSTANTIATE_TEST_SUITE_P(EachNumerics, Batch,
                         ::testing::Values(Numerics::kReference, Numerics::kFp32),
                         [](const auto& info) {
                           return info.param == Numerics::kFp32 ? "Fp32" : "Reference";
                         });

struct Member {
  std::vector<int32_t> ids;
  std::vector<BlockId> block_table;
  StateSlot slot;
  int64_t computed = 0;
  std::vector<float> logits;
};

TEST_P(Batch, SequencesThatShareCallsBlocksAndPaddingAnswerAsAlone) {
  const KvLayout layout = kv_layout(config(), kv_format_of(GetParam()), 8);
  KvStore store = std::move(KvStore::create(layout, 100, 5).value());
  Runner runner(loaded_.model(), loaded_.experts(), store, *fast_kernels()[0], kernel_context_);
  std::vector<Member> members;
  BlockId next_block = 99;
  for (size_t length : {70, 33, 1, 121}) {
    Member member{.ids = tokens(length, length),
                  .block_table = {},
                  .slot = StateSlot(members.size() + 1),
                  .logits = {}};
    // Blocks of different sequences lie between each other, and backwards.
    while (int64_t(member.block_table.size()) * layout.block_size < int64_t(length)) {
      member.block_table.push_back(next_block--);
    }
    members.push_back(std::move(member));
  }
  const std::vector<int32_t> padding = tokens(3, 9);
  // A different mix of chunks in each call, among them none at all.
  for (size_t call = 0;; ++call) {
    std::vector<BatchSegment> segments;
    std::vector<Member*> in_call;
    for (size_t m = 0; m < members.size(); ++m) {
      Member& member = members[m];
      const int64_t chunk = std::min<int64_t>((call * 7 + m * 5) % 23,
                                              int64_t(member.ids.size()) - member.computed);
      if (m == 2) {
        segments.push_back({.tokens = padding, .block_table = {}, .is_padding = true});
        in_call.push_back(nullptr);
      }
      if (chunk == 0) continue;
      segments.push_back({.tokens = std::span(member.ids).first(size_t(member.computed + chunk)),
                          .first_position = member.computed,
                          .block_table = member.block_table,
                          .slot = member.slot,
                          .logits = LogitsFor::kAll});
      in_call.push_back(&member);
    }
    std::vector<float> logits;
    ASSERT_TRUE(runner.forward(segments, {.feed_draft = true}, logits).ok());
    size_t at = 0;
    bool is_done = true;
    for (size_t s = 0; s < segments.size(); ++s) {
      const size_t count = size_t(segments[s].num_logits() * config().vocab_size);
      if (Member* member = in_call[s]) {
        member->logits.insert(member->logits.end(), logits.begin() + ptrdiff_t(at),
                              logits.begin() + ptrdiff_t(at + count));
        member->computed += segments[s].num_rows();
      }
      at += count;
    }
    for (const Member& member : members) is_done &= member.computed == int64_t(member.ids.size());
    if (is_done) break;
  }
  for (const Member& member : members) {
    const std::vector<float> want = alone(member.ids);
    ASSERT_EQ(member.logits.size(), want.size());
    EXPECT_EQ(std::memcmp(member.logits.data(), want.data(), want.size() * sizeof(float)), 0)
        << member.ids.size() << " tokens";
  }
}

class StopAtLayer : public LayerMonitor {
 public:
  explicit StopAtLayer(int64_t layer) : layer_(layer) {}
  bool before_layer(int64_t layer) override { return layer < layer_; }

 private:
  int64_t layer_;
};

TEST_P(Batch, ACallThatIsGivenUpHasNotHappened) {
  const std::vector<int32_t> ids = tokens(100, 5);
  const std::vector<float> want = alone(ids);
  LoneSequence sequence = std::move(LoneSequence::create(config(), GetParam(), kMaxTokens).value());
  Runner runner(loaded_.model(), loaded_.experts(), sequence.store(), *fast_kernels()[0],
                kernel_context_);
  const BatchSegment first = sequence.append(std::span(ids).first(51), LogitsFor::kNone);
  std::vector<float> logits;
  ASSERT_TRUE(runner.forward({&first, 1}, {.feed_draft = true}, logits).ok());
  const std::vector<std::byte> before = sequence.state_bytes();

  const LoneSequence untouched = std::move(sequence.clone().value());
  const BatchSegment rest = sequence.append(std::span(ids).subspan(51), LogitsFor::kAll);
  for (int64_t layer = 0; layer < config().num_hidden_layers; ++layer) {
    StopAtLayer monitor(layer);
    const Status status =
        runner.forward({&rest, 1}, {.feed_draft = true, .monitor = &monitor}, logits);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kCancelled);
  }
  EXPECT_EQ(untouched.state_bytes(), before);
  ASSERT_TRUE(runner.forward({&rest, 1}, {.feed_draft = true}, logits).ok());
  const size_t skipped = size_t(51 * config().vocab_size);
  ASSERT_EQ(logits.size(), want.size() - skipped);
  EXPECT_EQ(std::memcmp(logits.data(), want.data() + skipped, logits.size() * sizeof(float)), 0);
}

// Caches that are smaller than what one call needs of a layer, and all tokens of it in pieces.
TEST_P(Batch, ExpertsFromTheDiskGiveTheSameLogitsAndDrafts) {
  for (const char* folder : {"/tests/golden/tiny-v41", "/models/nano"}) {
    for (const int64_t num_slots : {2, 7}) {
      LoadedModel mapped(format(MILLRACE_SOURCE_DIR, folder), GetParam());
      LoadedModel cached(format(MILLRACE_SOURCE_DIR, folder), GetParam(), num_slots);
      const std::vector<int32_t> ids = tokens(60, 3);
      std::vector<float> logits[2], confidences[2];
      LoadedModel* models[] = {&mapped, &cached};
      for (size_t i = 0; i < 2; ++i) {
        LoneSequence sequence =
            std::move(LoneSequence::create(models[i]->model().config, GetParam(), 100).value());
        Runner runner(models[i]->model(), models[i]->experts(), sequence.store(),
                      *fast_kernels()[0], kernel_context_);
        std::vector<float> some;
        for (size_t begin = 0; begin < ids.size(); begin += begin < 40 ? 40 : 1) {
          const size_t end = begin < 40 ? 40 : begin + 1;
          const BatchSegment segment =
              sequence.append(std::span(ids).subspan(begin, end - begin), LogitsFor::kAll);
          ASSERT_TRUE(runner.forward({&segment, 1}, {.feed_draft = true}, some).ok());
          logits[i].insert(logits[i].end(), some.begin(), some.end());
        }
        confidences[i] = runner.draft(sequence.slot(), int64_t(ids.size()), 5).value().confidences;
      }
      ASSERT_EQ(logits[0].size(), logits[1].size());
      EXPECT_EQ(std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)),
                0)
          << folder << ", " << num_slots << " slots";
      EXPECT_EQ(confidences[0], confidences[1]);
      EXPECT_EQ(mapped.experts().reads().num_bytes, 0);
      EXPECT_GT(cached.experts().reads().num_misses, num_slots);
    }
  }
}

TEST_P(Batch, RefusesTokensOutsideTheVocabularyAndCallsWithoutRows) {
  LoneSequence sequence = std::move(LoneSequence::create(config(), GetParam(), kMaxTokens).value());
  Runner runner(loaded_.model(), loaded_.experts(), sequence.store(), *fast_kernels()[0],
                kernel_context_);
  std::vector<float> logits;
  EXPECT_FALSE(runner.forward({}, {}, logits).ok());
  const BatchSegment segment = sequence.append(std::vector<int32_t>{3, 512}, LogitsFor::kLast);
  const Status status = runner.forward({&segment, 1}, {}, logits);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "token 1: id 512, expected 0..511");
}

}  // namespace
}  // namespace millrace
