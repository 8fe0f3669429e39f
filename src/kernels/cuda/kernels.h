#pragma once

// Operations of kernels/kernels.h on a GPU, with the same contract and the same bits. Views name
// memory of the GPU. They begin and return; errors of the work itself come from Stream::wait().

#include "base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/kernels.h"
#include "tensor/quantized.h"
#include "tensor/tensor_view.h"

namespace millrace::cuda {

Status matmul_fp8(Stream& stream, Matrix<const float> x /*[T, K]*/, const Fp8Matrix& w,
                  Matrix<float> out /*[T, N]*/, Rounding rounding);

}  // namespace millrace::cuda
