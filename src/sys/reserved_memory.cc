#include "sys/reserved_memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"

namespace millrace {

Result<ReservedMemory> ReservedMemory::reserve(size_t bytes) {
  if (bytes == 0) return ReservedMemory(nullptr, 0);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Error{Code::kExhausted, format("cannot reserve ", bytes,
                                          " bytes of address space: ", std::strerror(errno))};
  }
  return ReservedMemory(static_cast<std::byte*>(data), bytes);
}

ReservedMemory::ReservedMemory(ReservedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

ReservedMemory& ReservedMemory::operator=(ReservedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void ReservedMemory::prefer_huge_pages() {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_HUGEPAGE);  // a kernel without them refuses
}

Status ReservedMemory::interleave(std::span<const int> nodes) {
  if (data_ == nullptr || nodes.empty()) return {};
  constexpr size_t kMostNodes = 1024, kWordBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMostNodes / kWordBits] = {};
  for (const int node : nodes) {
    MR_CHECK_OP(node, >=, 0);
    MR_CHECK_OP(size_t(node), <, kMostNodes);
    mask[size_t(node) / kWordBits] |= 1ul << (size_t(node) % kWordBits);
  }
  // The kernel takes one bit less than it is told.
  if (::syscall(SYS_mbind, data_, size_, MPOL_INTERLEAVE, mask, kMostNodes + 1, 0) != 0) {
    return Error{Code::kUnavailable,
                 format("cannot spread memory over nodes: ", std::strerror(errno))};
  }
  return {};
}

size_t ReservedMemory::resident_bytes() const {
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> is_resident(size_t{1} << 16);
  size_t count = 0;
  for (size_t begin = 0; begin < size_; begin += page * is_resident.size()) {
    const size_t length = std::min(page * is_resident.size(), size_ - begin);
    if (::mincore(data_ + begin, length, is_resident.data()) != 0) break;
    const auto end = is_resident.begin() + std::ptrdiff_t((length + page - 1) / page);
    count += size_t(std::count_if(is_resident.begin(), end, [](unsigned char c) { return c & 1; }));
  }
  return count * page;
}

}  // namespace millrace
