#include "bench/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/limits.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

// Each returns something that depends on all its work, so that the compiler cannot drop it.

float read_all(const uint8_t* p, size_t bytes) {
  const WordTag d;
  WordVector a = hn::Zero(d), b = a, c = a, e = a;
  const size_t step = 4 * hn::Lanes(ByteTag());
  for (size_t i = 0; i + step <= bytes; i += step) {
    const auto load = [&](size_t j) HWY_ATTR {
      return hn::BitCast(d, hn::LoadU(ByteTag(), p + i + j * hn::Lanes(ByteTag())));
    };
    a = hn::Or(a, load(0));
    b = hn::Or(b, load(1));
    c = hn::Or(c, load(2));
    e = hn::Or(e, load(3));
  }
  return float(hn::GetLane(hn::Or(hn::Or(a, b), hn::Or(c, e))));
}

// `rounds` rounds of ten operations that do not wait for each other.
template <class V, class Operation>
HWY_INLINE V repeat(V start, int64_t rounds, const Operation& operation) {
  V chains[10];
  for (V& v : chains) v = start = operation(start);  // all different
  for (int64_t n = 0; n < rounds; ++n) {
    HWY_UNROLL(10)
    for (int i = 0; i < 10; ++i) chains[i] = operation(chains[i]);
  }
  V sum = chains[0];
  HWY_UNROLL(9)
  for (int i = 1; i < 10; ++i) sum = hn::Add(sum, chains[i]);
  return sum;
}

float fma_rounds(int64_t rounds) {
  const FloatTag d;
  const FloatVector half = hn::Set(d, 0.5f), one = hn::Set(d, 1);
  return hn::GetLane(repeat(
      one, rounds, [&](FloatVector v) HWY_ATTR { return fused_multiply_add(v, half, one); }));
}

float byte_rounds(int64_t rounds) {
  const ByteTag d;
  const ByteVector digits = hn::Set(d, 3);
  const ShortVector start = hn::Set(ShortTag(), 77);
  return float(hn::GetLane(repeat(start, rounds, [&](ShortVector v) HWY_ATTR {
    return multiply_byte_pairs(hn::BitCast(d, v), digits);
  })));
}

float short_rounds(int64_t rounds) {
  const IntVector start = hn::Set(IntTag(), 77);
  return float(hn::GetLane(repeat(start, rounds, [&](IntVector v) HWY_ATTR {
    return multiply_short_pairs(hn::BitCast(ShortTag(), v), 5);
  })));
}

}  // namespace

float call_read(const uint8_t* p, size_t bytes) { return read_all(p, bytes); }
float call_fma(int64_t rounds) { return fma_rounds(rounds); }
float call_bytes(int64_t rounds) { return byte_rounds(rounds); }
float call_shorts(int64_t rounds) { return short_rounds(rounds); }
int call_lanes() { return kLanes; }

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {
namespace {

HWY_EXPORT(call_read);
HWY_EXPORT(call_fma);
HWY_EXPORT(call_bytes);
HWY_EXPORT(call_shorts);
HWY_EXPORT(call_lanes);

std::atomic<float> sink;

// Best of `tries`: amount / time.
template <class Work>
double best_rate(ThreadPool& pool, double amount, int tries, const Work& work) {
  double best = 0;
  for (int i = 0; i < tries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int thread_idx) { sink = work(thread_idx); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, amount / seconds.count() / 1e9);
  }
  return best;
}

constexpr int64_t kRounds = 400'000;  // about a millisecond

template <class Work>
double products_rate(ThreadPool& pool, int tries, int lanes_per_float, const Work& work) {
  const double products =
      double(kRounds) * 10 * HWY_DYNAMIC_DISPATCH(call_lanes)() * lanes_per_float;
  return best_rate(pool, 2 * products * pool.num_threads(), tries,
                   [&](int) { return work(kRounds); });
}

}  // namespace

double measure_read(ThreadPool& pool, std::span<const std::byte> memory, int tries) {
  const size_t part = memory.size() / size_t(pool.num_threads()) / 4096 * 4096;
  return best_rate(pool, double(part) * pool.num_threads(), tries, [&](int thread_idx) {
    const std::byte* begin = memory.data() + size_t(thread_idx) * part;
    return HWY_DYNAMIC_DISPATCH(call_read)(reinterpret_cast<const uint8_t*>(begin), part);
  });
}

double measure_fma(ThreadPool& pool, int tries) {
  return products_rate(pool, tries, 1, [](int64_t n) { return HWY_DYNAMIC_DISPATCH(call_fma)(n); });
}

double measure_byte_products(ThreadPool& pool, int tries) {
  return products_rate(pool, tries, 4,
                       [](int64_t n) { return HWY_DYNAMIC_DISPATCH(call_bytes)(n); });
}

double measure_short_products(ThreadPool& pool, int tries) {
  return products_rate(pool, tries, 2,
                       [](int64_t n) { return HWY_DYNAMIC_DISPATCH(call_shorts)(n); });
}

}  // namespace millrace
#endif
