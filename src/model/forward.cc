// The forward pass, in the order of the paper: embedding, then per layer Engram, attention and
// experts around their hyper-connections, then the head.

#include <algorithm>
#include <string>

#include "base/format.h"
#include "model/batch_rows.h"
#include "model/block.h"
#include "model/layers/attention.h"
#include "model/layers/engram.h"
#include "model/layers/head.h"
#include "model/layers/moe.h"
#include "model/runner.h"

namespace millrace {
namespace {

// Logits that are made at a time: 64 MiB of floats.
constexpr int64_t kMaxLogits = int64_t{1} << 24;

int64_t index_of(const std::vector<int64_t>& values, int64_t value) {
  const auto found = std::find(values.begin(), values.end(), value);
  MR_CHECK(found != values.end());
  return found - values.begin();
}

}  // namespace

Status Runner::check_token_ids(std::span<const int32_t> token_ids) const {
  if (token_ids.empty()) return Error{Code::kInvalidArgument, "forward: no tokens"};
  for (size_t t = 0; t < token_ids.size(); ++t) {
    if (token_ids[t] >= 0 && token_ids[t] < model_.config.vocab_size) continue;
    return Error{Code::kInvalidArgument, format("token ", t, ": id ", token_ids[t],
                                                ", expected 0..", model_.config.vocab_size - 1)};
  }
  return {};
}

// A cached prefix ends with whole compressed rows, or it ends where the slot goes on.
void Runner::check_cached_tokens(const BatchSegment& segment) const {
  if (segment.num_cached_tokens <= segment.first_position) return;
  for (const LayerInfo& layer : model_.layers) {
    if (!layer.owns_compressor) continue;
    MR_CHECK_OP(segment.num_cached_tokens % layer.compress_ratio, ==, 0);
  }
}

// What extends the draft stages' rings by a call's tokens: only rows that the rings keep, and of
// these the ones that go into all target layers: a row that goes into the last goes into all.
struct Runner::DraftFeed {
  struct Kept {
    int64_t segment_idx, position;
  };
  std::span<Kept> rows;
  Matrix<float> aux;  // [rows, targets * hidden_size]

  DraftFeed(LayerContext& ctx, std::span<const SegmentRows> segments) {
    const std::vector<int64_t>& targets = ctx.config.dspark_target_layer_ids;
    const int64_t ring_rows = ctx.config.sliding_window;
    int64_t most = 0;
    for (const SegmentRows& in : segments) most += std::min(in.segment->num_rows(), ring_rows);
    rows = ctx.list<Kept>(most);
    if (most == 0) return;
    const int64_t last_target = *std::max_element(targets.begin(), targets.end());
    size_t count = 0;
    for (size_t s = 0; s < segments.size(); ++s) {
      const BatchSegment& segment = *segments[s].segment;
      if (segment.is_padding) continue;
      const int64_t end = segment.end_position();
      for (int64_t p = std::max(segment.first_position, end - ring_rows); p < end; ++p) {
        if (segments[s].goes_into(last_target, p)) rows[count++] = {int64_t(s), p};
      }
    }
    rows = rows.first(count);
    aux = ctx.matrix(int64_t(count), int64_t(targets.size()) * ctx.config.hidden_size);
  }

