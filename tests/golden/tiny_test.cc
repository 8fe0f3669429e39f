// The toy checkpoint against an independent implementation (README.md in this folder). Its random
// weights make `reference` numerics chaotic end to end, so that mode is held sublayer by sublayer.

#include <gtest/gtest.h>

#include <cmath>

#include "golden_file.h"
#include "loaded_model.h"
#include "model/lone_sequence.h"
#include "model/layers/attention.h"
#include "model/layers/engram.h"
#include "model/layers/hyper_connection.h"
#include "model/layers/moe.h"

namespace millrace {
namespace {

const std::string kFolder = MILLRACE_SOURCE_DIR "/tests/golden";

const GoldenFile& golden() {
  static const GoldenFile file(kFolder + "/tiny-v41.golden.safetensors");
  return file;
}

class Tiny : public ::testing::Test {
 protected:
  explicit Tiny(Numerics numerics = Numerics::kFp32) : loaded_(kFolder + "/tiny-v41", numerics) {}

  const ModelConfig& config() const { return loaded_.model().config; }
  LoneSequence lone_sequence(int64_t max_tokens) const {
    return std::move(LoneSequence::create(config(), loaded_.model().numerics, max_tokens).value());
  }

  LoadedModel loaded_;
  ThreadPool pool_{2};
  KernelContext kernel_context_{pool_};
};

using TinyFp32 = Tiny;

double fraction_of_rows_within(const std::vector<float>& got, const std::vector<float>& want,
                               size_t width, float bound) {
  size_t good = 0;
  for (size_t row = 0; row < want.size(); row += width) {
    float worst = 0;
    for (size_t i = row; i < row + width; ++i) worst = std::max(worst, std::fabs(got[i] - want[i]));
    good += worst <= bound;
  }
  return double(good) / double(want.size() / width);
}

TEST_F(TinyFp32, TheTokenMapIsThatOfTheIndependentImplementation) {
  EXPECT_EQ(loaded_.model().token_map, golden().values<int32_t>("token_map"));
}

TEST_F(TinyFp32, EngramRowsAreThoseOfTheIndependentImplementation) {
  const std::vector<int32_t> ids = golden().token_ids("fp32.medium.token_ids");
  const std::vector<int64_t> want = golden().values<int64_t>("medium.engram_rows");
  Arena arena;
  LayerContext ctx{config(), Numerics::kFp32, ref_kernels(), kernel_context_, arena, nullptr, ""};
  LoneSequence sequence = lone_sequence(int64_t(ids.size()));
  const BatchSegment segment = sequence.append(ids, LogitsFor::kNone);
  const BatchRows batch = make_batch_rows(ctx, loaded_.model(), sequence.store(), {&segment, 1});
  std::vector<int64_t> got;
  for (const EngramTable& table : loaded_.model().engram_tables) {
    const Matrix<const int64_t> rows =
        engram_row_ids(ctx, table, loaded_.model().token_map[2], batch.ngrams);
    got.insert(got.end(), rows.data, rows.data + rows.size());
  }
  EXPECT_EQ(got, want);
}

TEST_F(TinyFp32, LogitsAndDraftsAgreeEndToEndAtEveryLength) {
  for (const KernelTable* kernels : fast_kernels()) {
    for (const std::string length : {"short", "medium", "long"}) {
      const std::string prefix = "fp32." + length + ".";
      const std::vector<int32_t> ids = golden().token_ids(prefix + "token_ids");
      LoneSequence sequence = lone_sequence(int64_t(ids.size()));
      Runner runner(loaded_.model(), loaded_.experts(), sequence.store(), *kernels,
                    kernel_context_);
      const BatchSegment segment = sequence.append(ids, LogitsFor::kAll);
      std::vector<float> logits;
      ASSERT_TRUE(runner.forward({&segment, 1}, {.feed_draft = true}, logits).ok());
      const std::vector<float> want = golden().values<float>(prefix + "logits");
      ASSERT_EQ(logits.size(), want.size());
      EXPECT_GE(fraction_of_rows_within(logits, want, size_t(config().vocab_size), 1e-3f), 0.95)
          << prefix << kernels->name;

      const int32_t anchor = int32_t(golden().values<int64_t>(prefix + "draft.anchor")[0]);
      const Result<Draft> draft = runner.draft(sequence.slot(), sequence.num_tokens(), anchor);
      ASSERT_TRUE(draft.has_value());
      EXPECT_EQ(draft.value().tokens, golden().token_ids(prefix + "draft.tokens")) << prefix;
      const std::vector<float> confidences = golden().values<float>(prefix + "draft.confidence");
      for (size_t i = 0; i < confidences.size(); ++i) {
        EXPECT_NEAR(draft.value().confidences[i], confidences[i], 1e-3) << prefix << i;
      }
    }
  }
}

// ---- Sublayer by sublayer: golden input, golden shared state, compare the output.

// Agreement of two rows sets as two correct programs reach it (README.md): at least 90 % of the
// elements within one bf16 unit in the last place, none off by more than 0.25 of its row's RMS.
struct Agreement {
  double within_one_ulp = 0, worst = 0;
};

Agreement agreement(const float* got, const std::vector<float>& want, size_t width) {
  Agreement a;
  size_t close = 0;
  for (size_t row = 0; row < want.size(); row += width) {
    double square = 0;
    for (size_t i = row; i < row + width; ++i) square += double(want[i]) * want[i];
    const double rms = std::sqrt(square / double(width));
    for (size_t i = row; i < row + width; ++i) {
      const double difference = std::fabs(double(got[i]) - want[i]);
      const double ulp = std::ldexp(1.0, std::ilogb(std::max(std::fabs(want[i]), 1e-30f)) - 7);
      close += difference <= ulp;
      if (rms > 0) a.worst = std::max(a.worst, difference / rms);
    }
  }
  a.within_one_ulp = double(close) / double(want.size());
  return a;
}

class TinySublayers : public Tiny, public ::testing::WithParamInterface<Numerics> {
 protected:
  TinySublayers() : Tiny(GetParam()) {}
  std::string mode() const { return GetParam() == Numerics::kFp32 ? "fp32" : "reference"; }
  std::string name(int64_t layer, const std::string& what) const {
    return format(mode(), ".medium.trace.layers.", layer, ".", what);
  }
  std::vector<float> values(int64_t layer, const std::string& what) const {
    return golden().values<float>(name(layer, what));
  }
  void expect_agreement(const float* got, const std::vector<float>& want, size_t width,
                        const std::string& what) {
    const Agreement a = agreement(got, want, width);
    EXPECT_GE(a.within_one_ulp, 0.90) << what;
    EXPECT_LE(a.worst, 0.25) << what;
  }

