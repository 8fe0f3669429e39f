#include "kvstore/kv_store.h"

#include <cstring>

#include "base/check.h"
#include "base/format.h"

namespace millrace {
namespace {

// Rows of a sequence lie a block apart, so that each costs a look at the page tables; huge pages
// take about a quarter off the time of such rows (docs/placement.md). A store below this size is
// not worth it.
constexpr int64_t kLarge = int64_t{64} << 20;

}  // namespace

Result<KvStore> KvStore::create(const KvLayout& layout, int64_t num_blocks, int64_t num_slots) {
  constexpr int64_t kMost = int64_t{1} << 46;  // of the address space
  const auto fits = [](int64_t count, int64_t bytes) {
    return count >= 0 && count <= INT32_MAX && (bytes == 0 || count <= kMost / bytes);
  };
  if (!fits(num_blocks, layout.block_bytes) || !fits(num_slots, layout.slot_bytes)) {
    return Error{Code::kInvalidArgument,
                 format("cache: found ", num_blocks, " blocks of ", layout.block_bytes,
                        " bytes and ", num_slots, " slots of ", layout.slot_bytes,
                        " bytes, expected less than 2^46 bytes of each")};
  }
  const int64_t bytes = num_blocks * layout.block_bytes + num_slots * layout.slot_bytes;
  ASSIGN_OR_RETURN(ReservedMemory memory, ReservedMemory::reserve(size_t(bytes)));
  if (bytes >= kLarge) memory.prefer_huge_pages();
  return KvStore(layout, num_blocks, num_slots, std::move(memory));
}

KvStore::KvStore(const KvLayout& layout, int64_t num_blocks, int64_t num_slots,
                 ReservedMemory memory)
    : layout_(layout),
      num_blocks_(num_blocks),
      num_slots_(num_slots),
      memory_(std::move(memory)) {}

KeyFormat KvStore::key_format(StateKind kind) const {
  if (layout_.format == KvFormat::kFp32 || kind == StateKind::kOpenGroup) return KeyFormat::kF32;
  switch (kind) {
    case StateKind::kCompressedRow: return KeyFormat::kNvfp4;
    case StateKind::kIndexKey: return KeyFormat::kMxfp4;
    default: return KeyFormat::kMxfp8;
  }
}

std::byte* KvStore::block(BlockId block) {
  MR_CHECK_OP(block, >=, 0);
  MR_CHECK_OP(block, <, num_blocks_);
  return memory_.bytes().data() + num_slots_ * layout_.slot_bytes + block * layout_.block_bytes;
}

std::byte* KvStore::slot(StateSlot slot) {
  MR_CHECK_OP(slot, >=, 0);
  MR_CHECK_OP(slot, <, num_slots_);
  return memory_.bytes().data() + slot * layout_.slot_bytes;
}

PagedRows KvStore::paged_rows(const StatePlane& plane) const {
  return {.format = key_format(plane.kind),
          .base = memory_.bytes().data() + num_slots_ * layout_.slot_bytes + plane.values_offset,
          .block_bytes = layout_.block_bytes,
          .rows_per_block = plane.num_rows};
}

std::byte* KvStore::row(const StatePlane& plane, std::span<const BlockId> block_table,
                        int64_t row) {
  const size_t index = size_t(row / plane.num_rows);
  MR_CHECK_OP(index, <, block_table.size());
  return block(block_table[index]) + plane.values_offset + row % plane.num_rows * plane.row_bytes();
}

void KvStore::copy_block(BlockCopy copy) {
  std::memcpy(block(copy.to), block(copy.from), size_t(layout_.block_bytes));
}

void KvStore::copy_slot(StateCopy copy) {
  std::memcpy(slot(copy.to), slot(copy.from), size_t(layout_.slot_bytes));
}

}  // namespace millrace
