#include "sys/fp_environment.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace millrace {
namespace {

#if defined(__x86_64__)
constexpr uint64_t kContract = 0x1f80;      // all exceptions masked, nearest, no FTZ, no DAZ
constexpr uint64_t kControlBits = 0xffc0;   // without the sticky flags
uint64_t read_control() { return _mm_getcsr(); }
void write_control(uint64_t value) { _mm_setcsr(uint32_t(value)); }
#elif defined(__aarch64__)
constexpr uint64_t kContract = 0;
constexpr uint64_t kControlBits = 0x07ff9f07;
uint64_t read_control() {
  uint64_t value;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void write_control(uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }
#else
#error "unknown floating-point control register"
#endif

}  // namespace

ScopedFpEnvironment::ScopedFpEnvironment() : saved_(read_control()) { write_control(kContract); }
ScopedFpEnvironment::~ScopedFpEnvironment() { write_control(saved_); }
bool ScopedFpEnvironment::is_active() { return ((read_control() ^ kContract) & kControlBits) == 0; }

}  // namespace millrace
