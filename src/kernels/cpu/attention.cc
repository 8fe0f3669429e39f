#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// Queries [begin, end) of `q` [heads, size] transposed: out[d * width + h]. Heads up to the width
// are zero.
void transpose_heads(const float* q, int64_t head_stride, int64_t size, int64_t heads,
                     int64_t width, float* out) {
  for (int64_t d = 0; d < size; ++d) {
    for (int64_t h = 0; h < heads; ++h) out[d * width + h] = q[h * head_stride + d];
    for (int64_t h = heads; h < width; ++h) out[d * width + h] = 0;
  }
}

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

// ---- Index scores. Lanes are heads for the dot products; then one chain over the heads per key,
// several keys side by side.

// dots[j * width + h] of kKeys keys from `keys`, for kVectors vectors of heads from `head`.
template <int kVectors, int kKeys>
HWY_NOINLINE void index_dots(const float* query, int64_t width, int64_t head, int64_t size,
                             const float* keys, int64_t key_stride, bool swapped, float* dots) {
  const FloatTag tag;
  FloatVector dot[kKeys][kVectors];
  for (auto& row : dot) {
    for (FloatVector& v : row) v = hn::Zero(tag);
  }
  for (int64_t block = 0; block < size; block += kQuantBlock) {
    FloatVector acc[kKeys][kVectors];
    for (auto& row : acc) {
      for (FloatVector& v : row) v = hn::Zero(tag);
    }
    for (int64_t n = 0; n < kQuantBlock; ++n) {
      const int64_t d = block + nth(n, kQuantBlock, swapped);
      FloatVector q[kVectors];
      const float* at = query + d * width + head;
      for (int v = 0; v < kVectors; ++v) q[v] = hn::Load(tag, at + v * kLanes);
      for (int j = 0; j < kKeys; ++j) {
        const FloatVector key = hn::Set(tag, keys[j * key_stride + d]);
        for (int v = 0; v < kVectors; ++v) acc[j][v] = fused_multiply_add(q[v], key, acc[j][v]);
      }
    }
    for (int j = 0; j < kKeys; ++j) {
      for (int v = 0; v < kVectors; ++v) dot[j][v] = hn::Add(dot[j][v], acc[j][v]);
    }
  }
  for (int j = 0; j < kKeys; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(dot[j][v], tag, dots + j * width + head + v * kLanes);
    }
  }
}

template <int kKeys>
void index_dots_all_heads(const float* query, int64_t width, int64_t size, const float* keys,
                          int64_t key_stride, bool swapped, float* dots) {
  constexpr int kVectors = 4;
  int64_t head = 0;
  for (; head + kVectors * kLanes <= width; head += kVectors * kLanes) {
    index_dots<kVectors, kKeys>(query, width, head, size, keys, key_stride, swapped, dots);
  }
  for (; head < width; head += kLanes) {
    index_dots<1, kKeys>(query, width, head, size, keys, key_stride, swapped, dots);
  }
}

// The chain over h of fma(weights[h] * weight_scale, max(dots[j][h], 0), .) for the keys j of an
// access.
template <class Access>
FloatVector index_chain(const Access& access, const float* dots, int64_t width,
                        const float* weights, float weight_scale, int64_t heads,
                        bool swapped) {
  const FloatTag tag;
  FloatVector score = hn::Zero(tag);
  for (int64_t n = 0; n < heads; ++n) {
    const int64_t h = nth(n, heads, swapped);
    HWY_ALIGN float column[kLanes] = {};
    for (int64_t j = 0; j < access.count; ++j) column[j] = dots[j * width + h];
    const FloatVector dot = hn::Load(tag, column);
    const FloatVector positive = hn::IfThenZeroElse(hn::Lt(dot, hn::Zero(tag)), dot);
    score = fused_multiply_add(hn::Set(tag, weights[h] * weight_scale), positive, score);
  }
  return score;
}

