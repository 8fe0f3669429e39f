#pragma once

// CUDA's errors as ours. For .cu files only.

#include <cuda_runtime.h>

#include <string_view>

#include "base/format.h"
#include "base/status.h"

namespace millrace::cuda {

inline Status to_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::kExhausted : Code::kUnavailable;
  return Error{code, format("CUDA: ", what, ": ", cudaGetErrorString(error))};
}

}  // namespace millrace::cuda
