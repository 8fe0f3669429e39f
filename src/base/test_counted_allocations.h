#pragma once

// Replaces operator new and delete of a test's program by ones that count, those of every thread.
// For one source file of a program.
//
// Not inline: a compiler that sees through `delete` but not through `new` takes them for a
// mismatched pair. AddressSanitizer brings its own of every form that is not defined here, so forms
// that meet each other's memory are defined together.

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace millrace {
namespace {

std::atomic<int64_t> num_allocations = 0;  // so far
std::atomic<int64_t> num_live_bytes = 0;

void* allocate_counted(size_t size, size_t alignment = 0) {
  void* p = alignment == 0
                ? std::malloc(size)
                : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  ++num_allocations;
  if (p) num_live_bytes += int64_t(malloc_usable_size(p));
  return p;
}

void release_counted(void* p) {
  if (p) num_live_bytes -= int64_t(malloc_usable_size(p));
  std::free(p);
}

}  // namespace
}  // namespace millrace

[[gnu::noinline]] void* operator new(size_t size) {
  if (void* p = millrace::allocate_counted(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return millrace::allocate_counted(size);
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  if (void* p = millrace::allocate_counted(size, size_t(alignment))) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { millrace::release_counted(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { millrace::release_counted(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  millrace::release_counted(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept {
  millrace::release_counted(p);
}
