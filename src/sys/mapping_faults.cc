#include "sys/mapping_faults.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace millrace {
namespace {

// A signal handler can reach nothing but globals, and must not wait for a lock. A slot belongs to
// whoever moved `begin` from kFree; readers look at the rest when it is an address.
constexpr uintptr_t kFree = 0, kTaken = 1;
struct Slot {
  std::atomic<uintptr_t> begin{kFree};
  uintptr_t end = 0;
  char name[256] = {};
};
Slot slots[256];

const char* mapped_file_at(uintptr_t address) {
  for (const Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin > kTaken && address >= begin && address < slot.end) return slot.name;
  }
  return "memory that is no mapped file";
}

// Only write() and what computes: nothing else may be called here.
void on_bus_error(int, siginfo_t* info, void*) {
  for (const char* text : {"millrace: ", mapped_file_at(uintptr_t(info->si_addr)),
                           ": cannot be read any more; did the file become shorter, or its disk "
                           "fail?\n"}) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  }
  ::raise(SIGBUS);  // waits until this returns, and then finds the default action
}

}  // namespace

void report_mapping_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  ::sigaction(SIGBUS, &action, nullptr);
}

void note_mapping(const std::string& path, const void* data, size_t size) {
  for (Slot& slot : slots) {
    uintptr_t expected = kFree;
    if (!slot.begin.compare_exchange_strong(expected, kTaken)) continue;
    const size_t length = std::min(path.size(), sizeof slot.name - 1);
    // What a terminal would obey is not shown to it.
    std::transform(path.begin(), path.begin() + ptrdiff_t(length), slot.name,
                   [](char c) { return uint8_t(c) < 0x20 || c == 0x7f ? '?' : c; });
    slot.name[length] = '\0';
    slot.end = uintptr_t(data) + size;
    slot.begin.store(uintptr_t(data), std::memory_order_release);
    return;
  }
}

void forget_mapping(const void* data) {
  for (Slot& slot : slots) {
    uintptr_t expected = uintptr_t(data);
    if (slot.begin.compare_exchange_strong(expected, kFree)) return;
  }
}

}  // namespace millrace
