#include "sys/affinity.h"

#include <sched.h>

#include <algorithm>
#include <memory>

#include "sys/cgroup.h"

namespace millrace {
namespace {

constexpr int kMostCpus = 1 << 16;

using CpuSet = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

CpuSet make_set(int num_cpus) {
  CpuSet set(CPU_ALLOC(size_t(num_cpus)), [](cpu_set_t* s) { CPU_FREE(s); });
  CPU_ZERO_S(CPU_ALLOC_SIZE(num_cpus), set.get());
  return set;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // The kernel refuses a set that is smaller than its own.
  for (int num_cpus = CPU_SETSIZE; num_cpus <= kMostCpus && cpus.empty(); num_cpus *= 4) {
    const CpuSet set = make_set(num_cpus);
    const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    if (sched_getaffinity(0, bytes, set.get()) != 0) continue;
    for (int cpu = 0; cpu < num_cpus; ++cpu) {
      if (CPU_ISSET_S(size_t(cpu), bytes, set.get())) cpus.push_back(cpu);
    }
  }
  return cpus;
}

void bind_thread(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  const int num_cpus = *std::max_element(cpus.begin(), cpus.end()) + 1;
  const CpuSet set = make_set(num_cpus);
  for (const int cpu : cpus) CPU_SET_S(size_t(cpu), CPU_ALLOC_SIZE(num_cpus), set.get());
  sched_setaffinity(0, CPU_ALLOC_SIZE(num_cpus), set.get());
}

int num_usable_cpus() {
  const double quota = read_cgroup_limits().cpus.value_or(kMostCpus);
  return std::clamp(int(allowed_cpus().size()), 1,
                    std::max(1, int(std::min<double>(quota, kMostCpus))));
}

}  // namespace millrace
