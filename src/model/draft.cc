// DSpark drafting: the draft stages run once over a block of positions that starts at
// the anchor, then a Markov head picks the tokens one after the other.

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "kernels/math.h"
#include "model/block.h"
#include "model/layers/attention.h"
#include "model/layers/head.h"
#include "model/layers/moe.h"
#include "model/runner.h"

namespace millrace {
namespace {

// Every query of the block sees all kept target positions and all keys of the block itself.
Matrix<float> draft_attention(LayerContext& ctx, const AttentionWeights& weights,
                              Matrix<const float> x, const RopeTable& rope, const StatePlane& ring,
                              const std::byte* state, int64_t num_computed_tokens,
                              FreshKeys& fresh) {
  const int64_t block = x.shape[0];
  const Matrix<const float> in = ctx.linear_input(x);
  const Queries queries = make_queries(ctx, weights, in, rope);
  const std::span<int32_t> all = ctx.list<int32_t>(block);
  std::iota(all.begin(), all.end(), 0);
  pack_fresh(ctx, fresh, 0, all, window_keys(ctx, weights, in, rope));
  const int64_t kept = std::min(num_computed_tokens, ctx.config.sliding_window);
  const std::vector<WindowKeys> window(size_t(block), {.state = state,
                                                       .first_position = num_computed_tokens - kept,
                                                       .num_in_ring = int32_t(kept),
                                                       .fresh_begin = 0,
                                                       .num_fresh = int32_t(block)});
  const std::vector<const int32_t*> no_tables(size_t(block), nullptr);
  const std::vector<int32_t> none(size_t(block), 0);
  return attend_and_project(ctx, weights, queries.q,
                            {.window_format = fresh.format(),
                             .ring_offset = ring.values_offset,
                             .ring_slots = ring.num_rows,
                             .fresh = fresh.layer(0),
                             .window = window,
                             .compressed = {},
                             .block_tables = no_tables,
                             .selected = {},
                             .num_selected = none},
                            rope);
}

int32_t argmax(std::span<const float> values) {
  return int32_t(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

Result<Draft> Runner::draft(StateSlot slot, int64_t num_computed_tokens, int32_t anchor) {
  if (!model_.weights.draft) {
    return Error{Code::kInvalidArgument, "draft: the checkpoint has no draft stages"};
  }
  RETURN_IF_ERROR(check_token_ids(std::span(&anchor, 1)));
  const ModelConfig& config = model_.config;
  const DraftWeights& weights = *model_.weights.draft;
  MR_CHECK_OP(num_computed_tokens, >, 0);
  const Arena::Scope scope(arena_);
  LayerContext ctx{config, model_.numerics, kernels_, kernel_context_, arena_, nullptr, ""};

  const int64_t block = config.dspark_block_size;
  std::vector<int32_t> ids(size_t(block), int32_t(config.dspark_noise_token_id));
  ids[0] = anchor;
  std::vector<int64_t> positions(static_cast<size_t>(block));
  for (int64_t i = 0; i < block; ++i) positions[size_t(i)] = num_computed_tokens + i;
  const RopeTable rope = make_rope_table(ctx, positions, model_.window_frequencies);
  const std::vector<RowKind> kinds(size_t(block), RowKind::kText);
  FreshKeys fresh(ctx, store_, 1, block);  // of the stage that runs
  Matrix<float> streams = embed(ctx, model_.weights.embed, ids);
  Matrix<float> pre_mix = hc_initial_mix(ctx, block);
  for (size_t s = 0; s < weights.stages.size(); ++s) {
    RETURN_IF_ERROR(run_block(
        ctx, weights.stages[s], streams, pre_mix, [](Matrix<float>&) {},
        [&](Matrix<const float> x) -> Result<Matrix<float>> {
          return draft_attention(ctx, weights.stages[s].attention, x, rope,
                                 store_.layout().plane(StateKind::kDraftRing, int64_t(s)),
                                 store_.slot(slot), num_computed_tokens, fresh);
        },
        [&](Matrix<const float> x) {
          return moe(ctx, weights.stages[s].moe, experts_, config.num_hidden_layers + int64_t(s),
                     config.dspark_num_experts_per_tok, x, kinds);
        }));
  }
  const Matrix<float> x = collapse_streams(ctx, streams, pre_mix);
  const Matrix<float> logits = ctx.matrix(block, config.vocab_size);
  head(ctx, x, weights.norm, model_.weights.head, logits);

  Draft draft;
  int32_t previous = anchor;
  const int64_t rank = weights.markov_embed.k;
  const Matrix<float> markov = ctx.matrix(1, config.vocab_size);
  const Matrix<float> confidence_in = ctx.matrix(1, config.hidden_size + rank);
  const Matrix<float> embedded(confidence_in.data + config.hidden_size, {1, rank});
  for (int64_t i = 0; i < block; ++i) {
    for (int64_t d = 0; d < rank; ++d) {
      embedded.data[d] = to_float(weights.markov_embed.data[previous * rank + d]);
    }
    kernels_.matmul_bf16(kernel_context_, embedded, weights.markov_head, markov, Rounding::kNone);
    for (int64_t v = 0; v < config.vocab_size; ++v) logits.row(i)[v] += markov.data[v];
    std::copy_n(x.row(i), config.hidden_size, confidence_in.data);
    float confidence = 0;
    kernels_.matmul_bf16(kernel_context_, confidence_in, weights.confidence,
                         {&confidence, {1, 1}}, Rounding::kNone);
    previous = argmax({logits.row(i), size_t(config.vocab_size)});
    draft.tokens.push_back(previous);
    draft.confidences.push_back(sigmoid_f32(confidence));
  }
  return draft;
}

}  // namespace millrace
