#include <new>

#include "kernels/kernels.h"

namespace millrace {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

KernelContext::KernelContext(ThreadPool& pool)
    : pool_(pool), buffers_(size_t(pool.num_threads())) {}

void KernelContext::Free::operator()(void* p) const { ::operator delete(p, kAlignment); }

void* KernelContext::scratch(int thread_idx, size_t bytes) {
  Buffer& buffer = buffers_[size_t(thread_idx)];
  if (buffer.size < bytes) {
    const size_t size = (bytes + 4095) / 4096 * 4096;
    buffer.data.reset(::operator new(size, kAlignment));
    buffer.size = size;
  }
  return buffer.data.get();
}

}  // namespace millrace
