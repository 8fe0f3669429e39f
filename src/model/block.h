#pragma once

#include <algorithm>

#include "model/layers/hyper_connection.h"
#include "model/layers/layer_context.h"
#include "model/weights.h"

namespace millrace {

// Both sublayers of a block with their hyper-connections: the order every backbone
// layer and every draft stage shares.
//   streams  [T, M * hidden_size] in/out
//   pre_mix  [T, M] in: the mix left by the previous block; out: the one for the next
//   enter    (Matrix<float>& normed input): leaves what later tokens read of these. May take rows
//            that go no further out of it, of streams and of pre_mix.
//   attention, ffn  (Matrix<const float> normed input) -> Result<Matrix<float>>
template <class Enter, class Attention, class Ffn>
Status run_block(LayerContext& ctx, const BlockWeights& weights, Matrix<float>& streams,
                 Matrix<float>& pre_mix, Enter enter, Attention attention, Ffn ffn) {
  Matrix<float> attn_in = hc_input(ctx, streams, pre_mix, weights.attn_norm);
  ctx.record("attn.in", attn_in);
  enter(attn_in);
  if (streams.shape[0] == 0) return {};
  const HcMixes attn_mixes = hc_mixes(ctx, streams, weights.hc_attn);
  ASSIGN_OR_RETURN(const Matrix<float> attn_out, attention(attn_in));
  ctx.record("attn.out", attn_out);
  hc_update(ctx, attn_out, attn_mixes, streams);

  const HcMixes ffn_mixes = hc_mixes(ctx, streams, weights.hc_ffn);
  const Matrix<float> ffn_in = hc_input(ctx, streams, attn_mixes.pre, weights.ffn_norm);
  ctx.record("ffn.in", ffn_in);
  ASSIGN_OR_RETURN(const Matrix<float> ffn_out, ffn(ffn_in));
  ctx.record("ffn.out", ffn_out);
  hc_update(ctx, ffn_out, ffn_mixes, streams);
  std::copy_n(ffn_mixes.pre.data, pre_mix.size(), pre_mix.data);
  return {};
}

}  // namespace millrace
