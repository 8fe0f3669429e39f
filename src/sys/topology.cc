#include "sys/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "sys/affinity.h"

namespace millrace {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Hwloc = std::unique_ptr<hwloc_topology, Destroy>;

// Nothing if hwloc has no memory for it.
Hwloc make_hwloc() {
  hwloc_topology_t topology = nullptr;
  return Hwloc(hwloc_topology_init(&topology) == 0 ? topology : nullptr);
}

int count_of(hwloc_topology_t topology, hwloc_obj_type_t type) {
  return std::max(0, hwloc_get_nbobjs_by_type(topology, type));
}

std::vector<CacheKind> caches_of(hwloc_topology_t topology) {
  std::vector<CacheKind> caches;
  for (int type = HWLOC_OBJ_L1CACHE; type <= HWLOC_OBJ_L5CACHE; ++type) {
    const auto cache_type = hwloc_obj_type_t(type);
    const auto first = caches.size();
    for (int i = 0; i < count_of(topology, cache_type); ++i) {
      const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, cache_type, unsigned(i));
      const int64_t bytes = int64_t(cache->attr->cache.size);
      const int num_cpus = hwloc_bitmap_weight(cache->cpuset);
      const auto same = std::find_if(
          caches.begin() + std::ptrdiff_t(first), caches.end(),
          [&](const CacheKind& k) { return k.bytes == bytes && k.num_cpus_each == num_cpus; });
      if (same != caches.end()) {
        ++same->count;
      } else {
        caches.push_back({int(cache->attr->cache.depth), bytes, 1, num_cpus});
      }
    }
  }
  return caches;
}

// The index of the first node that is local to the object.
int node_of(hwloc_topology_t topology, hwloc_obj_t object) {
  for (int i = 0; i < count_of(topology, HWLOC_OBJ_NUMANODE); ++i) {
    const hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, unsigned(i));
    if (hwloc_bitmap_intersects(object->cpuset, node->cpuset)) return i;
  }
  return 0;
}

Core core_of(hwloc_topology_t topology, hwloc_obj_t object) {
  Core core;
  const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
  if (package != nullptr) core.package = int(package->logical_index);
  core.node = node_of(topology, object);
  return core;
}

Topology describe(hwloc_topology_t hwloc, const std::vector<int>& allowed) {
  Topology topology;
  topology.num_packages = std::max(1, count_of(hwloc, HWLOC_OBJ_PACKAGE));
  topology.num_cpus = count_of(hwloc, HWLOC_OBJ_PU);
  topology.num_cores = count_of(hwloc, HWLOC_OBJ_CORE);
  topology.caches = caches_of(hwloc);
  for (int i = 0; i < count_of(hwloc, HWLOC_OBJ_NUMANODE); ++i) {
    const hwloc_obj_t node = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, unsigned(i));
    topology.nodes.push_back({int(node->os_index), int64_t(node->attr->numanode.local_memory)});
  }
  // Where a system does not tell its cores, every hardware thread is taken for one.
  const bool knows_cores = topology.num_cores > 0;
  if (!knows_cores) topology.num_cores = topology.num_cpus;
  std::vector<Core>& cores = topology.allowed_cores;
  for (int i = 0; i < topology.num_cores; ++i) {
    const hwloc_obj_t object =
        hwloc_get_obj_by_type(hwloc, knows_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, unsigned(i));
    Core core = core_of(hwloc, object);
    for (int cpu = hwloc_bitmap_first(object->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(object->cpuset, cpu)) {
      const bool is_allowed =
          allowed.empty() || std::find(allowed.begin(), allowed.end(), cpu) != allowed.end();
      if (is_allowed) core.cpus.push_back(cpu);
    }
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.node, a.cpus.front()) < std::tie(b.node, b.cpus.front());
  });
  return topology;
}

}  // namespace

int Topology::num_allowed_cpus() const {
  int count = 0;
  for (const Core& core : allowed_cores) count += int(core.cpus.size());
  return count;
}

int Topology::num_allowed_nodes() const {
  int count = 0, last = -1;
  for (const Core& core : allowed_cores) count += std::exchange(last, core.node) != core.node;
  return count;
}

Result<Topology> read_topology() {
  const Hwloc hwloc = make_hwloc();
  const Error unreadable{Code::kUnavailable, "topology: hwloc cannot read this machine's"};
  if (hwloc == nullptr) return unreadable;
  // Without hwloc's own look at x86: it visits every processor, to ask what Linux has told already.
  // Refused where hwloc has no such look, as on Arm.
  (void)hwloc_topology_set_components(hwloc.get(), HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  if (hwloc_topology_set_flags(hwloc.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) != 0 ||
      hwloc_topology_load(hwloc.get()) != 0) {
    return unreadable;
  }
  Topology topology = describe(hwloc.get(), allowed_cpus());
  if (topology.allowed_cores.empty() || topology.nodes.empty()) {
    return Error{Code::kUnavailable, "topology: found no processor that this process may use"};
  }
  return topology;
}

Result<Topology> synthetic_topology(const std::string& description,
                                    const std::vector<int>& allowed) {
  const Hwloc hwloc = make_hwloc();
  if (hwloc == nullptr || hwloc_topology_set_synthetic(hwloc.get(), description.c_str()) != 0 ||
      hwloc_topology_load(hwloc.get()) != 0) {
    return Error{Code::kInvalidArgument,
                 format("topology: hwloc cannot make \"", description, "\"")};
  }
  return describe(hwloc.get(), allowed);
}

}  // namespace millrace