  LayerContext context(Arena& arena) {
    return {config(), GetParam(), *fast_kernels()[0], kernel_context_, arena, nullptr, ""};
  }
};

TEST_P(TinySublayers, AttentionAgreesGivenTheGoldenInputsAndSharedState) {
  Arena arena;
  LayerContext ctx = context(arena);
  const Model& model = loaded_.model();
  const std::vector<int32_t> ids = golden().token_ids(mode() + ".medium.token_ids");
  const int64_t num_tokens = int64_t(ids.size());
  LoneSequence sequence = lone_sequence(num_tokens);
  KvStore& store = sequence.store();
  const BatchSegment segment = sequence.append(ids, LogitsFor::kNone);
  BatchRows rows = make_batch_rows(ctx, model, store, {&segment, 1});
  AttentionStep step{
      .rows = rows,
      .store = store,
      .fresh = FreshKeys(ctx, store, config().num_hidden_layers, num_tokens),
      .window_rope = make_rope_table(ctx, rows.positions, model.window_frequencies),
      .compressed_rope = make_rope_table(ctx, rows.positions, model.compressed_frequencies),
      .compressed_frequencies = model.compressed_frequencies,
      .open_groups = OpenGroups(ctx, store, rows),
      .selection = make_selection(ctx, num_tokens),
      .candidates = make_candidates(ctx, num_tokens)};
  // What a source wrote for others must agree; then they get the golden rows.
  const auto exchange_rows = [&](int64_t l, StateKind kind, const std::string& what,
                                 int64_t width) {
    std::vector<float> want = values(l, what), got(want.size());
    const int64_t num_rows = int64_t(want.size()) / width;
    const StatePlane& plane = store.layout().plane(kind, l);
    std::vector<std::byte*> addresses;
    for (int64_t r = 0; r < num_rows; ++r) {
      addresses.push_back(store.row(plane, segment.block_table, r));
    }
    const std::vector<const std::byte*> stored(addresses.begin(), addresses.end());
    ctx.kernels.unpack_keys(kernel_context_, store.key_format(kind), stored,
                            {got.data(), {num_rows, width}});
    expect_agreement(got.data(), want, size_t(width), name(l, what));
    ctx.kernels.pack_keys(kernel_context_, {want.data(), {num_rows, width}}, store.key_format(kind),
                          addresses);
  };
  for (int64_t l = 0; l < config().num_hidden_layers; ++l) {
    LayerInfo layer = model.layers[size_t(l)];
    std::vector<float> input = values(l, "attn.in");
    const Matrix<float> x(input.data(), {num_tokens, config().hidden_size});
    const AttentionWeights& weights = model.weights.layers[size_t(l)].attention;

    // First as the model runs it: what the layer leaves for others must agree.
    const Matrix<const float> in = ctx.linear_input(x);
    write_keys(ctx, weights, layer, l, x, in, step);
    Matrix<float> out = attention(ctx, weights, layer, l, x, in, step);
    if (layer.owns_compressor) {
      exchange_rows(l, StateKind::kCompressedRow, "attn.compressed_kv", config().head_dim);
      exchange_rows(l, StateKind::kIndexKey, "attn.index_keys", config().index_head_dim);
    }
    if (layer.owns_index) {
      // Selections differ only where scores nearly tie.
      const std::vector<uint8_t> mask = golden().values<uint8_t>(name(l, "attn.selected_rows"));
      const int64_t num_rows = golden().shape(name(l, "attn.selected_rows"))[1];
      int64_t differences = 0, total = 0;
      for (int64_t t = 0; t < num_tokens; ++t) {
        std::vector<int32_t> want;
        for (int64_t j = 0; j < num_rows; ++j) {
          if (mask[size_t(t * num_rows + j)]) want.push_back(int32_t(j));
        }
        int32_t* got = step.selection.rows.row(t);
        int32_t& count = step.selection.counts[size_t(t)];
        EXPECT_EQ(size_t(count), want.size());
        for (int32_t i = 0; i < count; ++i) differences += !mask[size_t(t * num_rows + got[i])];
        total += count;
        std::copy(want.begin(), want.end(), got);
        count = int32_t(want.size());
      }
      EXPECT_LE(differences, total / 50) << name(l, "selected_rows");
    }
    // Then again on the golden shared state alone.
    layer.owns_compressor = layer.owns_index = false;
    write_keys(ctx, weights, layer, l, x, in, step);
    out = attention(ctx, weights, layer, l, x, in, step);
    expect_agreement(out.data, values(l, "attn.out"), size_t(config().hidden_size),
                     name(l, "attn.out"));
  }
}

TEST_P(TinySublayers, ExpertsAgreeGivenTheGoldenInputs) {
  for (int64_t l = 0; l < config().num_hidden_layers; ++l) {
    Arena arena;
    Trace trace;
    LayerContext ctx = context(arena);
    ctx.trace = &trace;
    std::vector<float> input = values(l, "ffn.in");
    const Matrix<float> x(input.data(),
                          {int64_t(input.size()) / config().hidden_size, config().hidden_size});
    const std::vector<RowKind> kinds(size_t(x.shape[0]), RowKind::kText);
    const Result<Matrix<float>> out =
        moe(ctx, loaded_.model().weights.layers[size_t(l)].moe, loaded_.experts(), l,
            config().num_experts_per_tok, x, kinds);
    ASSERT_TRUE(out.has_value());
    EXPECT_EQ(trace.ids().at("ffn.experts").values,
              golden().values<int32_t>(name(l, "ffn.experts")))
        << l;
    expect_agreement(out.value().data, values(l, "ffn.out"), size_t(config().hidden_size),
                     name(l, "ffn.out"));
  }
}

TEST_P(TinySublayers, HyperConnectionsCarryGoldenSublayersToTheGoldenStreams) {
  for (int64_t l = 0; l < config().num_hidden_layers; ++l) {
    Arena arena;
    LayerContext ctx = context(arena);
    const BlockWeights& block = loaded_.model().weights.layers[size_t(l)];
    std::vector<float> streams = values(l, "in.streams"), pre_mix = values(l, "in.pre_mix");
    const int64_t rows = int64_t(pre_mix.size()) / config().hc_mult, width = config().hidden_size;
    const Matrix<float> h(streams.data(), {rows, config().hc_mult * width});
    const Matrix<float> pre(pre_mix.data(), {rows, config().hc_mult});
    std::vector<float> attn_out = values(l, "attn.out"), ffn_out = values(l, "ffn.out");

    const HcMixes attn = hc_mixes(ctx, h, block.hc_attn);
    expect_agreement(hc_input(ctx, h, pre, block.attn_norm).data, values(l, "attn.in"),
                     size_t(width), name(l, "attn.in"));
    hc_update(ctx, {attn_out.data(), {rows, width}}, attn, h);
    const HcMixes ffn = hc_mixes(ctx, h, block.hc_ffn);
    expect_agreement(hc_input(ctx, h, attn.pre, block.ffn_norm).data, values(l, "ffn.in"),
                     size_t(width), name(l, "ffn.in"));
    hc_update(ctx, {ffn_out.data(), {rows, width}}, ffn, h);
    expect_agreement(h.data, values(l, "out.streams"), size_t(width), name(l, "out.streams"));
    const std::vector<float> want_mix = values(l, "out.pre_mix");
    for (size_t i = 0; i < want_mix.size(); ++i) EXPECT_NEAR(ffn.pre.data[i], want_mix[i], 1e-3);
  }
}

TEST_P(TinySublayers, EngramTurnsTheStreamsBeforeALayerIntoItsGoldenInput) {
  const std::vector<int64_t> row_ids = golden().values<int64_t>("medium.engram_rows");
  for (size_t e = 0; e < config().engram_layer_ids.size(); ++e) {
    Arena arena;
    LayerContext ctx = context(arena);
    const int64_t l = config().engram_layer_ids[e];
    std::vector<float> streams = values(l - 1, "out.streams");
    const int64_t width = config().hc_mult * config().hidden_size;
    const Matrix<float> h(streams.data(), {int64_t(streams.size()) / width, width});
    const int64_t columns = config().engram_num_columns();
    const std::vector<uint8_t> dead(size_t(h.shape[0]), 0);
    engram(ctx, *loaded_.model().weights.layers[size_t(l)].engram,
           {row_ids.data() + int64_t(e) * h.shape[0] * columns, {h.shape[0], columns}}, dead, h);
    expect_agreement(h.data, values(l, "in.streams"), size_t(config().hidden_size),
                     name(l, "in.streams"));
  }
}

INSTANTIATE_TEST_SUITE_P(EachNumerics, TinySublayers,
                         ::testing::Values(Numerics::kReference, Numerics::kFp32),
                         [](const auto& info) {
                           return info.param == Numerics::kFp32 ? "Fp32" : "Reference";
                         });

// ---- One answer.

// Everything a way of running could change: logits of every token, and the draft after the last.
struct Answer {
  std::vector<float> logits;
  Draft draft;
};

class OneAnswer {
 public:
  explicit OneAnswer(Numerics numerics) : loaded_(kFolder + "/tiny-v41", numerics) {
    ids_ = golden().token_ids("reference.long.token_ids");
    want_ = run(ref_kernels(), 1, ids_.size());
  }

