#include "sys/read_ahead.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace millrace {
namespace {

constexpr size_t kMaxParts = 1024;  // that process_madvise takes

}  // namespace

// The wrappers of the C library are newer than the calls.
ReadAhead::ReadAhead()
    : page_bytes_(size_t(::sysconf(_SC_PAGESIZE))),
      self_(int(::syscall(SYS_pidfd_open, ::getpid(), 0))),
      at_once_(self_.get() >= 0) {
  parts_.reserve(kMaxParts);
}

void ReadAhead::add(const void* data, size_t bytes) {
  if (bytes == 0) return;
  if (parts_.size() == kMaxParts) start();
  const uintptr_t at = reinterpret_cast<uintptr_t>(data), begin = at / page_bytes_ * page_bytes_;
  parts_.push_back({reinterpret_cast<void*>(begin), at + bytes - begin});
}

void ReadAhead::start() {
  // What is left is asked for one by one: a part that cannot be read ahead holds up no other.
  for (size_t i = at_once_ ? ask_at_once() : 0; i < parts_.size(); ++i) {
    ::madvise(parts_[i].iov_base, parts_[i].iov_len, MADV_WILLNEED);
  }
  parts_.clear();
}

// The number of parts, from the first on, that the kernel took.
size_t ReadAhead::ask_at_once() {
  size_t done = 0;
  while (done < parts_.size()) {
    const long asked = ::syscall(SYS_process_madvise, self_.get(), &parts_[done],
                                 parts_.size() - done, MADV_WILLNEED, 0);
    if (asked < 0) {
      at_once_ = errno != ENOSYS && errno != EPERM && errno != EINVAL;
      break;
    }
    // Fewer bytes than there are: it ended at a part that it could not take.
    const size_t before = done;
    size_t left = size_t(asked);
    while (done < parts_.size() && parts_[done].iov_len <= left) left -= parts_[done++].iov_len;
    if (done == before) break;
  }
  return done;
}

}  // namespace millrace