void index_scores(KernelContext& ctx, TensorView<const float, 3> q, Matrix<const float> weights,
                  float weight_scale, const PagedRows& keys,
                  std::span<const int32_t* const> block_tables,
                  std::span<const int64_t> num_visible, std::span<float* const> scores) {
  const int64_t tokens = q.shape[0], heads = q.shape[1], size = q.shape[2];
  Dims("index_scores").bind('T', tokens).bind('H', heads).bind('D', size)
      .bind('T', weights.shape[0]).bind('H', weights.shape[1])
      .bind('T', int64_t(block_tables.size())).bind('T', int64_t(num_visible.size()))
      .bind('T', int64_t(scores.size()));
  MR_CHECK_OP(size % kQuantBlock, ==, 0);
  int64_t most_visible = 0;
  for (int64_t visible : num_visible) {
    most_visible = visible > most_visible ? visible : most_visible;
  }
  const bool swapped_dots = mutated("index_scores/dots");
  const bool swapped_heads = mutated("index_scores/heads");
  // An item is a block of keys and a token. Tokens in a row that share a table of blocks share the
  // unpacked keys, too.
  const int64_t key_block = tokens == 1 ? 64 : 256;
  const int64_t key_blocks = (most_visible + key_block - 1) / key_block;
  const int64_t width = (heads + kLanes - 1) / kLanes * kLanes;
  const int64_t row_bytes = key_row_bytes(keys.format, size);
  constexpr int kKeys = 3;
  constexpr int64_t kTile = kKeys * kLanes;  // keys between two chains over the heads
  const int64_t cost = (key_block < most_visible ? key_block : most_visible) * heads * size / 4;
  const int64_t count = key_blocks * tokens;
  if (count == 0) return;
  const int64_t grain = count * cost < kWorthSplitting ? count : 1;
  ctx.pool().parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread_idx) HWY_ATTR {
    float* query = ctx.scratch<float>(thread_idx, (size + kTile) * width + key_block * size);
    float* dots = query + size * width;
    float* rows = dots + kTile * width;  // [key_block, size]
    int64_t transposed = -1;             // the token whose queries are in `query`
    const int32_t* unpacked_table = nullptr;  // whose keys are in `rows`:
    int64_t unpacked_first = 0, unpacked_last = 0;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t t = item % tokens, first = item / tokens * key_block;
      const int64_t visible = num_visible[size_t(t)];
      const int64_t last = first + key_block < visible ? first + key_block : visible;
      if (first >= last) continue;
      if (transposed != t) {
        transpose_heads(q.row(t, 0), q.stride[1], size, heads, width, query);
        transposed = t;
      }
      const int32_t* table = block_tables[size_t(t)];
      const bool mutant = mutated("ragged_index_scores") && unpacked_table != nullptr;
      if ((table != unpacked_table && !mutant) || first != unpacked_first) {
        unpacked_table = table;
        unpacked_first = unpacked_last = first;
      }
      for (; unpacked_last < last; ++unpacked_last) {
        unpack_row(keys.format, keys.row(table, unpacked_last, row_bytes), size,
                   rows + (unpacked_last - first) * size);
      }
      for (int64_t tile = first; tile < last; tile += kTile) {
        const int64_t tile_keys = tile + kTile < last ? kTile : last - tile;
        const float* tile_rows = rows + (tile - first) * size;
        int64_t j = 0;
        for (; j + kKeys <= tile_keys; j += kKeys) {
          index_dots_all_heads<kKeys>(query, width, size, tile_rows + j * size, size, swapped_dots,
                                      dots + j * width);
        }
        for (; j < tile_keys; ++j) {
          index_dots_all_heads<1>(query, width, size, tile_rows + j * size, size, swapped_dots,
                                  dots + j * width);
        }
        each_vector(0, tile_keys, [&](auto access, int64_t i) HWY_ATTR {
          const FloatVector score = index_chain(access, dots + i * width, width, weights.row(t),
                                                weight_scale, heads, swapped_heads);
          access.store(score, scores[size_t(t)] + tile + i);
        });
      }
    }
  });
}

}  // namespace

void add_attention(KernelTable& table) {
  table.attention = attention;
  table.compress_pairs = compress_pairs;
  table.index_scores = index_scores;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