  void expect_same(const KernelTable& kernels, int threads, size_t chunk) {
    const Answer got = run(kernels, threads, chunk);
    const std::string way = format(kernels.name, ", ", threads, " threads, chunks of ", chunk);
    ASSERT_EQ(got.logits.size(), want_.logits.size()) << way;
    EXPECT_EQ(
        std::memcmp(got.logits.data(), want_.logits.data(), got.logits.size() * sizeof(float)), 0)
        << way;
    EXPECT_EQ(got.draft.tokens, want_.draft.tokens) << way;
    EXPECT_EQ(got.draft.confidences, want_.draft.confidences) << way;
  }

  size_t whole() const { return ids_.size(); }

 private:
  Answer run(const KernelTable& kernels, int threads, size_t chunk) {
    const ScopedFpEnvironment fp;
    ThreadPool pool(threads);
    KernelContext kernel_context(pool);
    LoneSequence sequence = std::move(
        LoneSequence::create(loaded_.model().config, loaded_.model().numerics, int64_t(ids_.size()))
            .value());
    Runner runner(loaded_.model(), loaded_.experts(), sequence.store(), kernels, kernel_context);
    Answer answer;
    std::vector<float> part;
    for (size_t begin = 0; begin < ids_.size(); begin += chunk) {
      const size_t count = std::min(chunk, ids_.size() - begin);
      const BatchSegment segment =
          sequence.append(std::span(ids_).subspan(begin, count), LogitsFor::kAll);
      MR_CHECK(runner.forward({&segment, 1}, {.feed_draft = true}, part).ok());
      answer.logits.insert(answer.logits.end(), part.begin(), part.end());
    }
    const Result<Draft> draft = runner.draft(sequence.slot(), sequence.num_tokens(), 7);
    MR_CHECK(draft.has_value());
    answer.draft = draft.value();
    return answer;
  }

