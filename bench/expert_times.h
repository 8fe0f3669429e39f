#pragma once

// What the products of a layer's experts take, by the number of rows that each expert has,
// measured with the weights of a loaded model: the part of a step that depends on how many experts
// there are.

#include <cstdint>
#include <vector>

#include "engine/loaded_model.h"

namespace millrace {

// Of one expert, nanoseconds of each try.
struct ExpertTries {
  int64_t rows = 0;         // of each expert
  int64_t num_experts = 0;  // that are multiplied in one call
  std::vector<double> ns;
};

// Rows from 1 to `max_rows`, in steps of at most a half. Weights come from memory: calls take turns
// among the layers.
Result<std::vector<ExpertTries>> measure_experts(LoadedModel& model, int64_t max_rows,
                                                 int64_t tries);

// A router of `num_experts` for `rows` rows: product and choice, nanoseconds of each try. Its
// weights are as many rows of the head.
std::vector<double> measure_router(LoadedModel& model, int64_t num_experts, int64_t rows,
                                   int64_t tries);

}  // namespace millrace
