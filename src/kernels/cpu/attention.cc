#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// ---- Attention. A token's keys become floats first, once for all its heads where there are enough
// tokens to share out. Then tile by tile of heads: lanes are heads for the scores and the softmax,
// dims for the values.

constexpr int64_t kHeadVectors = 2;  // of a tile

struct HeadTile {
  const float* rows;  // [keys, size] in logical order
  int64_t keys, size, heads;
  int64_t width;       // heads, rounded up to whole vectors
  const float* query;  // [size, width]
  float* scores;       // [keys, width] dot products, then the weights of the values
};

// The innermost functions are not inlined: they use every register, and a caller would keep one.

// The dot products of keys [key, key + kKeys).
template <int kVectors, int kKeys>
HWY_NOINLINE void dot_keys(const HeadTile& tile, int64_t key, bool swapped) {
  const FloatTag tag;
  const float* row[kKeys];
  FloatVector acc[kKeys][kVectors];
  for (int j = 0; j < kKeys; ++j) {
    row[j] = tile.rows + (key + j) * tile.size;
    for (int v = 0; v < kVectors; ++v) acc[j][v] = hn::Zero(tag);
  }
  constexpr int64_t kWidth = kVectors * kLanes;
  for (int64_t n = 0; n < tile.size; ++n) {
    const int64_t d = nth(n, tile.size, swapped);
    FloatVector query[kVectors];
    const float* at = tile.query + d * kWidth;
    for (int v = 0; v < kVectors; ++v) query[v] = hn::Load(tag, at + v * kLanes);
    for (int j = 0; j < kKeys; ++j) {
      const FloatVector value = hn::Set(tag, row[j][d]);
      for (int v = 0; v < kVectors; ++v) acc[j][v] = fused_multiply_add(query[v], value, acc[j][v]);
    }
  }
  for (int j = 0; j < kKeys; ++j) {
    float* dots = tile.scores + (key + j) * kWidth;
    for (int v = 0; v < kVectors; ++v) hn::Store(acc[j][v], tag, dots + v * kLanes);
  }
}

// Dot products of a vector of heads to weights, in place.
void softmax(const HeadTile& tile, int64_t first_head, float scale, FloatVector sink,
             bool swapped) {
  const FloatTag tag;
  float* scores = tile.scores + first_head;
  FloatVector largest = hn::Set(tag, -1e30f);
  for (int64_t j = 0; j < tile.keys; ++j) {
    float* score = scores + j * tile.width;
    const FloatVector scaled = hn::Mul(hn::Load(tag, score), hn::Set(tag, scale));
    hn::Store(scaled, tag, score);
    largest = hn::Max(largest, scaled);
  }
  HWY_ALIGN float sums[16 * kLanes] = {};  // the 16 virtual lanes, each a vector of heads
  for (int64_t n = 0; n < tile.keys; ++n) {
    // Swapped: the second and third of virtual lane 0.
    const int64_t j = n % 16 == 0 ? 16 * nth(n / 16, (tile.keys + 15) / 16, swapped) : n;
    const FloatVector e = exp_lanes(hn::Sub(hn::Load(tag, scores + j * tile.width), largest));
    hn::Store(e, tag, scores + j * tile.width);
    float* sum = sums + j % 16 * kLanes;
    hn::Store(hn::Add(hn::Load(tag, sum), e), tag, sum);
  }
  for (int half = 8; half >= 1; half /= 2) {
    for (int l = 0; l < half; ++l) {
      float* sum = sums + l * kLanes;
      hn::Store(hn::Add(hn::Load(tag, sum), hn::Load(tag, sum + half * kLanes)), tag, sum);
    }
  }
  const FloatVector denominator = hn::Add(hn::Load(tag, sums), exp_lanes(hn::Sub(sink, largest)));
  for (int64_t j = 0; j < tile.keys; ++j) {
    float* score = scores + j * tile.width;
    hn::Store(hn::Div(hn::Load(tag, score), denominator), tag, score);
  }
}

