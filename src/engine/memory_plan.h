#pragma once

// How much of the machine's memory experts and the cache of sequences get, and what fits into it.
// Pure arithmetic over what was measured.

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "kvcache/kv_layout.h"

namespace millrace {

struct MemoryWish {
  std::optional<int64_t> kv_bytes;       // for blocks and slots; none: what is left of memory
  std::optional<int64_t> num_blocks;     // whatever the bytes
  std::optional<int64_t> max_model_len;  // none: the longest that fits, up to the checkpoint's
  int64_t max_num_seqs = 0;
  // States that are kept to continue from, each in a slot; none: a tenth of the bytes or
  // kLeastSnapshots, whichever is more, but at most a quarter of the bytes and kMostSnapshots.
  std::optional<int64_t> max_num_snapshots;
};
inline constexpr int64_t kLeastSnapshots = 256, kMostSnapshots = 4096;

struct MachineMemory {
  int64_t limit_bytes = 0;    // RAM, or what the cgroup allows
  int64_t mapped_bytes = 0;   // checkpoint files: page cache, which the system may drop
  int64_t private_bytes = 0;  // what is allocated, or set aside, besides the cache
};

// The routed experts of a checkpoint.
struct ExpertSizes {
  int64_t expert_bytes = 0;  // of all of them
  int64_t dense_bytes = 0;   // of all other weights that each step reads: Engram tables are not
  int64_t num_experts = 0;
  int64_t slot_bytes = 0;    // of one in a cache
  int64_t least_slots = 0;   // that a cache needs
};

// Bytes for a cache of experts; 0: they stay mapped. Without a wish that is so if they fit beside
// the other weights and kv_bytes (none: a tenth of the memory), or if what is left is too little
// for a cache. Never more than all experts take. Refuses, with the numbers, a wish that is too
// small to work or too large to fit.
Result<int64_t> plan_expert_cache(const ExpertSizes& sizes, const MachineMemory& machine,
                                  std::optional<int64_t> wish, std::optional<int64_t> kv_bytes);

struct MemoryPlan {
  int64_t num_slots = 0;  // of sequences
  int64_t num_snapshots = 0;
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
};

// What the cache gets where nobody says otherwise: nine tenths of the memory, less the checkpoint
// and what is allocated; a tenth at least.
int64_t default_kv_bytes(const MachineMemory& machine);

// Slots get at most half of the bytes: their number may be lower than max_num_seqs. Refuses, with
// the numbers, an explicit max_model_len that does not fit.
Result<MemoryPlan> plan_memory(const KvLayout& layout, const MachineMemory& machine,
                               const MemoryWish& wish, int64_t max_position_embeddings);

}  // namespace millrace
