#include "sys/thread_plan.h"

#include <algorithm>

#include "base/format.h"
#include "sys/affinity.h"
#include "sys/cgroup.h"

namespace millrace {
namespace {

// With more cores than this, one is left to the network's thread. Work is split evenly beforehand,
// so the threads that compute wait for the one whose core is shared; with few cores, one of them
// is worth more than that.
constexpr int kFewCores = 4;

void choose_number(int num_cores, std::optional<double> quota, ThreadWish wish, ThreadPlan& plan) {
  if (wish.num_threads > 0) {
    plan.num_threads = wish.num_threads;
    plan.reason = "as asked for";
    return;
  }
  plan.num_threads = std::max(1, num_cores);
  plan.reason = "one for each core";
  if (quota && *quota < num_cores) {
    plan.num_threads = std::max(1, int(*quota));
    plan.reason = format("the control group's processor time is that of ", *quota);
  }
  if (wish.serves && plan.num_threads > kFewCores) {
    --plan.num_threads;
    plan.reason += ", less one for the network";
  }
}

}  // namespace

ThreadPlan plan_threads(const Topology& topology, std::optional<double> quota, ThreadWish wish) {
  const std::vector<Core>& cores = topology.allowed_cores;
  ThreadPlan plan;
  choose_number(int(cores.size()), quota, wish, plan);
  if (topology.num_allowed_nodes() < 2) return plan;

  std::vector<std::vector<int>> cpus_of(topology.nodes.size());
  for (const Core& core : cores) {
    std::vector<int>& cpus = cpus_of[size_t(core.node)];
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  // Cores are in order of node: every node gets its share of the threads.
  for (int i = 0; i < plan.num_threads; ++i) {
    const int node = cores[size_t(i) * cores.size() / size_t(plan.num_threads)].node;
    if (plan.nodes.empty() || plan.nodes.back() != node) {
      plan.memory_nodes.push_back(topology.nodes[size_t(node)].os_id);
    }
    plan.nodes.push_back(node);
    plan.cpus.push_back(cpus_of[size_t(node)]);
  }
  return plan;
}

ThreadPlan plan_threads(ThreadWish wish) {
  Result<Topology> topology = read_topology();
  if (!topology.has_value()) {
    topology = Topology();
    for (const int cpu : allowed_cpus()) topology.value().allowed_cores.push_back({0, 0, {cpu}});
  }
  return plan_threads(topology.value(), read_cgroup_limits().cpus, wish);
}

}  // namespace millrace
