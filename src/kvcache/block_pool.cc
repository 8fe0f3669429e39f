#include "kvcache/block_pool.h"

#include <limits>

#include "base/check.h"

namespace millrace {

BlockPool::BlockPool(int64_t num_blocks) {
  MR_CHECK_OP(num_blocks, >=, 0);
  MR_CHECK_OP(num_blocks, <=, std::numeric_limits<BlockId>::max());
  references_.resize(size_t(num_blocks));
  free_.reserve(size_t(num_blocks));
}

std::optional<BlockId> BlockPool::allocate() {
  BlockId block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (num_touched_ < num_blocks()) {
    block = BlockId(num_touched_++);
  } else {
    return std::nullopt;
  }
  MR_CHECK_OP(references_[size_t(block)], ==, 0);
  references_[size_t(block)] = 1;
  return block;
}

void BlockPool::retain(BlockId block) {
  MR_CHECK_OP(references_[size_t(block)], >, 0);
  MR_CHECK_OP(references_[size_t(block)], <, std::numeric_limits<int32_t>::max());
  ++references_[size_t(block)];
}

void BlockPool::release(BlockId block) {
  MR_CHECK_OP(references_[size_t(block)], >, 0);
  if (--references_[size_t(block)] == 0) free_.push_back(block);
}

void BlockPool::check_invariants() const {
  MR_CHECK_OP(num_touched_, <=, num_blocks());
  int64_t num_unreferenced = 0;
  for (int64_t block = 0; block < num_blocks(); ++block) {
    const int32_t references = references_[size_t(block)];
    MR_CHECK_OP(references, >=, 0);
    if (block >= num_touched_) MR_CHECK_OP(references, ==, 0);
    if (references == 0 && block < num_touched_) ++num_unreferenced;
  }
  MR_CHECK_OP(num_unreferenced, ==, int64_t(free_.size()));
  for (const BlockId block : free_) {
    MR_CHECK_OP(block, <, num_touched_);
    MR_CHECK_OP(references_[size_t(block)], ==, 0);
  }
}

}  // namespace millrace
