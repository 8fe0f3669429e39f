#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "request/step.h"

namespace millrace {

// Fixed pool of KV blocks with reference counts. Bookkeeping only: it hands out block ids and
// never touches KV bytes. Every operation takes constant time and allocates nothing.
//
// Invariant: every block is in exactly one of {free, in use}; in use means referenced.
// Threading: not thread-safe; owned by the scheduler.
class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);

  // A block with one reference. Blocks given back last are handed out first, and new ones in
  // ascending order: memory behind ids that were never needed stays untouched.
  std::optional<BlockId> allocate();
  void retain(BlockId block);   // one more reference; requires: in use
  void release(BlockId block);  // one less; the last one frees it. Requires: in use

  int64_t num_blocks() const { return int64_t(references_.size()); }
  int64_t num_free() const { return int64_t(free_.size()) + num_blocks() - num_touched_; }
  int64_t num_touched() const { return num_touched_; }  // ids below it have been in use
  int32_t num_references(BlockId block) const { return references_[size_t(block)]; }

  // What it keeps for each block, besides the entry in a sequence's block table.
  static constexpr int64_t kBytesPerBlock = sizeof(int32_t) + sizeof(BlockId);

  // Aborts when a rule is broken. Linear in the number of blocks.
  void check_invariants() const;

 private:
  std::vector<int32_t> references_;  // by block; 0: free
  std::vector<BlockId> free_;        // of those that have been in use
  int64_t num_touched_ = 0;
};

}  // namespace millrace
