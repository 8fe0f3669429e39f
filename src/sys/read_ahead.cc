#include "sys/read_ahead.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "sys/unique_fd.h"

namespace millrace {
namespace {

constexpr size_t kMaxParts = 1024;  // that process_madvise takes

}  // namespace

ReadAhead::ReadAhead() : page_bytes_(size_t(::sysconf(_SC_PAGESIZE))) { parts_.reserve(kMaxParts); }

void ReadAhead::add(const void* data, size_t bytes) {
  if (bytes == 0) return;
  if (parts_.size() == kMaxParts) start();
  const uintptr_t at = reinterpret_cast<uintptr_t>(data), begin = at / page_bytes_ * page_bytes_;
  parts_.push_back({reinterpret_cast<void*>(begin), at + bytes - begin});
}

void ReadAhead::start() {
  if (parts_.empty()) return;
  if (at_once_) {
    // The wrapper of the C library is newer than the call.
    const UniqueFd self(int(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    at_once_ = self.get() >= 0 && ::syscall(SYS_process_madvise, self.get(), parts_.data(),
                                            parts_.size(), MADV_WILLNEED, 0) >= 0;
  }
  if (!at_once_) ask_one_by_one();
  parts_.clear();
}

void ReadAhead::ask_one_by_one() {
  for (const iovec& part : parts_) ::madvise(part.iov_base, part.iov_len, MADV_WILLNEED);
}

}  // namespace millrace
