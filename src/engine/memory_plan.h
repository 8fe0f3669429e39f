#pragma once

// How much of the machine's memory the cache gets, and what fits into it. Pure arithmetic over
// what was measured.

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
};

struct MachineMemory {
  int64_t limit_bytes = 0;    // RAM, or what the cgroup allows
  int64_t mapped_bytes = 0;   // checkpoint files: page cache, which the system may drop
  int64_t private_bytes = 0;  // what is allocated besides the cache
};

struct MemoryPlan {
  int64_t num_slots = 0;
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
};

// Slots get at most half of the bytes: their number may be lower than max_num_seqs. Refuses, with
// the numbers, an explicit max_model_len that does not fit.
Result<MemoryPlan> plan_memory(const KvLayout& layout, const MachineMemory& machine,
                               const MemoryWish& wish, int64_t max_position_embeddings);

}  // namespace millrace
