#pragma once

// What this machine can do at most, measured: the denominators of every benchmark.

#include <cstddef>
#include <span>

#include "sys/thread_pool.h"

namespace millrace {

// Each uses all threads of the pool and returns the best of some tries of about a millisecond, in
// units of 1e9 per second.
constexpr int kManyTries = 5;

double measure_read(ThreadPool& pool, std::span<const std::byte> memory,  // bytes, each once
                    int tries = kManyTries);

// fp32 operations of fused multiply-adds (two each); bytes and 16-bit numbers multiplied and
// added in pairs (two operations per product).
double measure_fma(ThreadPool& pool, int tries = kManyTries);
double measure_byte_products(ThreadPool& pool, int tries = kManyTries);
double measure_short_products(ThreadPool& pool, int tries = kManyTries);

}  // namespace millrace
