#pragma once

// A GPU's memory and its order of work, without CUDA's headers: whoever includes this is plain C++.
//
// Threading: one thread at a time per object.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace millrace::cuda {

// GPUs that can be used; 0 also where there is no driver.
int num_devices();

// Work that runs in order, on the GPU that is current when it is created.
class Stream {
 public:
  static Result<Stream> create();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  // Until everything is done. The error of anything that failed so far; it does not go away.
  Status wait();
  void* handle() const { return handle_; }  // a cudaStream_t

 private:
  explicit Stream(void* handle) : handle_(handle) {}
  void* handle_ = nullptr;
};

// Memory of the GPU. Its address means nothing to the processor.
class DeviceBuffer {
 public:
  static Result<DeviceBuffer> allocate(size_t num_bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  // The first bytes of the buffer. In the stream's order; `bytes` must stay until it is done.
  // Require: as many bytes as the buffer has, at most.
  Status upload(Stream& stream, std::span<const std::byte> bytes);
  Status download(Stream& stream, std::span<std::byte> bytes) const;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  DeviceBuffer(void* data, size_t num_bytes) : data_(data), num_bytes_(num_bytes) {}
  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace millrace::cuda
