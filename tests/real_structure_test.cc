// The release's structure at small widths: its 40-layer map, window of 128, selections of 512 rows
// and 2,048 candidate blocks of 8, at lengths around and far beyond each of them. Sizes that hide
// nothing: short windows and short prompts never meet a full selection or a candidate filter.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/format.h"
#include "golden/loaded_model.h"
#include "model/lone_sequence.h"
#include "synth/synth.h"

namespace millrace {
namespace {

constexpr size_t kLastRows = 16;

std::string write_checkpoint() {
  std::string folder = testing::TempDir() + "millrace-real-structure-XXXXXX";
  MR_CHECK(::mkdtemp(folder.data()) != nullptr);
  const SynthPlan plan = plan_synth(named_shape("real-structure"), {}).value();
  const Status status = write_synth(folder, plan, {.seed = 1, .num_shards = {}});
  MR_CHECK(status.ok());
  return folder;
}

std::vector<int32_t> some_tokens(size_t count, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  uint64_t x = 1;
  for (size_t i = 0; i < count; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(int32_t((x >> 33) % uint64_t(vocab_size)));
  }
  return tokens;
}

// What the last rows of a length show of how they were computed.
struct Rows {
  std::vector<float> logits;  // [kLastRows, vocab_size]
  Trace trace;
  Draft draft;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class RealStructure : public ::testing::Test {
 protected:
  ~RealStructure() override { std::filesystem::remove_all(folder_); }

  const ModelConfig& config() const { return loaded_.model().config; }

  LoneSequence new_sequence() const {
    return std::move(
        LoneSequence::create(config(), Numerics::kReference, int64_t(tokens_.size())).value());
  }

  void advance(const KernelTable& kernels, LoneSequence& sequence, size_t count, LogitsFor which,
               Trace* trace, std::vector<float>& logits) {
    Runner runner(loaded_.model(), loaded_.experts(), sequence.store(), kernels, kernel_context_);
    const BatchSegment segment = sequence.append(
        std::span(tokens_).subspan(size_t(sequence.num_tokens()), count), which);
    const Status status = runner.forward(
        {&segment, 1}, {.feed_draft = true, .trace = trace, .monitor = nullptr}, logits);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }

  // Up to `end`, in calls of the given sizes, over and over.
  void prefill(LoneSequence& sequence, size_t end, std::span<const size_t> chunks) {
    std::vector<float> none;
    for (size_t call = 0; size_t(sequence.num_tokens()) < end; ++call) {
      const size_t left = end - size_t(sequence.num_tokens());
      advance(*fast_kernels()[0], sequence, std::min(left, chunks[call % chunks.size()]),
              LogitsFor::kNone, nullptr, none);
    }
  }

  Rows last_rows(const KernelTable& kernels, LoneSequence& sequence,
                 std::span<const size_t> chunks) {
    Rows rows;
    std::vector<float> part;
    for (const size_t chunk : chunks) {
      advance(kernels, sequence, chunk, LogitsFor::kAll, &rows.trace, part);
      rows.logits.insert(rows.logits.end(), part.begin(), part.end());
    }
    Runner runner(loaded_.model(), loaded_.experts(), sequence.store(), kernels, kernel_context_);
    rows.draft = runner.draft(sequence.slot(), sequence.num_tokens(), tokens_[0]).value();
    return rows;
  }

  void expect_same(const Rows& got, const Rows& want, const std::string& what) {
    EXPECT_TRUE(same_bits(got.logits, want.logits)) << what;
    ASSERT_EQ(got.trace.tensors().size(), want.trace.tensors().size()) << what;
    for (const auto& [name, tensor] : want.trace.tensors()) {
      EXPECT_TRUE(same_bits(got.trace.tensors().at(name).values, tensor.values)) << what << name;
    }
    for (const auto& [name, ids] : want.trace.ids()) {
      EXPECT_EQ(got.trace.ids().at(name).values, ids.values) << what << name;
    }
    for (const auto& [name, selection] : want.trace.selections()) {
      EXPECT_EQ(got.trace.selections().at(name).selected, selection.selected) << what << name;
    }
    EXPECT_EQ(got.draft.tokens, want.draft.tokens) << what;
    EXPECT_TRUE(same_bits(got.draft.confidences, want.draft.confidences)) << what;
  }

  void expect_same(const LoneSequence& got, const LoneSequence& want, const std::string& what) {
    EXPECT_TRUE(got.state_bytes() == want.state_bytes()) << what;
  }

  // That the weights make the mechanisms work: otherwise equal results would prove little.
  void expect_life(const Rows& rows, size_t length) {
    double sum = 0, squares = 0;
    for (const float logit : rows.logits) {
      ASSERT_TRUE(std::isfinite(logit));
      sum += double(logit);
      squares += double(logit) * double(logit);
    }
    const double mean = sum / double(rows.logits.size());
    EXPECT_GT(squares / double(rows.logits.size()) - mean * mean, 0.25);
    std::vector<std::vector<int32_t>> chosen;
    size_t num_reach_far = 0;
    for (const int64_t layer : config().index_source_layer_ids) {
      const int64_t ratio = config().compress_ratios[size_t(layer)];
      const int64_t num_rows = int64_t(length) / ratio,
                    count = std::min(num_rows, config().index_topk);
      const Trace::Selection& selection =
          rows.trace.selections().at(format("layers.", layer, ".attn.selected_rows"));
      EXPECT_EQ(selection.num_rows, num_rows) << layer;
      const std::vector<int32_t>& last = selection.selected.back();
      EXPECT_EQ(int64_t(last.size()), count) << layer;
      if (num_rows < 2 * count) continue;
      EXPECT_LT(last.front(), num_rows / 4) << layer;
      num_reach_far += last.back() > num_rows * 3 / 4;
      for (const std::vector<int32_t>& other : chosen) EXPECT_NE(last, other) << layer;
      chosen.push_back(last);
    }
    // Not in every layer: where both heads weigh negatively, the best scores are zeros, of which
    // the first win.
    EXPECT_GE(num_reach_far, chosen.size() / 2);
  }

  // Prefill in two ways of cutting, and the last rows of each length in these ways and by the
  // reference, from a copy of the same state.
  void compare_at(std::initializer_list<size_t> lengths) {
    static constexpr size_t kOneWay[] = {256}, kOtherWay[] = {509, 1, 130, 97, 2};
    static constexpr size_t kWhole[] = {kLastRows}, kPieces[] = {1, 8, 7};
    tokens_ = some_tokens(std::max(lengths), config().vocab_size);
    LoneSequence one = new_sequence(), other = new_sequence();
    for (const size_t length : lengths) {
      const std::string what = format("at ", length, " tokens: ");
      const auto begin = std::chrono::steady_clock::now();
      const auto already = double(one.num_tokens());
      prefill(one, length - kLastRows, kOneWay);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      prefill(other, length - kLastRows, kOtherWay);
      expect_same(other, one, what + "cut otherwise: ");
      LoneSequence by_reference = std::move(one.clone().value());

      const Rows want = last_rows(ref_kernels(), by_reference, kWhole);
      const Rows got = last_rows(*fast_kernels()[0], one, kWhole);
      expect_life(want, length);
      expect_same(got, want, what + "one call: ");
      expect_same(one, by_reference, what + "one call: ");
      expect_same(last_rows(*fast_kernels()[0], other, kPieces), want, what + "three calls: ");
      expect_same(other, by_reference, what + "three calls: ");
      std::printf("%zu tokens: prefill %.0f tokens/s on one thread, state %.1f MB\n", length,
                  (double(length - kLastRows) - already) / seconds.count(),
                  double(one.state_bytes().size()) / 1e6);
    }
  }

  std::string folder_ = write_checkpoint();
  LoadedModel loaded_{folder_, Numerics::kReference};
  ThreadPool pool_{1};
  KernelContext kernel_context_{pool_};
  std::vector<int32_t> tokens_;
};

TEST_F(RealStructure, FromTheFirstTokenOnFastKernelsGiveTheBitsOfTheReference) {
  tokens_ = some_tokens(200, config().vocab_size);  // beyond the window; slow
  LoneSequence fast = new_sequence(), reference = new_sequence();
  std::vector<float> got, want;
  advance(*fast_kernels()[0], fast, tokens_.size(), LogitsFor::kAll, nullptr, got);
  advance(ref_kernels(), reference, tokens_.size(), LogitsFor::kAll, nullptr, want);
  EXPECT_TRUE(same_bits(got, want));
  expect_same(fast, reference, "");
}

TEST_F(RealStructure, TheLastRowsOfLongPromptsAreThoseOfTheReferenceHoweverTheyAreCut) {
  compare_at({600, 2'600, 17'000});
}

TEST_F(RealStructure, SoAreThoseOf40000Tokens) { compare_at({40'000}); }

}  // namespace
}  // namespace millrace