  // Takes the mean of a target layer's input streams.
  void add(LayerContext& ctx, const BatchRows& in, Matrix<const float> streams, int64_t target) {
    const int64_t width = ctx.config.hidden_size;
    const Matrix<float> mean = ctx.matrix(in.num_rows(), width);
    ctx.kernels.hc_mean(ctx.kernel_context, streams, int(ctx.config.hc_mult), mean, ctx.rounding());
    for (size_t i = 0; i < rows.size(); ++i) {
      const SegmentRows& of = in.segments[size_t(rows[i].segment_idx)];
      const int64_t row = of.end - (of.segment->end_position() - rows[i].position);
      MR_CHECK_OP(row, >=, of.begin);
      std::copy_n(mean.row(row), width, aux.row(int64_t(i)) + target * width);
    }
  }
};

// main_x = norm(main_proj aux), and each stage's own keys of it.
void Runner::feed_draft_rings(LayerContext& ctx, const DraftWeights& weights,
                              std::span<const BatchSegment> segments, const DraftFeed& feed) {
  const size_t num_rows = feed.rows.size();
  if (num_rows == 0) return;
  const std::span<int64_t> positions = ctx.list<int64_t>(int64_t(num_rows));
  const std::span<std::byte*> addresses = ctx.list<std::byte*>(int64_t(num_rows));
  for (size_t i = 0; i < num_rows; ++i) positions[i] = feed.rows[i].position;
  const Matrix<float> main_x = linear(ctx, ctx.linear_input(feed.aux), weights.main_proj);
  norm(ctx, main_x, weights.main_norm);
  const Matrix<const float> in = ctx.linear_input(main_x);
  const RopeTable rope = make_rope_table(ctx, positions, model_.window_frequencies);
  for (size_t stage = 0; stage < weights.stages.size(); ++stage) {
    const StatePlane& plane = store_.layout().plane(StateKind::kDraftRing, int64_t(stage));
    for (size_t i = 0; i < num_rows; ++i) {
      addresses[i] = store_.slot(segments[size_t(feed.rows[i].segment_idx)].slot) +
                     plane.values_offset + positions[i] % plane.num_rows * plane.row_bytes();
    }
    const Matrix<float> keys = window_keys(ctx, weights.stages[stage].attention, in, rope);
    kernels_.pack_keys(kernel_context_, keys, store_.key_format(plane.kind), addresses);
  }
}

Status Runner::forward(std::span<const BatchSegment> segments, const ForwardOptions& options,
                       const LogitsSink& sink) {
  for (const BatchSegment& segment : segments) {
    check_cached_tokens(segment);
    RETURN_IF_ERROR(check_token_ids(segment.tokens.subspan(size_t(segment.first_position))));
  }
  if (segments.empty()) return Error{Code::kInvalidArgument, "forward: no rows"};
  const ModelConfig& config = model_.config;
  const ModelWeights& weights = model_.weights;
  const Arena::Scope step_scope(arena_);
  LayerContext ctx{config, model_.numerics, kernels_, kernel_context_, arena_, options.trace, "",
                   options.expert_counts};

  BatchRows rows = make_batch_rows(ctx, model_, store_, segments);
  const int64_t num_call_rows = rows.num_rows();
  if (rows.narrows_before(0)) rows.keep(rows.rows_into(ctx, 0));
  AttentionStep attention_step{
      .rows = rows,
      .store = store_,
      .fresh = FreshKeys(ctx, store_, config.num_hidden_layers, num_call_rows),
      .window_rope = make_rope_table(ctx, rows.positions, model_.window_frequencies),
      .compressed_rope = make_rope_table(ctx, rows.positions, model_.compressed_frequencies),
      .compressed_frequencies = model_.compressed_frequencies,
      .open_groups = OpenGroups(ctx, store_, rows),
      .selection = make_selection(ctx, rows.num_rows()),
      .candidates = make_candidates(ctx, rows.num_rows())};
  // Which rows of the n-gram tables are wanted is known with the tokens, long before their layers.
  const std::span<Matrix<int64_t>> engram_rows =
      ctx.list<Matrix<int64_t>>(int64_t(model_.engram_tables.size()));
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const LayerInfo& layer = model_.layers[size_t(l)];
    if (!layer.has_engram()) continue;
    const size_t table = size_t(layer.engram_table);
    engram_rows[table] =
        engram_row_ids(ctx, model_.engram_tables[table],
                       model_.token_map[size_t(config.engram_pad_token_id)], rows.ngrams);
    read_engram_ahead(weights.layers[size_t(l)].engram->embed, engram_rows[table],
                      rows.rows_into(ctx, l), rows.without_memory, read_ahead_);
  }
  read_ahead_.start();
  Matrix<float> streams = embed(ctx, weights.embed, rows.token_ids);
  Matrix<float> pre_mix = hc_initial_mix(ctx, rows.num_rows());
  const bool feeds_draft = options.feed_draft && weights.draft.has_value();
  DraftFeed draft_feed(ctx, feeds_draft ? rows.segments : std::span<SegmentRows>());
  // Takes out the rows that do not go into layer l, of `more` as well; false: all do.
  const auto narrow = [&](int64_t l, auto&... more) {
    if (!rows.narrows_before(l)) return false;
    const std::span<const int32_t> kept = rows.rows_into(ctx, l);
    attention_step.keep(kept);
    keep_rows(streams, kept);
    keep_rows(pre_mix, kept);
    for (Matrix<int64_t>& ids : engram_rows) keep_rows(ids, kept);
    (keep_rows(more, kept), ...);
    return true;
  };

