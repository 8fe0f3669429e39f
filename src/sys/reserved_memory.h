#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"

namespace millrace {

// Address space whose pages become memory, filled with zeros, when they are first touched. Given
// back when the object ends.
class ReservedMemory {
 public:
  static Result<ReservedMemory> reserve(size_t bytes);
  ReservedMemory(ReservedMemory&& other) noexcept;
  ReservedMemory& operator=(ReservedMemory&& other) noexcept;
  ~ReservedMemory();

  // Pages that are touched from now on are huge ones where the kernel has them, and become memory
  // as a whole.
  void prefer_huge_pages();
  // Pages that are touched from now on take turns among these memory nodes, by the system's
  // numbers. Refused where a sandbox or the kernel refuses it.
  Status interleave(std::span<const int> nodes);

  std::span<std::byte> bytes() const { return {data_, size_}; }
  size_t resident_bytes() const;  // of pages that have been touched

 private:
  ReservedMemory(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace millrace
