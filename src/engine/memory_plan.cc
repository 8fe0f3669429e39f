#include "engine/memory_plan.h"

#include <algorithm>

#include "base/format.h"

namespace millrace {
namespace {

// Of the machine's memory: what stays for the system, and what the cache gets at least.
constexpr double kReserved = 0.1, kLeast = 0.1;

}  // namespace

Result<MemoryPlan> plan_memory(const KvLayout& layout, const MachineMemory& machine,
                               const MemoryWish& wish, int64_t max_position_embeddings) {
  // Weights that fit are meant to stay in memory; weights that do not are read again and again, and
  // then the cache's share is not theirs to take.
  const double usable = double(machine.limit_bytes) * (1 - kReserved) - double(machine.private_bytes);
  const double left = std::max(usable - double(machine.mapped_bytes),
                               double(machine.limit_bytes) * kLeast);
  const int64_t kv_bytes = wish.kv_bytes.value_or(int64_t(left));
  const int64_t longest = wish.max_model_len.value_or(max_position_embeddings);
  const auto blocks_for = [&](int64_t tokens) {
    return (tokens + layout.block_size - 1) / layout.block_size;
  };

  MemoryPlan plan;
  plan.num_slots = std::clamp<int64_t>(kv_bytes / 2 / std::max<int64_t>(layout.slot_bytes, 1), 1,
                                       wish.max_num_seqs);
  const int64_t for_blocks = kv_bytes - plan.num_slots * layout.slot_bytes;
  const int64_t fitting = std::max<int64_t>(0, for_blocks) / std::max<int64_t>(layout.block_bytes, 1);
  plan.num_blocks =
      wish.num_blocks.value_or(std::min(fitting, plan.num_slots * blocks_for(longest)));
  plan.max_model_len = std::min(longest, plan.num_blocks * layout.block_size);
  if (plan.max_model_len < longest && (wish.max_model_len || plan.max_model_len < 1)) {
    const int64_t wanted = wish.max_model_len.value_or(1);
    return Error{Code::kExhausted,
                 format("cache: a sequence of ", wanted, " tokens needs ",
                        layout.slot_bytes + blocks_for(wanted) * layout.block_bytes,
                        " bytes, found ", kv_bytes, " for the cache (memory ", machine.limit_bytes,
                        ", checkpoint ", machine.mapped_bytes, ")")};
  }
  return plan;
}

}  // namespace millrace
