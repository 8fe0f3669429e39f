#pragma once

// What this machine is made of, and which of its processors this process may use.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

struct Core {
  int package = 0, node = 0;  // where it is: indices of packages, and of Topology::nodes
  std::vector<int> cpus;      // its hardware threads, by the system's numbers
};

// Caches of one level and size.
struct CacheKind {
  int level = 0;
  int64_t bytes = 0;
  int count = 0;
  int num_cpus_each = 0;  // hardware threads that share one
};

// Memory that is equally far from some cores.
struct MemoryNode {
  int os_id = 0;
  int64_t bytes = 0;
};

struct Topology {
  // The machine's.
  int num_packages = 0, num_cores = 0, num_cpus = 0;
  std::vector<CacheKind> caches;  // of data, level by level
  std::vector<MemoryNode> nodes;  // at least one
  // Those of which this process may use a hardware thread, with the hardware threads it may use;
  // in order of node, then of number.
  std::vector<Core> allowed_cores;

  int num_allowed_cpus() const;
  int num_allowed_nodes() const;  // that have allowed cores
};

// This machine, and the calling thread's affinity. Takes some 10 ms.
Result<Topology> read_topology();

// A machine as hwloc describes one, "numa:2 l3:1 core:48 pu:2", of which a process may use the
// hardware threads `allowed`; an empty list: all.
Result<Topology> synthetic_topology(const std::string& description,
                                    const std::vector<int>& allowed = {});

}  // namespace millrace
