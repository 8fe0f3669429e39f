#include <utility>

#include "base/format.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"

namespace millrace::cuda {

int num_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Result<Stream> Stream::create() {
  cudaStream_t stream = nullptr;
  RETURN_IF_ERROR(to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"));
  return Stream(stream);
}

Stream::Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

Status Stream::wait() {
  return to_status(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)), "waiting");
}

Result<DeviceBuffer> DeviceBuffer::allocate(size_t num_bytes) {
  void* data = nullptr;
  RETURN_IF_ERROR(to_status(cudaMalloc(&data, num_bytes), format(num_bytes, " bytes")));
  return DeviceBuffer(data, num_bytes);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

Status DeviceBuffer::upload(Stream& stream, std::span<const std::byte> bytes) {
  MR_CHECK_OP(bytes.size(), <=, num_bytes_);
  return to_status(cudaMemcpyAsync(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                                   static_cast<cudaStream_t>(stream.handle())),
                   "an upload");
}

Status DeviceBuffer::download(Stream& stream, std::span<std::byte> bytes) const {
  MR_CHECK_OP(bytes.size(), <=, num_bytes_);
  return to_status(cudaMemcpyAsync(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost,
                                   static_cast<cudaStream_t>(stream.handle())),
                   "a download");
}

}  // namespace millrace::cuda
