#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace millrace {

// How many tokens each routed expert of the backbone has been given, in calls that failed or were
// abandoned, too.
//
// Threading: one thread adds, any thread reads.
class ExpertCounts {
 public:
  ExpertCounts(int64_t num_layers, int64_t num_experts)
      : num_layers_(num_layers),
        num_experts_(num_experts),
        counts_(size_t(num_layers * num_experts)) {}

  void add(int64_t layer, int32_t expert, int64_t num_tokens) {
    MR_DCHECK(layer < num_layers_);
    MR_DCHECK(expert < num_experts_);
    std::atomic<int64_t>& count = counts_[size_t(layer * num_experts_ + expert)];
    // With one writer no addition is lost, and none costs a locked instruction.
    count.store(count.load(std::memory_order_relaxed) + num_tokens, std::memory_order_relaxed);
  }

  int64_t num_layers() const { return num_layers_; }
  int64_t num_experts() const { return num_experts_; }
  std::vector<int64_t> read() const {  // [num_layers, num_experts]
    std::vector<int64_t> counts;
    counts.reserve(counts_.size());
    for (const std::atomic<int64_t>& count : counts_) {
      counts.push_back(count.load(std::memory_order_relaxed));
    }
    return counts;
  }

 private:
  int64_t num_layers_, num_experts_;
  std::vector<std::atomic<int64_t>> counts_;
};

}  // namespace millrace
