#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace millrace {

// A fixed team of threads that runs one region at a time: every member, the caller included,
// calls the same function with its own index, and the region ends when all have returned.
// Workers spin briefly between regions, then sleep in the kernel.
//
// The split of work is static, so which thread computes an element never changes its bits. Where
// other processes hold the processors, the owner waits for its team longer than the work would
// take: it notices, and for a while does the work of all members itself, one after the other.
//
// Threading: one owner thread calls run(); regions do not nest. Workers run in the contract's
// floating-point state (sys/fp_environment.h).
class ThreadPool {
 public:
  // Requires: num_threads >= 1. One of them is the caller's. Throws std::system_error where the
  // machine has no more threads. Thread i runs on the processors cpus[i]; without any: on all.
  explicit ThreadPool(int num_threads, std::vector<std::vector<int>> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return int(workers_.size()) + 1; }

  // Keeps the calling thread, the owner, on the processors of thread 0, for good. For an owner that
  // does nothing else.
  void bind_owner() const;

  // Time the owner has spent in regions, alone in small ones included.
  int64_t region_ns() const { return region_ns_; }

  // Calls fn(thread_idx) on every member.
  template <class Fn>
  void run(Fn&& fn) {
    using Function = std::remove_reference_t<Fn>;
    run_region([](void* f, int thread_idx) { (*static_cast<Function*>(f))(thread_idx); }, &fn);
  }

  // Calls fn(begin, end, thread_idx) on disjoint ranges that cover [0, count). Range bounds are
  // multiples of `grain` (but for the end); with a single range the caller runs it alone.
  template <class Fn>
  void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
    const int64_t num_grains = (count + grain - 1) / grain;
    const int64_t members = num_threads() < num_grains ? num_threads() : num_grains;
    if (members <= 1) {
      const int64_t begin_ns = now_ns();
      if (count > 0) fn(int64_t{0}, count, 0);
      region_ns_ += now_ns() - begin_ns;
      return;
    }
    run([&](int thread_idx) {
      const int64_t begin = num_grains * thread_idx / members * grain;
      const int64_t end = num_grains * (thread_idx + 1) / members * grain;
      if (thread_idx < members) fn(begin, end < count ? end : count, thread_idx);
    });
  }

 private:
  using Region = void (*)(void* fn, int thread_idx);
  void run_region(Region region, void* fn);
  bool run_with_team(Region region, void* fn);
  static int64_t now_ns();
  void worker(int thread_idx);

  // The owner publishes a region by raising `generation_`; each worker lowers `pending_`.
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int32_t> pending_{0};
  alignas(64) Region region_ = nullptr;
  void* fn_ = nullptr;
  bool stop_ = false;
  // The owner's own.
  int64_t region_ns_ = 0;
  int64_t alone_left_ = 0;    // regions to run without the team
  int64_t alone_next_ = 0;    // how many after the next one in which the team is starved
  const int spins_;  // polls before a waiting thread sleeps
  const std::vector<std::vector<int>> cpus_;
  std::vector<std::thread> workers_;
};

}  // namespace millrace
