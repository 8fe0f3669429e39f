#pragma once

// Where the routed experts of a checkpoint lie in its files, and how one lies in a slot of memory
// when it has been read from there in whole blocks of the disk.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/expert_source.h"
#include "sys/unique_fd.h"

namespace millrace {

class ExpertFiles {
 public:
  // What reads past the page cache need of offsets, sizes and memory, on every usual disk.
  static constexpr uint64_t kBlockBytes = 4096;

  // Bytes of one file that are read together: [begin, end) are whole blocks, of which those up to
  // wanted_end belong to the expert. They go to slot_offset of its slot.
  struct Extent {
    size_t file = 0;
    uint64_t begin = 0, wanted_end = 0, end = 0;
    uint64_t slot_offset = 0;
  };
  static constexpr size_t kNumTensors = 6;  // codes and scales of three matrices
  struct Extents {
    std::array<Extent, kNumTensors> list;
    size_t count = 0;
  };

  // Opens the files that hold experts. A file system without reads past the page cache gives
  // ordinary ones.
  static Result<ExpertFiles> open(const Checkpoint& checkpoint);

  // By layer, counted as in ExpertSource.
  std::vector<int64_t> num_experts() const;
  uint64_t slot_bytes() const { return slot_bytes_; }    // of the largest expert
  uint64_t total_bytes() const { return total_bytes_; }  // of all experts' tensors
  int fd(size_t file) const { return files_[file].fd.get(); }
  const std::string& path(size_t file) const { return files_[file].path; }
  bool is_direct() const;  // all files are read past the page cache

  Extents extents(int64_t layer, int32_t id) const;
  ExpertWeights weights(int64_t layer, int32_t id, const std::byte* slot) const;

  // What is at a byte of a file, for messages: "model-2.safetensors: tensor NAME".
  std::string describe(int64_t layer, int32_t id, size_t file, uint64_t offset) const;

 private:
  struct File {
    UniqueFd fd;
    std::string path;
    bool is_direct;
  };
  struct Tensor {
    size_t file = 0;
    uint64_t begin = 0, end = 0;
  };
  using Tensors = std::array<Tensor, kNumTensors>;  // w1 codes, w1 scales, w2 codes, ...
  struct Layer {
    std::string prefix;
    std::vector<Tensors> experts;
    ExpertWeights shape;  // sizes without addresses, the same for all
  };

  static Extents extents(const Tensors& tensors);

  std::vector<File> files_;
  std::vector<Layer> layers_;
  uint64_t slot_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace millrace
