#include "sys/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "sys/affinity.h"
#include "sys/fp_environment.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace {
namespace {

// About 20 us: longer than the gap between two regions of a step, short enough to be kind to
// other processes when the engine is idle. A team larger than the machine must not spin at all:
// the thread it waits for needs the processor.
constexpr int kSpins = 4000;

// A team is starved when the owner waits for it longer than the whole region would take alone, and
// longer than waking a sleeping thread takes. Then that many regions are run alone, up to the most
// if it stays so.
constexpr int64_t kStarvedNs = 300'000;
constexpr int64_t kAloneFirst = 64, kAloneMost = 4096;

void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits until `value` is no longer `old`; returns what it became.
template <class T>
T wait_for_change(std::atomic<T>& value, T old, int spins) {
  for (int spin = 0; spin < spins; ++spin) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    spin_pause();
  }
  for (;;) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    value.wait(old, std::memory_order_acquire);
  }
}

void end_workers(std::vector<std::thread>& workers, bool& stop, std::atomic<uint32_t>& generation) {
  stop = true;
  generation.fetch_add(1, std::memory_order_release);
  generation.notify_all();
  for (std::thread& t : workers) t.join();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<std::vector<int>> cpus)
    : alone_next_(kAloneFirst),
      spins_(num_threads <= num_usable_cpus() ? kSpins : 0),
      cpus_(std::move(cpus)) {
  if (!cpus_.empty()) MR_CHECK_OP(cpus_.size(), ==, size_t(num_threads));
  MR_CHECK_OP(num_threads, >=, 1);
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error& error) {  // the machine's limit
    end_workers(workers_, stop_, generation_);
    throw std::system_error(error.code(), "cannot create thread");
  }
}

ThreadPool::~ThreadPool() { end_workers(workers_, stop_, generation_); }

int64_t ThreadPool::now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void ThreadPool::run_region(Region region, void* fn) {
  const int64_t begin_ns = now_ns();
  if (workers_.empty()) {
    region(fn, 0);
  } else if (alone_left_ > 0) {
    --alone_left_;
    for (int i = 0; i < num_threads(); ++i) region(fn, i);
  } else if (run_with_team(region, fn)) {
    alone_next_ = kAloneFirst;
  } else {
    alone_left_ = std::exchange(alone_next_, std::min(2 * alone_next_, kAloneMost));
  }
  region_ns_ += now_ns() - begin_ns;
}

// False if the team was starved.
bool ThreadPool::run_with_team(Region region, void* fn) {
  const int64_t begin_ns = now_ns();
  region_ = region;
  fn_ = fn;
  pending_.store(int32_t(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  region(fn, 0);
  const int64_t own_end_ns = now_ns();
  for (int32_t left = pending_.load(std::memory_order_acquire); left != 0;) {
    left = wait_for_change(pending_, left, spins_);
  }
  const int64_t own_ns = own_end_ns - begin_ns, waited_ns = now_ns() - own_end_ns;
  return waited_ns < kStarvedNs || waited_ns < num_threads() * own_ns;
}

void ThreadPool::bind_owner() const {
  if (!cpus_.empty()) bind_thread(cpus_.front());
}

void ThreadPool::worker(int thread_idx) {
  const ScopedFpEnvironment fp;
  if (!cpus_.empty()) bind_thread(cpus_[size_t(thread_idx)]);
  uint32_t seen = 0;
  for (;;) {
    seen = wait_for_change(generation_, seen, spins_);
    if (stop_) return;
    region_(fn_, thread_idx);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace millrace
