#include "sys/reserved_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/format.h"

namespace millrace {

Result<ReservedMemory> ReservedMemory::reserve(size_t bytes) {
  if (bytes == 0) return ReservedMemory(nullptr, 0);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Error{Code::kExhausted, format("cannot reserve ", bytes, " bytes of address space: ",
                                          std::strerror(errno))};
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
