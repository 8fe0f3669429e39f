#include "model/batch_rows.h"

#include <algorithm>
#include <cstring>

#include "model_config/needed_tokens.h"

namespace millrace {
namespace {

// The window of the token at `position`: older keys from the ring, those of the call itself fresh.
WindowKeys window_keys_at(const SegmentRows& rows, int64_t sliding_window, int64_t position) {
  const int64_t first_of_call = rows.segment->first_position;
  const int64_t first = std::max<int64_t>(0, position - sliding_window + 1);
  const int64_t first_fresh = std::max(first, first_of_call);
  return {.state = rows.state,
          .first_position = first,
          .num_in_ring = int32_t(std::max<int64_t>(0, first_of_call - first)),
          .fresh_begin = int32_t(rows.begin + first_fresh - first_of_call),
          .num_fresh = int32_t(position - first_fresh + 1)};
}

RowKind row_kind(const Model& model, const BatchSegment& segment, int64_t position) {
  if (segment.is_padding) return RowKind::kPad;
  const bool is_image = segment.tokens[size_t(position)] == model.config.image_token_id;
  return is_image ? RowKind::kImage : RowKind::kText;
}

// Null: every row goes through every layer.
const int64_t* first_tokens_of(LayerContext& ctx, const Model& model, const BatchSegment& segment) {
  if (segment.is_padding ||
      (segment.first_output <= segment.first_position &&
       segment.num_cached_tokens <= segment.first_position)) {
    return nullptr;
  }
  const auto first = ctx.list<int64_t>(int64_t(model.layers.size()) + 1);
  first_tokens(model.reach, {segment.num_cached_tokens, segment.first_output}, first);
  return first.data();
}

// Compressed id of a token, or kEngramDead where hashing must not look.
int32_t compressed_id(const Model& model, const BatchSegment& segment, int64_t position) {
  if (position < 0 || model.token_map.empty() ||
      row_kind(model, segment, position) != RowKind::kText) {
    return kEngramDead;
  }
  return model.token_map[size_t(segment.tokens[size_t(position)])];
}

}  // namespace

BatchRows make_batch_rows(LayerContext& ctx, const Model& model, KvStore& store,
                          std::span<const BatchSegment> segments) {
  int64_t num_rows = 0;
  for (const BatchSegment& segment : segments) num_rows += segment.num_rows();
  const auto segment_rows = ctx.list<SegmentRows>(int64_t(segments.size()));
  const auto positions = ctx.list<int64_t>(num_rows);
  const auto kinds = ctx.list<RowKind>(num_rows);
  const auto without_memory = ctx.list<uint8_t>(num_rows);
  const auto token_ids = ctx.list<int32_t>(num_rows);
  const auto call_rows = ctx.list<int32_t>(num_rows);
  const auto window = ctx.list<WindowKeys>(num_rows);
  const auto block_tables = ctx.list<const int32_t*>(num_rows);
  const int64_t reach = model.config.engram_max_ngram_size;
  const Matrix<int32_t> ngrams = ctx.matrix<int32_t>(num_rows, reach);
  int64_t r = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const BatchSegment& segment = segments[s];
    const SegmentRows& in = segment_rows[s] = {
        &segment,
        r,
        r + segment.num_rows(),
        r + segment.num_rows(),
        segment.is_padding ? nullptr : store.slot(segment.slot),
        first_tokens_of(ctx, model, segment)};
    for (; r < in.end; ++r) {
      const size_t row = size_t(r);
      const int64_t position = segment.first_position + r - in.begin;
      positions[row] = position;
      kinds[row] = row_kind(model, segment, position);
      without_memory[row] = kinds[row] != RowKind::kText;
      call_rows[row] = int32_t(r);
      token_ids[row] = segment.tokens[size_t(position)];
      window[row] = segment.is_padding
                        ? WindowKeys{}
                        : window_keys_at(in, model.config.sliding_window, position);
      block_tables[row] = segment.block_table.data();
      for (int64_t back = 0; back < reach; ++back) {
        ngrams.row(r)[back] = compressed_id(model, segment, position - back);
      }
    }
  }
  return {segment_rows, positions, kinds,  without_memory, token_ids,
          call_rows,    ngrams,    window, block_tables};
}

bool BatchRows::narrows_before(int64_t layer) const {
  return std::any_of(segments.begin(), segments.end(), [&](const SegmentRows& in) {
    return in.begin < in.end && !in.goes_into(layer, positions[size_t(in.begin)]);
  });
}

std::span<const int32_t> BatchRows::rows_into(LayerContext& ctx, int64_t layer) const {
  const std::span<int32_t> rows = ctx.list<int32_t>(num_rows());
  size_t count = 0;
  for (const SegmentRows& in : segments) {
    for (int64_t r = in.begin; r < in.end; ++r) {
      if (in.goes_into(layer, positions[size_t(r)])) rows[count++] = int32_t(r);
    }
  }
  return rows.first(count);
}

void BatchRows::keep(std::span<const int32_t> rows) {
  int64_t begin = 0;
  for (SegmentRows& in : segments) {
    const int64_t count = std::count_if(rows.begin() + begin, rows.end(),
                                        [&](int32_t row) { return row < in.end; });
    in.begin = begin;
    in.end = begin += count;
  }
  keep_rows(positions, rows);
  keep_rows(kinds, rows);
  keep_rows(without_memory, rows);
  keep_rows(token_ids, rows);
  keep_rows(call_rows, rows);
  keep_rows(ngrams, rows);
  keep_rows(window, rows);
  keep_rows(block_tables, rows);
}

FreshKeys::FreshKeys(LayerContext& ctx, const KvStore& store, int64_t num_layers, int64_t num_rows)
    : format_(store.key_format(StateKind::kWindowRing)),
      num_rows_(num_rows),
      row_bytes_(key_row_bytes(format_, ctx.config.head_dim)),
      data_(ctx.arena.allocate<std::byte>(num_layers * num_rows * row_bytes_)) {}

void pack_fresh(LayerContext& ctx, FreshKeys& fresh, int64_t layer, std::span<const int32_t> rows,
                Matrix<const float> x) {
  const auto addresses = ctx.list<std::byte*>(x.shape[0]);
  for (size_t i = 0; i < addresses.size(); ++i) addresses[i] = fresh.row(layer, rows[i]);
  ctx.kernels.pack_keys(ctx.kernel_context, x, fresh.format(), addresses);
}

void commit_ring(std::span<const SegmentRows> segments, const StatePlane& plane, int64_t layer,
                 FreshKeys& fresh) {
  for (const SegmentRows& in : segments) {
    if (in.state == nullptr) continue;
    const int64_t end = in.segment->end_position();
    const int64_t begin = std::max(in.segment->first_position, end - plane.num_rows);
    for (int64_t position = begin; position < end; ++position) {
      if (!in.goes_into(layer, position)) continue;
      std::memcpy(in.state + plane.values_offset + position % plane.num_rows * fresh.row_bytes(),
                  fresh.row(layer, in.call_end - (end - position)), size_t(fresh.row_bytes()));
    }
  }
}

}  // namespace millrace
