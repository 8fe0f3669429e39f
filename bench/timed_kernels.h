#pragma once

// A table of kernels that keeps the time of every call, by operation: where a step goes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace millrace {

// A weight that products are made with, by the name it has in cost.h.
struct NamedWeight {
  const void* begin;
  size_t bytes;
  std::string name;
};

struct OperationTime {
  std::string kernel = {};  // as in the table
  std::string weight = {};  // of products, if it has a name
  std::string sizes = {};   // of products: "5120x1536"
  int64_t num_calls = 0;
  int64_t ns = 0;
  int64_t after_ns = 0;  // until the next operation: what the model does between kernels
  double flops = 0;      // of products: two for each weight and row
  double bytes = 0;      // of products: of their weights, each read once a call
  bool is_product() const { return flops > 0; }
  std::string name() const;  // all that it has of the three
};

// The operations of `inner`, timed. One table at a time, used by one thread at a time.
const KernelTable& timed_kernels(const KernelTable& inner, std::vector<NamedWeight> weights);

// What the operations have taken since the last call, the longest first. All that has passed is in
// `ns` or `after_ns` of one of them; what lay before the first is behind an operation "start".
std::vector<OperationTime> take_operation_times();

}  // namespace millrace
