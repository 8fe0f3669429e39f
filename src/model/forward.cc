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
    return Error{Code::kInvalidArgument, format("token ", t, ": id ", token_ids[t], ", expected 0..",
                                                model_.config.vocab_size - 1)};
  }
  return {};
}

// Extends the draft stages' rings by the call's tokens: main_x = norm(main_proj aux), and each
// stage's own keys of it. Only rows that the rings keep are computed.
void Runner::feed_draft_rings(LayerContext& ctx, const DraftWeights& weights, const BatchRows& rows,
                              Matrix<const float> aux) {
  const int64_t ring_rows = model_.config.sliding_window;
  struct Kept {
    int64_t row;  // of the call
    std::byte* state;
  };
  std::vector<Kept> kept;
  for (const SegmentRows& in : rows.segments) {
    if (in.state == nullptr) continue;
    for (int64_t r = std::max(in.begin, in.end - ring_rows); r < in.end; ++r) {
      kept.push_back({r, in.state});
    }
  }
  if (kept.empty()) return;
  const int64_t count = int64_t(kept.size());
  const Matrix<float> kept_aux = ctx.matrix(count, aux.shape[1]);
  const std::span<int64_t> positions = ctx.list<int64_t>(count);
  const std::span<std::byte*> addresses = ctx.list<std::byte*>(count);
  for (size_t i = 0; i < kept.size(); ++i) {
    std::copy_n(aux.row(kept[i].row), aux.shape[1], kept_aux.row(int64_t(i)));
    positions[i] = rows.positions[size_t(kept[i].row)];
  }
  const Matrix<float> main_x = linear(ctx, ctx.linear_input(kept_aux), weights.main_proj);
  norm(ctx, main_x, weights.main_norm);
  const Matrix<const float> in = ctx.linear_input(main_x);
  const RopeTable rope = make_rope_table(ctx, positions, model_.window_frequencies);
  for (size_t stage = 0; stage < weights.stages.size(); ++stage) {
    const StatePlane& plane = store_.layout().plane(StateKind::kDraftRing, int64_t(stage));
    for (size_t i = 0; i < kept.size(); ++i) {
      addresses[i] = kept[i].state + plane.values_offset +
                     positions[i] % plane.num_rows * plane.row_bytes();
    }
    const Matrix<float> keys = window_keys(ctx, weights.stages[stage].attention, in, rope);
    kernels_.pack_keys(kernel_context_, keys, store_.key_format(plane.kind), addresses);
  }
}