  for (int64_t l = 0; l < config.num_hidden_layers && rows.num_rows() > 0; ++l) {
    if (options.monitor != nullptr && !options.monitor->before_layer(l)) {
      return Error{Code::kCancelled, format("forward: abandoned before layer ", l)};
    }
    const Arena::Scope layer_scope(arena_);
    const BlockWeights& block = weights.layers[size_t(l)];
    const LayerInfo& layer = model_.layers[size_t(l)];
    if (options.trace != nullptr) ctx.trace_prefix = format("layers.", l, ".");

    if (layer.has_engram()) {
      engram(ctx, *block.engram, engram_rows[size_t(layer.engram_table)], rows.without_memory,
             streams);
    }
    if (feeds_draft && layer.is_draft_target) {
      draft_feed.add(ctx, rows, streams, index_of(config.dspark_target_layer_ids, l));
    }
    if (options.trace != nullptr) {
      options.trace->add(ctx.trace_prefix + "in.streams", streams, config.hc_mult);
      options.trace->add(ctx.trace_prefix + "in.pre_mix", pre_mix);
    }
    Matrix<const float> in;  // of the products that read the normed input
    RETURN_IF_ERROR(run_block(
        ctx, block, streams, pre_mix,
        [&](Matrix<float>& x) {
          in = ctx.linear_input(x);
          write_keys(ctx, block.attention, layer, l, x, in, attention_step);
          if (narrow(l + 1, x)) in = ctx.linear_input(x);
        },
        [&](Matrix<const float> x) -> Result<Matrix<float>> {
          return attention(ctx, block.attention, layer, l, x, in, attention_step);
        },
        [&](Matrix<const float> x) {
          return moe(ctx, block.moe, experts_, l, config.num_experts_per_tok, x, rows.kinds);
        }));
    if (options.trace != nullptr) {
      options.trace->add(ctx.trace_prefix + "out.streams", streams, config.hc_mult);
      options.trace->add(ctx.trace_prefix + "out.pre_mix", pre_mix);
    }
  }

  // Nothing can fail from here on: the sequences move ahead.
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const StatePlane& ring = store_.layout().plane(StateKind::kWindowRing, l);
    commit_ring(rows.segments, ring, l, attention_step.fresh);
  }
  attention_step.open_groups.commit(rows);
  if (feeds_draft) feed_draft_rings(ctx, *weights.draft, segments, draft_feed);

  make_logits(ctx, rows, streams, pre_mix, sink);
  return {};
}

// Tile by tile, so that the logits of many rows never need memory at once.
void Runner::make_logits(LayerContext& ctx, const BatchRows& rows, Matrix<const float> streams,
                         Matrix<const float> pre_mix, const LogitsSink& sink) {
  const int64_t vocab_size = model_.config.vocab_size;
  const int64_t tile = std::max<int64_t>(kMaxLogits / vocab_size, 1);
  const int64_t most = std::min(tile, rows.num_rows());
  const std::span<LogitsRow> wanted = ctx.list<LogitsRow>(most);
  const std::span<int64_t> sources = ctx.list<int64_t>(most);  // rows of the call
  int64_t count = 0;
  const auto flush = [&] {
    if (count == 0) return;
    const Arena::Scope scope(arena_);
    const Matrix<float> tile_streams = ctx.matrix(count, streams.shape[1]);
    const Matrix<float> tile_mix = ctx.matrix(count, pre_mix.shape[1]);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(streams.row(sources[size_t(i)]), streams.shape[1], tile_streams.row(i));
      std::copy_n(pre_mix.row(sources[size_t(i)]), pre_mix.shape[1], tile_mix.row(i));
    }
    const Matrix<float> logits = ctx.matrix(count, vocab_size);
    head(ctx, collapse_streams(ctx, tile_streams, tile_mix), model_.weights.norm,
         model_.weights.head, logits);
    sink(wanted.first(size_t(count)), logits);
    count = 0;
  };
  for (size_t s = 0; s < rows.segments.size(); ++s) {
    const SegmentRows& in = rows.segments[s];
    MR_CHECK_OP(in.segment->num_logits(), <=, in.end - in.begin);
    for (int64_t r = in.end - in.segment->num_logits(); r < in.end; ++r) {
      wanted[size_t(count)] = {int64_t(s), rows.positions[size_t(r)]};
      sources[size_t(count++)] = r;
      if (count == tile) flush();
    }
  }
  flush();
}

Status Runner::forward(std::span<const BatchSegment> segments, const ForwardOptions& options,
                       std::vector<float>& logits) {
  logits.clear();
  return forward(segments, options, [&](std::span<const LogitsRow>, Matrix<const float> rows) {
    logits.insert(logits.end(), rows.data, rows.data + rows.size());
  });
}

}  // namespace millrace
