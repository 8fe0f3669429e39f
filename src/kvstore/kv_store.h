#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kvcache/kv_layout.h"
#include "kvcache/slot_pool.h"
#include "sys/reserved_memory.h"
#include "tensor/key_format.h"

namespace millrace {

// The bytes of the cache: blocks of tokens and slots of sequences, at the places that KvLayout
// gives them. Who owns which block or slot is kvcache's affair.
//
// Reserved once; memory is used when it is first written, so blocks never handed out cost nothing.
// A large store is made of huge pages where the kernel has them, and grows by their size.
// Threading: rows of different blocks or slots may be written by different threads.
class KvStore {
 public:
  static Result<KvStore> create(const KvLayout& layout, int64_t num_blocks, int64_t num_slots);

  const KvLayout& layout() const { return layout_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t num_slots() const { return num_slots_; }

  // How rows of this kind are stored.
  KeyFormat key_format(StateKind kind) const;

  // Rows of a plane of the blocks, for kernels. `plane` is one of layout().block_planes.
  PagedRows paged_rows(const StatePlane& plane) const;
  // Row `row` of a sequence, which lies in the block that its table says.
  std::byte* row(const StatePlane& plane, std::span<const BlockId> block_table, int64_t row);

  // A sequence's memory, in which planes lie at their values_offset.
  std::byte* slot(StateSlot slot);

  void copy_block(BlockCopy copy);
  void copy_slot(StateCopy copy);

  // The pages take turns among these memory nodes, by the system's numbers: any thread reads any
  // sequence. For a store that has not been used yet.
  Status spread_over(std::span<const int> nodes) { return memory_.interleave(nodes); }

  size_t reserved_bytes() const { return memory_.bytes().size(); }
  size_t resident_bytes() const { return memory_.resident_bytes(); }

 private:
  KvStore(const KvLayout& layout, int64_t num_blocks, int64_t num_slots, ReservedMemory memory);
  std::byte* block(BlockId block);

  KvLayout layout_;
  int64_t num_blocks_, num_slots_;
  ReservedMemory memory_;  // slots, then blocks
};

}  // namespace millrace
