#pragma once

#include <cstdint>
#include <span>

#include "model_config/tensor_list.h"

namespace millrace {

// The bytes [offset, offset + bytes.size()) of a tensor of a random checkpoint: a function of
// seed, name and place alone, so it makes no difference in which pieces a tensor is asked for.
//
// Values are bell-shaped. Their spread follows from the tensor's role and inputs such that
// activations stay of the order of one through any number of layers, attention and routing
// prefer some over others, and logits differ by a few units. Requires: a dtype of tensor_list();
// offset is a multiple of 64.
void random_values(uint64_t seed, const TensorSpec& tensor, int64_t offset,
                   std::span<uint8_t> bytes);

}  // namespace millrace
