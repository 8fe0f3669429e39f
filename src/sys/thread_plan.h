#pragma once

// How many threads compute, and where.

#include <optional>
#include <string>
#include <vector>

#include "sys/topology.h"

namespace millrace {

struct ThreadWish {
  int num_threads = 0;  // 0: as many as are best
  bool serves = false;  // a thread for the network works beside them
};

struct ThreadPlan {
  int num_threads = 1;
  std::string reason;  // why so many, for people
  // Where a process has cores at several memory nodes, every thread stays at one of them, and the
  // threads of a node have consecutive numbers. Empty: threads run where the system likes.
  std::vector<int> nodes;              // [num_threads], into Topology::nodes
  std::vector<std::vector<int>> cpus;  // [num_threads], all the allowed ones of its node
  std::vector<int> memory_nodes;       // those with threads, by the system's numbers
};

// One thread for each allowed core, since two hardware threads of a core share the units and the
// cache that the kernels live on; no more than `quota` (processors' worth of time) keeps running.
ThreadPlan plan_threads(const Topology& topology, std::optional<double> quota, ThreadWish wish);

// The same for this machine and the calling thread's affinity. Where the machine does not tell what
// it has, one thread for each processor.
ThreadPlan plan_threads(ThreadWish wish);

}  // namespace millrace
