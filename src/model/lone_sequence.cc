#include "model/lone_sequence.h"

#include <cstring>
#include <numeric>

#include "base/check.h"
#include "model/model.h"

namespace millrace {

Result<LoneSequence> LoneSequence::create(const ModelConfig& config, Numerics numerics,
                                          int64_t max_tokens) {
  const KvLayout layout = kv_layout(config, kv_format_of(numerics));
  const int64_t num_blocks = (max_tokens + layout.block_size - 1) / layout.block_size;
  ASSIGN_OR_RETURN(KvStore store, KvStore::create(layout, num_blocks, 1));
  std::vector<BlockId> block_table(static_cast<size_t>(num_blocks));
  std::iota(block_table.begin(), block_table.end(), 0);
  return LoneSequence(std::move(store), std::move(block_table));
}

LoneSequence::LoneSequence(KvStore store, std::vector<BlockId> block_table)
    : store_(std::make_unique<KvStore>(std::move(store))), block_table_(std::move(block_table)) {}

Result<LoneSequence> LoneSequence::clone() const {
  const int64_t num_blocks = int64_t(block_table_.size());
  ASSIGN_OR_RETURN(KvStore store, KvStore::create(store_->layout(), num_blocks, 1));
  LoneSequence copy(std::move(store), block_table_);
  copy.tokens_ = tokens_;
  const KvLayout& layout = store_->layout();
  std::memcpy(copy.store_->slot(0), store_->slot(0), size_t(layout.slot_bytes));
  for (const StatePlane& plane : layout.block_planes) {
    for (int64_t row = 0; row < num_tokens() / plane.tokens_per_row; ++row) {
      std::memcpy(copy.store_->row(plane, block_table_, row), store_->row(plane, block_table_, row),
                  size_t(plane.row_bytes()));
    }
  }
  return copy;
}

std::vector<std::byte> LoneSequence::state_bytes() const {
  std::vector<std::byte> bytes;
  const auto add = [&](const std::byte* from, int64_t count) {
    bytes.insert(bytes.end(), from, from + count);
  };
  const KvLayout& layout = store_->layout();
  for (const StatePlane& plane : layout.slot_planes) {
    // An open group counts only while its row lacks a token.
    if (plane.kind == StateKind::kOpenGroup && num_tokens() % (plane.num_rows + 1) == 0) continue;
    add(store_->slot(0) + plane.values_offset, plane.num_rows * plane.row_bytes());
  }
  for (const StatePlane& plane : layout.block_planes) {
    for (int64_t row = 0; row < num_tokens() / plane.tokens_per_row; ++row) {
      add(store_->row(plane, block_table_, row), plane.row_bytes());
    }
  }
  return bytes;
}

BatchSegment LoneSequence::append(std::span<const int32_t> token_ids, LogitsFor logits) {
  const int64_t first_position = num_tokens();
  tokens_.insert(tokens_.end(), token_ids.begin(), token_ids.end());
  MR_CHECK_OP(num_tokens(), <=, int64_t(block_table_.size()) * store_->layout().block_size);
  return {.tokens = tokens_,
          .first_position = first_position,
          .block_table = block_table_,
          .slot = slot(),
          .logits = logits};
}

}  // namespace millrace
