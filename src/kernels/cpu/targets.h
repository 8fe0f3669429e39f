#pragma once

// Which instruction sets the fast kernels are compiled for. Every source file of this folder
// includes this header first, then compiles itself once per target (hwy/foreach_target.h).
//
// x86: the build's baseline in plain C++ ("EMU128"), SSE4, AVX2, AVX3. Arm: NEON.
//
// No function with external linkage may be shared between targets unless it lives in the target's
// namespace (HWY_NAMESPACE): the linker keeps one copy, and it may be the wide one. So headers of
// the standard library stay outside the target region, its algorithms and containers unused in it.

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_EMU128
#if defined(MILLRACE_FEW_TARGETS)  // sanitizers: the same code once plain and once wide is enough
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
// Highway avoids EMU128 under g++ below 12.3, whose auto-vectoriser miscompiles it (GCC bug
// 106322); the build compiles this folder without the auto-vectoriser.
#define HWY_BROKEN_EMU128 0
#elif defined(__aarch64__)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
