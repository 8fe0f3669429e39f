#include "bench/sequences.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"

namespace millrace {
namespace {

// Random bytes, each with the bits of `mask` and then `base` added.
void fill_bytes(std::byte* bytes, int64_t count, uint8_t mask, uint8_t base, uint64_t& state) {
  constexpr uint64_t kEveryByte = 0x0101010101010101;
  for (int64_t i = 0; i < count; i += 8) {
    const uint64_t eight = (mix64(state++) & kEveryByte * mask) + kEveryByte * base;
    std::memcpy(bytes + i, &eight, size_t(std::min<int64_t>(8, count - i)));
  }
}

void fill_row(KeyFormat format, const StatePlane& plane, std::byte* row, uint64_t& state) {
  std::byte* scales = row + plane.value_bytes;
  switch (format) {
    case KeyFormat::kF32:  // 0.5 to 1
      for (int64_t i = 0; i < plane.value_bytes; i += int64_t(sizeof(float))) {
        const float value = 0.5f + float(mix64(state++) >> 40) * 0x1p-25f;
        std::memcpy(row + i, &value, sizeof value);
      }
      break;
    case KeyFormat::kMxfp8:  // magnitudes of 2^-3 to 1.9, both signs
      fill_bytes(row, plane.value_bytes, 0x9f, 0x20, state);
      fill_bytes(scales, plane.scale_bytes, 0, 127, state);
      break;
    case KeyFormat::kNvfp4:  // any codes, scales of 1/4 to 1/2
      fill_bytes(row, plane.value_bytes, 0xff, 0, state);
      fill_bytes(scales, plane.scale_bytes, 7, 0x28, state);
      break;
    case KeyFormat::kMxfp4:  // the same
      fill_bytes(row, plane.value_bytes, 0xff, 0, state);
      fill_bytes(scales, plane.scale_bytes, 1, 125, state);
      break;
  }
}

}  // namespace

Result<Sequences> Sequences::create(const ModelConfig& config, KvFormat format, int64_t count,
                                    int64_t depth, int64_t max_new_rows,
                                    int64_t max_history_bytes) {
  Sequences sequences(config.vocab_size);
  const KvLayout layout = kv_layout(config, format);
  // Whole blocks of history may be shared; the one that is begun belongs to its sequence.
  const int64_t shared = depth / layout.block_size, begun = depth % layout.block_size;
  const int64_t own = (begun + max_new_rows + layout.block_size - 1) / layout.block_size;
  const int64_t history_bytes = std::max<int64_t>(1, shared * layout.block_bytes);
  const int64_t histories = std::clamp<int64_t>(max_history_bytes / history_bytes, 1, count);
  const int64_t num_blocks = histories * shared + count * own;
  ASSIGN_OR_RETURN(KvStore store, KvStore::create(layout, num_blocks, count));
  sequences.store_ = std::make_unique<KvStore>(std::move(store));
  sequences.num_histories_ = histories;

  KvStore& kv = *sequences.store_;
  uint64_t& state = sequences.state_;
  for (BlockId block = 0; block < num_blocks; ++block) {
    for (const StatePlane& plane : layout.block_planes) {
      for (int64_t row = 0; row < plane.num_rows; ++row) {
        fill_row(kv.key_format(plane.kind), plane, kv.row(plane, {&block, 1}, row), state);
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    for (const StatePlane& plane : layout.slot_planes) {
      for (int64_t row = 0; row < plane.num_rows; ++row) {
        std::byte* at = kv.slot(StateSlot(i)) + plane.values_offset + row * plane.row_bytes();
        fill_row(kv.key_format(plane.kind), plane, at, state);
      }
    }
    std::vector<BlockId>& table = sequences.tables_.emplace_back();
    for (int64_t b = 0; b < shared; ++b) table.push_back(BlockId(i % histories * shared + b));
    for (int64_t b = 0; b < own; ++b) {
      table.push_back(BlockId(histories * shared + i * own + b));
    }
  }
  sequences.tokens_.resize(size_t(count));
  sequences.grow(depth);
  return sequences;
}

std::vector<BatchSegment> Sequences::grow(int64_t rows) {
  std::vector<BatchSegment> segments;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const int64_t first = int64_t(tokens_[i].size());
    for (int64_t r = 0; r < rows; ++r) {
      tokens_[i].push_back(int32_t(mix64(state_++) % uint64_t(vocab_size_)));
    }
    segments.push_back({.tokens = tokens_[i],
                        .first_position = first,
                        .block_table = tables_[i],
                        .slot = StateSlot(i)});
  }
  return segments;
}

}  // namespace millrace
