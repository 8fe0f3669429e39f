#include "model/layers/compressor.h"

#include <algorithm>
#include <cstring>

namespace millrace {
namespace {

// The rows that a call completes, segment after segment.
struct CompletedRows {
  std::span<const int64_t> positions;  // of each row's first token
  std::span<std::byte*> rows, index_keys;  // where they go
};

CompletedRows completed_rows(LayerContext& ctx, const StatePlane& row_plane,
                             const StatePlane& key_plane, int64_t ratio, const BatchRows& rows,
                             KvStore& store) {
  int64_t count = 0;
  for (const SegmentRows& in : rows.segments) {
    if (in.state == nullptr) continue;
    if (in.num_new() > 0) count += in.segment->end_position() / ratio - in.first_new() / ratio;
  }
  const auto positions = ctx.list<int64_t>(count);
  const CompletedRows completed{positions, ctx.list<std::byte*>(count),
                                ctx.list<std::byte*>(count)};
  size_t i = 0;
  for (const SegmentRows& in : rows.segments) {
    if (in.state == nullptr || in.num_new() == 0) continue;
    const int64_t end = in.segment->end_position() / ratio;
    for (int64_t row = in.first_new() / ratio; row < end; ++row, ++i) {
      positions[i] = row * ratio;
      completed.rows[i] = store.row(row_plane, in.segment->block_table, row);
      completed.index_keys[i] = store.row(key_plane, in.segment->block_table, row);
    }
  }
  return completed;
}

// The rows of `x` whose tokens are new to the blocks, segment after segment, without pads.
Matrix<const float> new_rows(LayerContext& ctx, Matrix<const float> x, const BatchRows& rows) {
  int64_t count = 0;
  for (const SegmentRows& in : rows.segments) count += in.state == nullptr ? 0 : in.num_new();
  if (count == x.shape[0]) return x;
  const Matrix<float> taken = ctx.matrix(count, x.shape[1]);
  int64_t next = 0;
  for (const SegmentRows& in : rows.segments) {
    if (in.state == nullptr) continue;
    for (int64_t r = in.end - in.num_new(); r < in.end; ++r) {
      std::copy_n(x.row(r), x.shape[1], taken.row(next++));
    }
  }
  return taken;
}

// Where the value and the gate of each token of the completed pairs are: new rows of this call or,
// for a first token of an earlier call, the sequence's slot. Tokens left over are kept.
struct Pairs {
  std::span<const float*> value, gate;  // [2 * number of rows]
};

Pairs pair_up(LayerContext& ctx, const StatePlane& open_plane, Matrix<const float> value,
              Matrix<const float> gate, const BatchRows& rows, int64_t count,
              OpenGroups& open_groups) {
  const int64_t width = value.shape[1];
  const Pairs pairs{ctx.list<const float*>(2 * count), ctx.list<const float*>(2 * count)};
  size_t i = 0;
  int64_t r = 0;  // of value and gate
  for (size_t s = 0; s < rows.segments.size(); ++s) {
    const SegmentRows& in = rows.segments[s];
    if (in.state == nullptr) continue;
    if (in.first_new() % 2 != 0 && in.num_new() > 0) {
      // The slot has it: a cached prefix ends with whole pairs.
      MR_CHECK_OP(in.first_new(), ==, in.segment->first_position);
      const auto* open = reinterpret_cast<const float*>(in.state + open_plane.values_offset);
      pairs.value[i] = open;
      pairs.gate[i++] = open + width;
    }
    for (int64_t position = in.first_new(); position < in.segment->end_position();
         ++position, ++r) {
      if (position + 1 == in.segment->end_position() && position % 2 == 0) {
        float* kept = open_groups.put(open_plane, int64_t(s));
        std::copy_n(value.row(r), width, kept);
        std::copy_n(gate.row(r), width, kept + width);
        continue;
      }
      pairs.value[i] = value.row(r);
      pairs.gate[i++] = gate.row(r);
    }
  }
  MR_CHECK_OP(i, ==, pairs.value.size());
  return pairs;
}

void record_keys(LayerContext& ctx, const char* name, KeyFormat format, int64_t width,
                 std::span<std::byte* const> rows) {
  if (ctx.trace == nullptr) return;
  const Matrix<float> values = ctx.matrix(int64_t(rows.size()), width);
  const auto addresses = ctx.list<const std::byte*>(int64_t(rows.size()));
  std::copy(rows.begin(), rows.end(), addresses.begin());
  ctx.kernels.unpack_keys(ctx.kernel_context, format, addresses, values);
  ctx.record(name, values);
}

}  // namespace

OpenGroups::OpenGroups(LayerContext& ctx, const KvStore& store, const BatchRows& rows) {
  int64_t count = 0;
  for (const StatePlane& plane : store.layout().slot_planes) {
    count += plane.kind == StateKind::kOpenGroup;
  }
  sources_ = ctx.list<Source>(count);
  size_t i = 0;
  for (const StatePlane& plane : store.layout().slot_planes) {
    if (plane.kind != StateKind::kOpenGroup) continue;
    // Allocated here and not where it is filled: it must outlive the layer.
    const auto kept = ctx.list<float*>(int64_t(rows.segments.size()));
    std::fill(kept.begin(), kept.end(), nullptr);
    for (size_t s = 0; s < kept.size(); ++s) {
      const SegmentRows& in = rows.segments[s];
      if (in.state != nullptr && in.num_new() > 0 && in.segment->end_position() % 2 != 0) {
        kept[s] = ctx.arena.allocate<float>(plane.value_bytes / int64_t(sizeof(float)));
      }
    }
    sources_[i++] = {&plane, kept};
  }
}

float* OpenGroups::put(const StatePlane& plane, int64_t segment_idx) {
  for (const Source& source : sources_) {
    if (source.plane == &plane) return source.kept[size_t(segment_idx)];
  }
  MR_CHECK(!"not an open group");
  return nullptr;
}

void OpenGroups::commit(const BatchRows& rows) const {
  for (const Source& source : sources_) {
    for (size_t s = 0; s < source.kept.size(); ++s) {
      if (source.kept[s] == nullptr) continue;
      std::memcpy(rows.segments[s].state + source.plane->values_offset, source.kept[s],
                  size_t(source.plane->value_bytes));
    }
  }
}

void compress(LayerContext& ctx, const CompressorWeights& weights, int64_t layer_idx,
              int64_t ratio, Matrix<const float> x, const BatchRows& rows,
              std::span<const float> rope_frequencies, KvStore& store, OpenGroups& open_groups) {
  const KvLayout& layout = store.layout();
  const StatePlane& row_plane = layout.plane(StateKind::kCompressedRow, layer_idx);
  const StatePlane& key_plane = layout.plane(StateKind::kIndexKey, layer_idx);
  const CompletedRows completed = completed_rows(ctx, row_plane, key_plane, ratio, rows, store);
  const int64_t count = int64_t(completed.positions.size());
  const Matrix<const float> new_x = new_rows(ctx, x, rows);
  if (new_x.shape[0] == 0) return;

  Matrix<float> latents;
  if (ratio == 1) {
    latents = linear(ctx, new_x, weights.wkv, ctx.rounding());
  } else {
    MR_CHECK_OP(ratio, ==, 2);
    const Pairs pairs = pair_up(ctx, layout.plane(StateKind::kOpenGroup, layer_idx),
                                linear(ctx, new_x, weights.wkv, Rounding::kNone),
                                linear(ctx, new_x, *weights.wgate, Rounding::kNone), rows, count,
                                open_groups);
    latents = ctx.matrix(count, weights.wkv.n);
    ctx.kernels.compress_pairs(ctx.kernel_context, pairs.value, pairs.gate, latents,
                               ctx.rounding());
  }
  if (count == 0) return;
  norm(ctx, latents, weights.norm);
  // The index key is made from the latent before its rotation.
  const Matrix<float> keys = linear(ctx, latents, weights.index_wk, ctx.rounding());
  norm(ctx, keys, weights.index_norm);
  const RopeTable table = make_rope_table(ctx, completed.positions, rope_frequencies);
  for (const Matrix<float>& m : {latents, keys}) {
    ctx.kernels.rope(ctx.kernel_context, {m.data, {count, 1, m.shape[1]}}, table.cos, table.sin,
                     false, ctx.rounding());
  }
  const KeyFormat row_format = store.key_format(StateKind::kCompressedRow);
  const KeyFormat key_format = store.key_format(StateKind::kIndexKey);
  ctx.kernels.pack_keys(ctx.kernel_context, latents, row_format, completed.rows);
  ctx.kernels.pack_keys(ctx.kernel_context, keys, key_format, completed.index_keys);
  record_keys(ctx, "attn.compressed_kv", row_format, latents.shape[1], completed.rows);
  record_keys(ctx, "attn.index_keys", key_format, keys.shape[1], completed.index_keys);
}

}  // namespace millrace
