// The CUDA kernels on a real GPU against the reference, bit for bit. Without a GPU it says so and
// ends with a status that the test runner counts as skipped.

#include <cstdio>

#include "kernels/contract_test.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fp8_products_test.h"
#include "kernels/cuda/kernels.h"

namespace millrace {
namespace {

constexpr int kSkipped = 77;

template <class T>
cuda::DeviceBuffer on_device(cuda::Stream& stream, const std::vector<T>& values) {
  Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::allocate(values.size() * sizeof(T));
  MR_CHECK(buffer.has_value());
  MR_CHECK(buffer.value().upload(stream, std::as_bytes(std::span(values))).ok());
  return std::move(buffer.value());
}

TEST(KernelsCuda, MatmulFp8EqualsTheReferenceBitForBit) {
  Result<cuda::Stream> stream = cuda::Stream::create();
  ASSERT_TRUE(stream.has_value()) << stream.error().message;
  const cuda::Fp8Case cases[] = {{1, 1, 1, 0},      {1, 33, 5120, 0},    {9, 67, 96, 5},
                                 {3, 40, 1280, 31}, {64, 129, 2304, 12}, {5, 64, 20480, 0}};
  cuda::for_each_fp8_product(cases, [&](const cuda::Fp8Case& c, const cuda::Fp8Operands& in,
                                        const Floats& want) {
    Floats got(want.size(), -7.0f);
    const cuda::DeviceBuffer gpu_x = on_device(stream.value(), in.x);
    const cuda::DeviceBuffer gpu_codes = on_device(stream.value(), in.codes);
    const cuda::DeviceBuffer gpu_scales = on_device(stream.value(), in.scales);
    const cuda::DeviceBuffer gpu_out = on_device(stream.value(), got);
    const Fp8Matrix gpu_w{gpu_codes.as<const uint8_t>(), gpu_scales.as<const uint8_t>(), c.n, c.k,
                          c.row_phase};
    const Status begun = cuda::matmul_fp8(stream.value(), {gpu_x.as<const float>(), {c.rows, c.k}},
                                          gpu_w, {gpu_out.as<float>(), {c.rows, c.n}}, in.rounding);
    ASSERT_TRUE(begun.ok()) << begun.error().message;
    ASSERT_TRUE(gpu_out.download(stream.value(), std::as_writable_bytes(std::span(got))).ok());
    const Status done = stream.value().wait();
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_TRUE(same_bits(got, want));
  });
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (millrace::cuda::num_devices() == 0) {
    std::printf(
        "[  SKIPPED ] 1 test, for want of a GPU or of a driver for it\n");  // tally.py counts it
    return millrace::kSkipped;
  }
  return RUN_ALL_TESTS();
}