// out[h][d ...] += the keys [begin, end), for kHeads heads from `head` and kVectors vectors of
// dims from d; the sums start from zero at key 0 and are finished at the last one.
template <int kHeads, int kVectors, class Access>
HWY_NOINLINE void add_values(const HeadTile& tile, int64_t begin, int64_t end, int64_t head,
                             int64_t d, const Access& access, TensorView<float, 2> out,
                             Rounding rounding, bool swapped) {
  const FloatTag tag;
  FloatVector acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      acc[h][v] = begin == 0 ? hn::Zero(tag) : access.load(out.row(head + h) + d + v * kLanes);
    }
  }
  for (int64_t n = begin; n < end; ++n) {
    const int64_t j = nth(n, end, swapped);
    const float* row = tile.rows + j * tile.size + d;
    const float* weights = tile.scores + j * tile.width + head;
    FloatVector value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = access.load(row + v * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const FloatVector weight = hn::Set(tag, weights[h]);
      for (int v = 0; v < kVectors; ++v) {
        acc[h][v] = fused_multiply_add(weight, value[v], acc[h][v]);
      }
    }
  }
  const bool is_last = end == tile.keys;
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      const FloatVector y = is_last ? rounded(acc[h][v], rounding) : acc[h][v];
      access.store(y, out.row(head + h) + d + v * kLanes);
    }
  }
}

template <int kHeads>
void add_value_rows(const HeadTile& tile, int64_t begin, int64_t end, int64_t head,
                    TensorView<float, 2> out, Rounding rounding, bool swapped) {
  constexpr int kVectors = 3;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= tile.size; d += kVectors * kLanes) {
    add_values<kHeads, kVectors>(tile, begin, end, head, d, Whole(), out, rounding, swapped);
  }
  for (; d + kLanes <= tile.size; d += kLanes) {
    add_values<kHeads, 1>(tile, begin, end, head, d, Whole(), out, rounding, swapped);
  }
  if (d < tile.size) {
    add_values<kHeads, 1>(tile, begin, end, head, d, part_of(tile.size - d), out, rounding,
                          swapped);
  }
}

template <int kVectors>
void attend(const HeadTile& tile, const float* sink, float scale, TensorView<float, 2> out,
            Rounding rounding, bool has_company) {
  constexpr int kKeys = 6;
  const bool swapped_scores = mutated("attention/scores");
  const bool swapped_softmax =
      mutated("attention/softmax") || (has_company && mutated("ragged_attention/company"));
  const bool swapped_values = mutated("attention/values");
  int64_t key = 0;
  for (; key + kKeys <= tile.keys; key += kKeys) {
    dot_keys<kVectors, kKeys>(tile, key, swapped_scores);
  }
  for (; key < tile.keys; ++key) dot_keys<kVectors, 1>(tile, key, swapped_scores);

  for (int v = 0; v < kVectors; ++v) {
    const int64_t first = v * kLanes;
    const FloatVector sinks = part_of(tile.heads - first).load(sink + first);
    softmax(tile, first, scale, sinks, swapped_softmax);
  }

  // Blocks of keys that stay in the cache while every head and dim takes them in. Without a key
  // there is one empty block, whose sums are zero.
  constexpr int64_t kKeyBlock = 64;
  int64_t begin = 0;
  do {
    const int64_t end = begin + kKeyBlock < tile.keys ? begin + kKeyBlock : tile.keys;
    int64_t head = 0;
    for (; head + 4 <= tile.heads; head += 4) {
      add_value_rows<4>(tile, begin, end, head, out, rounding, swapped_values);
    }
    for (; head < tile.heads; ++head) {
      add_value_rows<1>(tile, begin, end, head, out, rounding, swapped_values);
    }
    begin = end;
  } while (begin < tile.keys);
}

