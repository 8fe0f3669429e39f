#include "synth/random_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/quantized.h"

namespace millrace {
namespace {

// ---- Draws: integers from -510 to 510, the sum of four random bytes less its mean.

constexpr int kLargestDraw = 510;
constexpr float kDrawDeviation = 147.8f;  // sqrt(4 * (256^2 - 1) / 12)

constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t key = mix(seed + 0x9e3779b97f4a7c15u);
  for (const char c : name) key = mix(key ^ uint64_t(static_cast<unsigned char>(c))) + key;
  return key;
}

uint64_t word_at(uint64_t key, uint64_t index) { return mix(key + index * 0x9e3779b97f4a7c15u); }

// The sums of the four bytes in each half of a word: two draws and their mean, from 0 to 1020.
struct Pair {
  uint32_t first, second;
};
Pair pair_of(uint64_t word) {
  constexpr uint64_t kEven = 0x00ff00ff00ff00ffu;
  uint64_t sums = (word & kEven) + ((word >> 8) & kEven);  // four of two bytes
  sums += sums >> 16;
  return {uint32_t(sums & 0xffff), uint32_t((sums >> 32) & 0xffff)};
}
// Element 0 is that of the least draw.
template <class T>
using ByDraw = std::array<T, 2 * kLargestDraw + 1>;

template <class T, class Of>
ByDraw<T> by_draw(Of of) {
  ByDraw<T> table;
  for (int draw = -kLargestDraw; draw <= kLargestDraw; ++draw) {
    table[size_t(draw + kLargestDraw)] = of(draw);
  }
  return table;
}

// ---- Roles.

struct Distribution {
  float mean, deviation;
};

// `gain`: the deviation is gain / sqrt(inputs), so that inputs of the order of one give outputs of
// the order of `gain`.
struct Role {
  std::string_view suffix;
  float mean = 0, deviation = 0, gain = 0;
};
// The first whose suffix fits. Sublayers write to the residual streams with half the gain of the
// rest; routers are sharper than other products.
constexpr Role kRoles[] = {
    {.suffix = "norm.weight", .mean = 1, .deviation = 0.1f},
    {.suffix = "norm1.weight", .mean = 1, .deviation = 0.1f},
    {.suffix = "norm2.weight", .mean = 1, .deviation = 0.1f},
    {.suffix = "engram.q_weight", .mean = 1, .deviation = 0.2f},
    {.suffix = "engram.k_weight", .mean = 1, .deviation = 0.2f},
    {.suffix = "engram.embed.weight", .deviation = 0.5f},
    {.suffix = "markov_head.embed.weight", .deviation = 0.3f},
    {.suffix = "embed.weight", .deviation = 1},
    {.suffix = "markov_head.head.weight", .gain = 0.5f},
    {.suffix = "head.weight", .gain = 1.7f},
    {.suffix = "attn_sink", .deviation = 0.5f},
    {.suffix = "hc_attn_base", .deviation = 0.3f},
    {.suffix = "hc_ffn_base", .deviation = 0.3f},
    {.suffix = "hc_attn_scale", .mean = 0.7f, .deviation = 0.1f},
    {.suffix = "hc_ffn_scale", .mean = 0.7f, .deviation = 0.1f},
    {.suffix = "gate.bias", .deviation = 0.05f},
    {.suffix = "gate.bias_vl", .deviation = 0.05f},
    {.suffix = "gate.weight", .gain = 2.2f},
    {.suffix = "attn.wo_b.weight", .gain = 0.5f},
    {.suffix = ".w2.weight", .gain = 0.5f},
    {.suffix = "engram.wkv.weight", .gain = 0.5f},
    {.suffix = ".bias", .deviation = 0.02f},
    {.suffix = "image_start", .deviation = 1},
    {.suffix = "image_end", .deviation = 1},
    {.suffix = "image_newline", .deviation = 1},
    {.suffix = "", .gain = 1},
};

Distribution distribution_of(std::string_view name, int64_t num_inputs) {
  for (const Role& role : kRoles) {
    if (!name.ends_with(role.suffix)) continue;
    const float deviation = role.deviation + role.gain / std::sqrt(float(num_inputs));
    return {role.mean, deviation};
  }
  MR_CHECK(false);
  return {};
}

// ---- Codes. A draw is one unit of e4m3 or 1/80 of e2m1; scales make up for the rest.

constexpr float kFp4PerDraw = 1 / 80.0f;  // deviation 1.85: the largest of 32 needs all codes

uint8_t fp8_code(int draw) { return float_to_e4m3(std::clamp(float(draw), -448.0f, 448.0f)); }
uint8_t fp4_code(int draw) {
  return float_to_e2m1(std::clamp(float(draw) * kFp4PerDraw, -6.0f, 6.0f));
}

// The power of two nearest to the scale that gives codes of `name` their deviation, as an
// exponent.
int scale_exponent(std::string_view scale_name, int64_t num_inputs, bool is_fp4) {
  std::string name(scale_name.substr(0, scale_name.size() - std::string_view("scale").size()));
  const float deviation = distribution_of(name + "weight", num_inputs).deviation;
  const float unit = deviation / (kDrawDeviation * (is_fp4 ? kFp4PerDraw : 1));
  int exponent = 0;
  const float mantissa = std::frexp(unit, &exponent);  // in [1/2, 1)
  return mantissa < 0.70710678f ? exponent - 1 : exponent;
}

// Scales are that of the role times 1/2, 1 or 2, so that blocks differ.
void fill_scales(uint64_t key, const TensorSpec& tensor, int64_t offset, std::span<uint8_t> bytes) {
  const bool is_fp4 = tensor.part == TensorPart::kRoutedExpert;
  const int middle = 127 + scale_exponent(tensor.name, tensor.shape[1] * kQuantBlock, is_fp4);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint64_t word = word_at(key, uint64_t(offset) + i);
    bytes[i] = uint8_t(std::clamp(middle - 1 + int((word >> 32) * 3 >> 32), 1, 254));
  }
}

