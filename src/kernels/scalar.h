#pragma once

// The scalar ends of operations whose long loops are vectorised: every table calls these same
// functions, built once for the baseline target. Not inline, so that no copy is built wider.

#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace millrace {

// The fixed tree that ends a lane sum; destroys `lanes`.
float fold_lanes(float* lanes /*[16]*/);

// From the mixes m [(2 + M) * M] of one token (dot products times r) to pre, post [M] and
// comb [M * M].
void finish_hc_mixes(const float* mixes, int num_streams, const HcWeights& weights,
                     const HcParameters& parameters, float* pre, float* post, float* comb);

// The Engram gate of one stream from its three lane sums.
float engram_gate(float dot, float hh, float kk, int64_t hidden_size, float eps);

// Routing of one token (KernelTable::route).
void route_token(std::span<const float> logits, const float* bias, float scaling, bool normalize,
                 std::span<int32_t> experts, std::span<float> weights);

// Rounds where asked.
float rounded(float x, Rounding rounding);

// The scale code of an fp8 block from the largest |x| bits in it; 255 when not finite.
uint8_t fp8_block_scale(uint32_t amax_bits);

// The value of an nvfp4 scale: 0x7f is NaN here, as the standard says.
float nvfp4_scale_value(uint8_t code);

// Addresses of the keys that token t attends to, in logical order: first those in window_format,
// num_window_keys() of them, then the selected ones.
int64_t num_window_keys(const AttentionKeys& keys, size_t t);
int64_t num_keys(const AttentionKeys& keys, size_t t);
void list_keys(const AttentionKeys& keys, size_t t, int64_t width,
               const std::byte** rows /*[num_keys]*/);

}  // namespace millrace