Status Runner::forward(std::span<const BatchSegment> segments, const ForwardOptions& options,
                       const LogitsSink& sink) {
  for (const BatchSegment& segment : segments) {
    RETURN_IF_ERROR(check_token_ids(segment.tokens.subspan(size_t(segment.first_position))));
  }
  if (segments.empty()) return Error{Code::kInvalidArgument, "forward: no rows"};
  const ModelConfig& config = model_.config;
  const ModelWeights& weights = model_.weights;
  const Arena::Scope step_scope(arena_);
  LayerContext ctx{config, model_.numerics, kernels_, kernel_context_, arena_, options.trace, "",
                   options.expert_counts};

  const BatchRows rows = make_batch_rows(ctx, model_, store_, segments);
  const int64_t num_rows = rows.num_rows();
  AttentionStep attention_step{
      .rows = rows,
      .store = store_,
      .fresh = FreshKeys(ctx, store_, config.num_hidden_layers, num_rows),
      .window_rope = make_rope_table(ctx, rows.positions, model_.window_frequencies),
      .compressed_rope = make_rope_table(ctx, rows.positions, model_.compressed_frequencies),
      .compressed_frequencies = model_.compressed_frequencies,
      .open_groups = OpenGroups(ctx, store_, rows),
      .selection = make_selection(ctx, num_rows),
      .candidates = make_candidates(ctx, num_rows)};
  const Matrix<float> streams = embed(ctx, weights.embed, rows.token_ids);
  const Matrix<float> pre_mix = hc_initial_mix(ctx, num_rows);
  const bool feeds_draft = options.feed_draft && weights.draft.has_value();
  const int64_t num_targets = int64_t(config.dspark_target_layer_ids.size());
  const Matrix<float> aux = ctx.matrix(feeds_draft ? num_rows : 0, num_targets * config.hidden_size);

  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (options.monitor != nullptr && !options.monitor->before_layer(l)) {
      return Error{Code::kCancelled, format("forward: abandoned before layer ", l)};
    }
    const Arena::Scope layer_scope(arena_);
    const BlockWeights& block = weights.layers[size_t(l)];
    const LayerInfo& layer = model_.layers[size_t(l)];
    if (options.trace != nullptr) ctx.trace_prefix = format("layers.", l, ".");

    if (layer.has_engram()) {
      const Matrix<const int64_t> row_ids = engram_row_ids(
          ctx, model_.engram_tables[size_t(layer.engram_table)],
          model_.token_map[size_t(config.engram_pad_token_id)], rows.ngrams);
      engram(ctx, *block.engram, row_ids, rows.without_memory, streams);
    }
    if (feeds_draft && layer.is_draft_target) {
      const int64_t column = index_of(config.dspark_target_layer_ids, l) * config.hidden_size;
      kernels_.hc_mean(kernel_context_, streams, int(config.hc_mult),
                       {aux.data + column, {num_rows, config.hidden_size}, aux.stride},
                       ctx.rounding());
    }
    if (options.trace != nullptr) {
      options.trace->add(ctx.trace_prefix + "in.streams", streams, config.hc_mult);
      options.trace->add(ctx.trace_prefix + "in.pre_mix", pre_mix);
    }
    RETURN_IF_ERROR(run_block(
        ctx, block, streams, pre_mix,
        [&](Matrix<const float> x) -> Result<Matrix<float>> {
          return attention(ctx, block.attention, layer, l, x, attention_step);
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
    commit_ring(rows, ring, l, attention_step.fresh);
  }
  attention_step.open_groups.commit(rows);
  if (feeds_draft) feed_draft_rings(ctx, *weights.draft, rows, aux);

  make_logits(ctx, rows, streams, pre_mix, sink);
  return {};
}

// Tile by tile, so that the logits of many rows never need memory at once.
void Runner::make_logits(LayerContext& ctx, const BatchRows& rows, Matrix<const float> streams,
                         Matrix<const float> pre_mix, const LogitsSink& sink) {
  const int64_t vocab_size = model_.config.vocab_size;
  const int64_t tile = std::max<int64_t>(kMaxLogits / vocab_size, 1);
  std::vector<LogitsRow> wanted;
  std::vector<int64_t> sources;  // rows of the call
  const auto flush = [&] {
    if (wanted.empty()) return;
    const Arena::Scope scope(arena_);
    const int64_t count = int64_t(wanted.size());
    const Matrix<float> tile_streams = ctx.matrix(count, streams.shape[1]);
    const Matrix<float> tile_mix = ctx.matrix(count, pre_mix.shape[1]);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(streams.row(sources[size_t(i)]), streams.shape[1], tile_streams.row(i));
      std::copy_n(pre_mix.row(sources[size_t(i)]), pre_mix.shape[1], tile_mix.row(i));
    }
    const Matrix<float> logits = ctx.matrix(count, vocab_size);
    head(ctx, collapse_streams(ctx, tile_streams, tile_mix), model_.weights.norm,
         model_.weights.head, logits);
    sink(wanted, logits);
    wanted.clear();
    sources.clear();
  };
  for (size_t s = 0; s < rows.segments.size(); ++s) {
    const SegmentRows& in = rows.segments[s];
    for (int64_t r = in.end - in.segment->num_logits(); r < in.end; ++r) {
      wanted.push_back({int64_t(s), rows.positions[size_t(r)]});
      sources.push_back(r);
      if (int64_t(wanted.size()) == tile) flush();
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
