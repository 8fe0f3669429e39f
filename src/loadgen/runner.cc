#include "loadgen/runner.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kTick{500};

int64_t read_clock(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

class Runner {
 public:
  Runner(net::EventLoop& loop, Workload& workload, Target& target, const RunOptions& options)
      : loop_(loop), workload_(workload), target_(target), options_(options) {}

  RunOutcome run() {
    run_.num_planned = workload_.num_requests();
    loop_.post([this] {
      start_ns_ = monotonic_ns();
      start_cpu_ns_ = tick_cpu_ns_ = thread_cpu_ns();
      tick();
      send_due();
    });
    loop_.run();
    run_.wall_ns = now();
    run_.client_cpu_ns = thread_cpu_ns() - start_cpu_ns_;
    return std::move(run_);
  }

 private:
  int64_t now() const { return monotonic_ns() - start_ns_; }
  bool may_send(int64_t at_ns) const {
    return !run_.was_interrupted && (!options_.duration_ns || at_ns < *options_.duration_ns);
  }

  void send_due() {
    std::optional<int64_t> next;
    while ((next = workload_.next_ns()) && may_send(*next)) {
      const int64_t now_ns = now();
      if (*next > now_ns) {
        timer_ = loop_.after(std::chrono::nanoseconds(*next - now_ns), [this] { send_due(); });
        return;
      }
      if (!may_send(now_ns)) break;
      const PlannedRequest request = workload_.take(now_ns);
      ++num_running_;
      target_.send(
          request, [this] { return now(); },
          [this, scheduled_ns = request.scheduled_ns,
           ready_ns = request.ready_ns](RequestRecord record) {
            record.scheduled_ns = scheduled_ns;
            record.ready_ns = ready_ns;
            on_done(std::move(record));
          });
    }
    if (num_running_ == 0) loop_.stop();
  }

  void on_done(RequestRecord record) {
    --num_running_;
    num_failed_ += !record.error.empty();
    workload_.on_end(record.id, record.done_ns);
    run_.records.push_back(std::move(record));
    send_due();
  }

  void tick() {
    const int64_t elapsed_ns = now(), cpu_ns = thread_cpu_ns();
    if (elapsed_ns > tick_ns_ && tick_ns_ > 0) {
      run_.peak_client_cpu = std::max(
          run_.peak_client_cpu, double(cpu_ns - tick_cpu_ns_) / double(elapsed_ns - tick_ns_));
    }
    tick_ns_ = elapsed_ns, tick_cpu_ns_ = cpu_ns;
    if (options_.on_progress) {
      options_.on_progress(
          {elapsed_ns, int64_t(run_.records.size()), run_.num_planned, num_failed_, num_running_});
    }
    if (options_.is_interrupted && options_.is_interrupted() && !run_.was_interrupted) {
      run_.was_interrupted = true;
      timer_ = {};
      target_.cancel_all();
      if (num_running_ == 0) loop_.stop();
    }
    tick_timer_ = loop_.after(kTick, [this] { tick(); });
  }

  net::EventLoop& loop_;
  Workload& workload_;
  Target& target_;
  const RunOptions& options_;
  net::EventLoop::Timer timer_, tick_timer_;
  int64_t start_ns_ = 0, start_cpu_ns_ = 0, tick_ns_ = 0, tick_cpu_ns_ = 0;
  int64_t num_running_ = 0, num_failed_ = 0;
  RunOutcome run_;
};

}  // namespace

int64_t thread_cpu_ns() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }
int64_t monotonic_ns() { return read_clock(CLOCK_MONOTONIC); }

RunOutcome run_workload(net::EventLoop& loop, Workload& workload, Target& target,
                        const RunOptions& options) {
  return Runner(loop, workload, target, options).run();
}

}  // namespace millrace