// One element for each draw.
template <class T>
void fill_elements(uint64_t key, const ByDraw<T>& table, int64_t offset, std::span<uint8_t> bytes) {
  uint64_t index = uint64_t(offset) / sizeof(T) / 2;
  size_t at = 0;
  for (; at + 2 * sizeof(T) <= bytes.size(); at += 2 * sizeof(T), ++index) {
    const Pair pair = pair_of(word_at(key, index));
    const T two[2] = {table[pair.first], table[pair.second]};
    std::memcpy(bytes.data() + at, two, sizeof two);
  }
  if (at < bytes.size()) {
    const T last = table[pair_of(word_at(key, index)).first];
    std::memcpy(bytes.data() + at, &last, sizeof last);
  }
}

void fill_fp4(uint64_t key, int64_t offset, std::span<uint8_t> bytes) {
  const ByDraw<uint8_t> table = by_draw<uint8_t>(fp4_code);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Pair pair = pair_of(word_at(key, uint64_t(offset) + i));
    bytes[i] = uint8_t(table[pair.first] | table[pair.second] << 4);
  }
}

}  // namespace

void random_values(uint64_t seed, const TensorSpec& tensor, int64_t offset,
                   std::span<uint8_t> bytes) {
  MR_CHECK_OP(offset % 64, ==, 0);
  const uint64_t key = key_of(seed, tensor.name);
  const Distribution d = distribution_of(tensor.name, tensor.shape.back());
  const auto value = [&](int draw) {
    return d.mean + float(draw) * (d.deviation / kDrawDeviation);
  };
  switch (tensor.dtype) {
    case Dtype::kF8E4M3:
      return fill_elements(key, by_draw<uint8_t>(fp8_code), offset, bytes);
    case Dtype::kI8:
      return fill_fp4(key, offset, bytes);
    case Dtype::kF8E8M0:
      return fill_scales(key, tensor, offset, bytes);
    case Dtype::kBF16:
      return fill_elements(key,
                           by_draw<uint16_t>([&](int draw) { return to_bf16(value(draw)).bits; }),
                           offset, bytes);
    case Dtype::kF32:
      return fill_elements(key, by_draw<float>(value), offset, bytes);
    default:
      MR_CHECK(false);
  }
}

}  // namespace millrace
