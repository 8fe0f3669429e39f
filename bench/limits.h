#pragma once

// What this machine can do at most, measured: the denominators of every benchmark.

#include <cstddef>
#include <span>

#include "sys/thread_pool.h"

namespace millrace {

// Each uses all threads of the pool and returns the best of a few short tries, in units of 1e9
// per second.

double measure_read(ThreadPool& pool, std::span<const std::byte> memory);  // bytes, each once

// fp32 operations of fused multiply-adds (two each); bytes and 16-bit numbers multiplied and
// added in pairs (two operations per product).
double measure_fma(ThreadPool& pool);
double measure_byte_products(ThreadPool& pool);
double measure_short_products(ThreadPool& pool);

}  // namespace millrace
