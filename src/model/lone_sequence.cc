#include "model/lone_sequence.h"

#include <numeric>

#include "base/check.h"

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