void attention(KernelContext& ctx, TensorView<const float, 3> q, const AttentionKeys& keys,
               std::span<const float> sink, float scale, TensorView<float, 3> out,
               Rounding rounding) {
  const int64_t tokens = q.shape[0], heads = q.shape[1], size = q.shape[2];
  Dims("attention").bind('T', tokens).bind('H', heads).bind('D', size)
      .bind('T', out.shape[0]).bind('H', out.shape[1]).bind('D', out.shape[2])
      .bind('H', int64_t(sink.size())).bind('T', int64_t(keys.window.size()))
      .bind('T', int64_t(keys.block_tables.size())).bind('T', int64_t(keys.num_selected.size()));
  int64_t most_keys = 0;
  for (size_t t = 0; t < size_t(tokens); ++t) {
    const int64_t count = num_keys(keys, t);
    most_keys = count > most_keys ? count : most_keys;
  }
  constexpr int64_t kTile = kHeadVectors * kLanes;
  const int64_t tiles = (heads + kTile - 1) / kTile;
  // With few tokens, tiles are shared out, too, and each thread unpacks the keys for its own.
  const int64_t parts = tokens < 2 * ctx.pool().num_threads() ? tiles : 1;
  // Scratch of a thread: the transposed queries and the scores of a tile, which start at whole
  // vectors, the addresses of the keys, and the keys.
  const int64_t tile_floats = (size + most_keys) * kTile;
  const size_t bytes = size_t(tile_floats + most_keys * size) * sizeof(float) +
                       size_t(most_keys) * sizeof(std::byte*);
  const int64_t cost = (most_keys + 1) * size * tiles / parts;
  each_item(ctx, tokens * parts, cost, [&](int64_t item, int thread_idx) HWY_ATTR {
    const size_t t = size_t(item / parts);
    float* query = static_cast<float*>(ctx.scratch(thread_idx, bytes));
    float* scores = query + size * kTile;
    const auto** addresses = reinterpret_cast<const std::byte**>(query + tile_floats);
    float* rows = reinterpret_cast<float*>(addresses + most_keys);

    const int64_t count = num_keys(keys, t), in_window = num_window_keys(keys, t);
    list_keys(keys, t, size, addresses);
    for (int64_t j = 0; j < count; ++j) {
      unpack_row(j < in_window ? keys.window_format : keys.compressed.format, addresses[j], size,
                 rows + j * size);
    }
    const int64_t part = item % parts;
    for (int64_t i = part * tiles / parts; i < (part + 1) * tiles / parts; ++i) {
      const int64_t first_head = i * kTile;
      const int64_t tile_heads = heads - first_head < kTile ? heads - first_head : kTile;
      const int64_t width = tile_heads <= kLanes ? kLanes : kTile;
      transpose_heads(q.row(int64_t(t), first_head), q.stride[1], size, tile_heads, width, query);
      const HeadTile tile{rows, count, size, tile_heads, width, query, scores};
      const TensorView<float, 2> tile_out(out.row(int64_t(t), first_head), {tile_heads, size},
                                          {out.stride[1], 1});
      const float* tile_sink = sink.data() + first_head;
      if (width == kLanes) {
        attend<1>(tile, tile_sink, scale, tile_out, rounding, tokens > 1);
      } else {
        attend<kHeadVectors>(tile, tile_sink, scale, tile_out, rounding, tokens > 1);
      }
    }
  });
}

void compress_pairs(KernelContext& ctx, std::span<const float* const> a,
                    std::span<const float* const> b, Matrix<float> out, Rounding rounding) {
  Dims("compress_pairs").bind('T', int64_t(a.size())).bind('T', int64_t(b.size()))
      .bind('T', 2 * out.shape[0]);
  const bool mutant = mutated("compress_pairs");
  each_piece(ctx, out.shape[0], out.shape[1], 16,
             [&](int64_t j, int64_t begin, int64_t end) HWY_ATTR {
    const size_t first = size_t(2 * j), second = first + 1;
    each_vector(begin, end, [&](auto access, int64_t d) HWY_ATTR {
      const FloatVector a0 = access.load(a[first] + d), a1 = access.load(a[second] + d);
      const FloatVector b0 = access.load(b[first] + d), b1 = access.load(b[second] + d);
      const FloatVector largest = hn::Max(b0, b1);
      const FloatVector e0 = exp_lanes(hn::Sub(b0, largest)), e1 = exp_lanes(hn::Sub(b1, largest));
      const FloatVector sum = hn::Add(e0, e1);
      const FloatVector w0 = hn::Div(e0, sum), w1 = hn::Div(e1, sum);
      const FloatVector y = mutant ? fused_multiply_add(a0, w0, hn::Mul(a1, w1))
                                   : fused_multiply_add(a1, w1, hn::Mul(a0, w0));
      access.store(rounded(y, rounding), out.row(j) + d);
    });
  });
}

}  // namespace

void add_attention(KernelTable& table) {
  table.attention = attention;
  table.compress_pairs = compress_pairs;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
