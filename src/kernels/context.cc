#include <cstdlib>

#include "kernels/kernels.h"

namespace millrace {

KernelContext::KernelContext(ThreadPool& pool)
    : pool_(pool), buffers_(size_t(pool.num_threads())) {}

void KernelContext::Free::operator()(void* p) const { std::free(p); }

void* KernelContext::scratch(int thread_idx, size_t bytes) {
  Buffer& buffer = buffers_[size_t(thread_idx)];
  if (buffer.size < bytes) {
    const size_t size = (bytes + 4095) / 4096 * 4096;
    buffer.data.reset(std::aligned_alloc(64, size));
    MR_CHECK(buffer.data != nullptr);
    buffer.size = size;
  }
  return buffer.data.get();
}

}  // namespace millrace
