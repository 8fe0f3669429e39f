#include "engine/memory_plan.h"

#include <algorithm>

#include "base/format.h"

namespace millrace {
namespace {

// Of the machine's memory: what stays for the system, and what the cache gets at least.
constexpr double kReserved = 0.1, kLeast = 0.1;

int64_t usable_bytes(const MachineMemory& machine) {
  return int64_t(double(machine.limit_bytes) * (1 - kReserved)) - machine.private_bytes;
}
int64_t least_kv_bytes(const MachineMemory& machine) {
  return int64_t(double(machine.limit_bytes) * kLeast);
}

}  // namespace

int64_t default_kv_bytes(const MachineMemory& machine) {
  // Weights that fit are meant to stay in memory; weights that do not are read again and again, and
  // then the cache's share is not theirs to take.
  return std::max(usable_bytes(machine) - machine.mapped_bytes, least_kv_bytes(machine));
}

Result<int64_t> plan_expert_cache(const ExpertSizes& sizes, const MachineMemory& machine,
                                  std::optional<int64_t> wish, std::optional<int64_t> kv_bytes) {
  const int64_t least = sizes.least_slots * sizes.slot_bytes;
  const int64_t usable = usable_bytes(machine);
  if (!wish) {
    const int64_t left =
        usable - sizes.dense_bytes - kv_bytes.value_or(least_kv_bytes(machine));
    return sizes.expert_bytes <= left || left < least ? 0 : left;
  }
  if (*wish == 0) return 0;
  if (*wish < least) {
    return Error{Code::kInvalidArgument,
                 format("expert cache: found ", *wish, " bytes, expected 0 or at least ", least,
                        ", ", sizes.least_slots, " experts of ", sizes.slot_bytes,
                        ": those of a token in one layer, and one that is read")};
  }
  // More than all experts need is not taken.
  const int64_t most = sizes.num_experts * sizes.slot_bytes;
  if (std::min(*wish, most) > usable) {
    return Error{Code::kExhausted,
                 format("expert cache: found ", *wish, " bytes, expected at most ",
                        std::max<int64_t>(usable, 0), " (memory ", machine.limit_bytes,
                        ", of which a tenth stays for the system; in use ", machine.private_bytes,
                        ")")};
  }
  return std::min(*wish, most);
}

Result<MemoryPlan> plan_memory(const KvLayout& layout, const MachineMemory& machine,
                               const MemoryWish& wish, int64_t max_position_embeddings) {
  const int64_t kv_bytes = wish.kv_bytes.value_or(default_kv_bytes(machine));
  const int64_t longest = wish.max_model_len.value_or(max_position_embeddings);
  const auto blocks_for = [&](int64_t tokens) {
    return (tokens + layout.block_size - 1) / layout.block_size;
  };

  MemoryPlan plan;
  const auto slots_in = [&](int64_t bytes) {
    return bytes / std::max<int64_t>(layout.slot_bytes, 1);
  };
  plan.num_slots = std::clamp<int64_t>(slots_in(kv_bytes / 2), 1, wish.max_num_seqs);
  plan.num_snapshots = wish.max_num_snapshots.value_or(
      std::min({std::max(slots_in(kv_bytes / 10), kLeastSnapshots), slots_in(kv_bytes / 4),
                kMostSnapshots}));
  const int64_t for_blocks =
      kv_bytes - (plan.num_slots + plan.num_snapshots) * layout.slot_bytes;
  const int64_t fitting =
      std::max<int64_t>(0, for_blocks) / std::max<int64_t>(layout.block_bytes, 1);
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
