#include "kernels/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/math.h"

namespace millrace {

float fold_lanes(float* lanes) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

float rounded(float x, Rounding rounding) {
  return rounding == Rounding::kBf16 ? round_to_bf16(x) : x;
}

uint8_t fp8_block_scale(uint32_t amax_bits) {
  if (amax_bits >= 0x7f800000u) return 255;
  const float amax = std::max(std::bit_cast<float>(amax_bits), 1e-4f);
  return ue8m0_ceil(amax * (1.0f / 448.0f));
}

void finish_hc_mixes(const float* mixes, int num_streams, const HcWeights& weights,
                     const HcParameters& parameters, float* pre, float* post, float* comb) {
  const int m = num_streams;
  const float eps = parameters.hc_eps;
  for (int i = 0; i < m; ++i) {
    pre[i] = sigmoid_f32(std::fma(mixes[i], weights.scale[0], weights.base[size_t(i)])) + eps;
    post[i] = 2.0f * sigmoid_f32(std::fma(mixes[m + i], weights.scale[1], weights.base[size_t(m + i)]));
  }
  for (int i = 0; i < m; ++i) {
    float* row = comb + i * m;
    for (int j = 0; j < m; ++j) {
      const int at = 2 * m + i * m + j;
      row[j] = std::fma(mixes[at], weights.scale[2], weights.base[size_t(at)]);
    }
    const float largest = *std::max_element(row, row + m);
    float sum = 0;
    for (int j = 0; j < m; ++j) sum += row[j] = exp_f32(row[j] - largest);
    for (int j = 0; j < m; ++j) row[j] = row[j] / sum + eps;
  }
  const auto normalise_columns = [&] {
    for (int j = 0; j < m; ++j) {
      float sum = 0;
      for (int i = 0; i < m; ++i) sum += comb[i * m + j];
      for (int i = 0; i < m; ++i) comb[i * m + j] /= sum + eps;
    }
  };
  const auto normalise_rows = [&] {
    for (int i = 0; i < m; ++i) {
      float sum = 0;
      for (int j = 0; j < m; ++j) sum += comb[i * m + j];
      for (int j = 0; j < m; ++j) comb[i * m + j] /= sum + eps;
    }
  };
  normalise_columns();
  for (int iteration = 1; iteration < parameters.sinkhorn_iters; ++iteration) {
    normalise_rows();
    normalise_columns();
  }
}

float engram_gate(float dot, float hh, float kk, int64_t hidden_size, float eps) {
  const float size = float(hidden_size);
  const float rh = 1.0f / std::sqrt(hh / size + eps);
  const float rk = 1.0f / std::sqrt(kk / size + eps);
  const float d = ((dot * rh) * rk) / std::sqrt(size);
  return sigmoid_f32(std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6f)), d));
}

void route_token(std::span<const float> logits, const float* bias, float scaling, bool normalize,
                 std::span<int32_t> experts, std::span<float> weights) {
  const size_t k = experts.size();
  // Insertion into a short list ordered by (score + bias descending, id ascending). A NaN never
  // compares above anything, so it is chosen only when nothing else is left.
  size_t count = 0;
  const auto score = [&](size_t e) { return std::sqrt(softplus_f32(logits[e])); };
  // experts[] holds the list; weights[] its keys until they are replaced below.
  for (size_t e = 0; e < logits.size(); ++e) {
    const float key = score(e) + bias[e];
    if (count == k && !(key > weights[k - 1])) continue;
    size_t at = count < k ? count++ : k - 1;
    while (at > 0 && key > weights[at - 1]) {
      weights[at] = weights[at - 1];
      experts[at] = experts[at - 1];
      --at;
    }
    weights[at] = key;
    experts[at] = int32_t(e);
  }
  std::sort(experts.begin(), experts.end());
  float sum = 0;
  for (size_t i = 0; i < k; ++i) sum += weights[i] = score(size_t(experts[i]));
  for (size_t i = 0; i < k; ++i) {
    weights[i] = normalize ? scaling * weights[i] / (sum + 1e-20f) : scaling * weights[i];
  }
}

float nvfp4_scale_value(uint8_t code) {
  return code == 0x7f ? std::numeric_limits<float>::quiet_NaN() : e4m3_to_float(code);
}

int64_t num_window_keys(const AttentionKeys& keys, size_t t) {
  return keys.window[t].num_in_ring + keys.window[t].num_fresh;
}

int64_t num_keys(const AttentionKeys& keys, size_t t) {
  return num_window_keys(keys, t) + keys.num_selected[t];
}

void list_keys(const AttentionKeys& keys, size_t t, int64_t width, const std::byte** rows) {
  const WindowKeys& window = keys.window[t];
  const int64_t window_bytes = key_row_bytes(keys.window_format, width);
  for (int64_t j = 0; j < window.num_in_ring; ++j) {
    const int64_t slot = (window.first_position + j) % keys.ring_slots;
    *rows++ = window.state + keys.ring_offset + slot * window_bytes;
  }
  for (int64_t j = 0; j < window.num_fresh; ++j) {
    *rows++ = keys.fresh + (window.fresh_begin + j) * window_bytes;
  }
  const int64_t row_bytes = key_row_bytes(keys.compressed.format, width);
  for (int64_t s = 0; s < keys.num_selected[t]; ++s) {
    *rows++ = keys.compressed.row(keys.block_tables[t], keys.selected.row(int64_t(t))[s], row_bytes);
  }
}

}  // namespace millrace
