// The forward pass, in the order of the paper: embedding, then per layer Engram, attention and
// experts around their hyper-connections, then the head (spec 3.3).

#include <algorithm>
#include <string>

#include "base/format.h"
#include "model/block.h"
#include "model/layers/attention.h"
#include "model/layers/engram.h"
#include "model/layers/head.h"
#include "model/layers/moe.h"
#include "model/runner.h"

namespace millrace {
namespace {

// The tokens of one call as the layers see them.
struct TokenRows {
  std::span<const int64_t> positions;   // [T]
  std::span<const uint8_t> is_image;    // [T] 1 at image positions: no Engram, bias_vl
  std::span<const int32_t> compressed;  // [T] compressed id, or kEngramDead
};

TokenRows make_token_rows(LayerContext& ctx, const Model& model, int64_t first_position,
                          std::span<const int32_t> token_ids) {
  const size_t count = token_ids.size();
  const std::span<int64_t> positions(ctx.arena.allocate<int64_t>(int64_t(count)), count);
  const std::span<uint8_t> is_image(ctx.arena.allocate<uint8_t>(int64_t(count)), count);
  const std::span<int32_t> compressed(ctx.arena.allocate<int32_t>(int64_t(count)), count);
  for (size_t t = 0; t < count; ++t) {
    positions[t] = first_position + int64_t(t);
    is_image[t] = token_ids[t] == model.config.image_token_id;
    compressed[t] = is_image[t] || model.token_map.empty()
                        ? kEngramDead
                        : model.token_map[size_t(token_ids[t])];
  }
  return {positions, is_image, compressed};
}

// The last ids that a later call's n-grams can reach back to.
void advance_ngram_tail(const ModelConfig& config, std::span<const int32_t> compressed,
                        std::vector<int32_t>& tail) {
  tail.insert(tail.begin(), compressed.rbegin(), compressed.rend());
  const int64_t reach = std::max<int64_t>(config.engram_max_ngram_size - 1, 0);
  if (int64_t(tail.size()) > reach) tail.resize(size_t(reach));
}

int64_t index_of(const std::vector<int64_t>& values, int64_t value) {
  const auto found = std::find(values.begin(), values.end(), value);
  MR_CHECK(found != values.end());
  return found - values.begin();
}

// Extends the draft stages' windows by the call's tokens (spec 6.1): main_x = norm(main_proj aux),
// and each stage's own keys of it. Only rows that the windows keep are computed.
void feed_draft_windows(LayerContext& ctx, const DraftWeights& weights, Matrix<const float> aux,
                        const RopeTable& rope, std::vector<WindowRows>& windows) {
  const int64_t rows = aux.shape[0], kept = std::min(rows, ctx.config.sliding_window);
  const Matrix<float> main_x =
      linear(ctx, ctx.linear_input(aux.rows(rows - kept, rows)), weights.main_proj);
  norm(ctx, main_x, weights.main_norm);
  const Matrix<const float> in = ctx.linear_input(main_x);
  const RopeTable kept_rope{rope.cos.rows(rows - kept, rows), rope.sin.rows(rows - kept, rows)};
  for (size_t s = 0; s < windows.size(); ++s) {
    const Matrix<float> keys = window_keys(ctx, weights.stages[s].attention, in, kept_rope);
    windows[s].skip(rows - kept);
    std::copy_n(keys.data, keys.size(), windows[s].append(kept).data);
  }
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

Status Runner::forward(SequenceState& state, std::span<const int32_t> token_ids,
                       const ForwardOptions& options, std::vector<float>& logits) {
  RETURN_IF_ERROR(check_token_ids(token_ids));
  const ModelConfig& config = model_.config;
  const ModelWeights& weights = model_.weights;
  const int64_t num_tokens = int64_t(token_ids.size());
  const Arena::Scope step_scope(arena_);
  LayerContext ctx{config, model_.numerics, kernels_, kernel_context_, arena_, options.trace, ""};

  const TokenRows rows = make_token_rows(ctx, model_, state.num_computed_tokens, token_ids);
  AttentionStep attention_step{
      .positions = rows.positions,
      .window_rope = make_rope_table(ctx, rows.positions, model_.window_frequencies),
      .compressed_rope = make_rope_table(ctx, rows.positions, model_.compressed_frequencies),
      .compressed_frequencies = model_.compressed_frequencies,
      .selection = {},
      .candidates = {}};
  const Matrix<float> streams = embed(ctx, weights.embed, token_ids);
  const Matrix<float> pre_mix = hc_initial_mix(ctx, num_tokens);
  const bool feeds_draft = options.feed_draft && weights.draft.has_value();
  const int64_t num_targets = int64_t(config.dspark_target_layer_ids.size());
  const Matrix<float> aux =
      ctx.matrix(feeds_draft ? num_tokens : 0, num_targets * config.hidden_size);

  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const Arena::Scope layer_scope(arena_);
    const BlockWeights& block = weights.layers[size_t(l)];
    const LayerInfo& layer = model_.layers[size_t(l)];
    ctx.trace_prefix = format("layers.", l, ".");

    if (layer.has_engram()) {
      const Matrix<const int64_t> row_ids = engram_row_ids(
          ctx, model_.engram_tables[size_t(layer.engram_table)],
          model_.token_map[size_t(config.engram_pad_token_id)], state.ngram_tail, rows.compressed);
      engram(ctx, *block.engram, row_ids, rows.is_image, streams);
    }
    if (feeds_draft && layer.is_draft_target) {
      const int64_t column = index_of(config.dspark_target_layer_ids, l) * config.hidden_size;
      kernels_.hc_mean(kernel_context_, streams, int(config.hc_mult),
                       {aux.data + column, {num_tokens, config.hidden_size}, aux.stride},
                       ctx.rounding());
    }
    if (options.trace != nullptr) {
      options.trace->add(ctx.trace_prefix + "in.streams", streams, config.hc_mult);
      options.trace->add(ctx.trace_prefix + "in.pre_mix", pre_mix);
    }
    RETURN_IF_ERROR(run_block(
        ctx, block, streams, pre_mix,
        [&](Matrix<const float> x) -> Result<Matrix<float>> {
          CompressedRows* compressed =
              layer.reads_compressed_rows()
                  ? &state.compressed[size_t(index_of(config.kv_source_layer_ids, layer.kv_source))]
                  : nullptr;
          return attention(ctx, block.attention, layer, x, attention_step,
                           state.window[size_t(l)], compressed);
        },
        [&](Matrix<const float> x) {
          return moe(ctx, block.moe, experts_, l, config.num_experts_per_tok, x, rows.is_image);
        }));
    if (options.trace != nullptr) {
      options.trace->add(ctx.trace_prefix + "out.streams", streams, config.hc_mult);
      options.trace->add(ctx.trace_prefix + "out.pre_mix", pre_mix);
    }
  }
  if (feeds_draft) {
    feed_draft_windows(ctx, *weights.draft, aux, attention_step.window_rope, state.draft_window);
  }
  advance_ngram_tail(config, rows.compressed, state.ngram_tail);
  state.num_computed_tokens += num_tokens;

  const int64_t first = options.logits == LogitsFor::kAll    ? 0
                        : options.logits == LogitsFor::kLast ? num_tokens - 1
                                                             : num_tokens;
  logits.resize(size_t((num_tokens - first) * config.vocab_size));
  if (first < num_tokens) {
    const Matrix<float> x = collapse_streams(ctx, streams.rows(first, num_tokens),
                                             pre_mix.rows(first, num_tokens));
    head(ctx, x, weights.norm, weights.head,
         {logits.data(), {num_tokens - first, config.vocab_size}});
  }
  return {};
}

}  // namespace millrace