  LoadedModel loaded_;
  std::vector<int32_t> ids_;
  Answer want_;
};

TEST(TinyOneAnswer, ChunksThreadsAndTablesGiveTheBitsOfTheReference) {
  OneAnswer reference(Numerics::kReference), fp32(Numerics::kFp32);
  const KernelTable& best = *fast_kernels()[0];
  for (size_t chunk :
       {size_t{1}, size_t{2}, size_t{3}, size_t{5}, size_t{7}, size_t{16}, size_t{64}}) {
    reference.expect_same(best, 1 + int(chunk) % 2, chunk);
  }
  for (const KernelTable* kernels : fast_kernels()) {
    reference.expect_same(*kernels, 4, reference.whole());
    reference.expect_same(*kernels, 1, 7);
    fp32.expect_same(*kernels, 2, 16);
  }
}

TEST(TinyOneAnswerInFull, EveryChunkingThreadCountAndTableGivesTheBitsOfTheReference) {
  for (Numerics numerics : {Numerics::kReference, Numerics::kFp32}) {
    OneAnswer answer(numerics);
    for (const KernelTable* kernels : fast_kernels()) {
      for (int threads : {1, 2, 4}) {
        for (size_t chunk : {size_t{1}, size_t{2}, size_t{3}, size_t{5}, size_t{7}, size_t{16},
                             size_t{64}, answer.whole()}) {
          answer.expect_same(*kernels, threads, chunk);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
