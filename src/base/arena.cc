#include "base/arena.h"

#include <algorithm>

namespace millrace {

void* Arena::allocate_bytes(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // Blocks double, so a step soon fits in the first few and the list stays short.
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const size_t last = blocks_.empty() ? kFirstBlock / 2 : blocks_.back().size;
    const size_t size = std::max(2 * last, bytes);
    blocks_.push_back({std::make_unique_for_overwrite<std::byte[]>(size + kAlignment), size});
  }
  std::byte* start = blocks_[block_].data.get();
  start += kAlignment - reinterpret_cast<uintptr_t>(start) % kAlignment;
  void* result = start + used_;
  used_ += bytes;
  return result;
}

size_t Arena::reserved_bytes() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

}  // namespace millrace
