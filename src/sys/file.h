#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace millrace {

// A whole file mapped read-only. The mapping lives as long as the object; moving is cheap. It is
// read ahead, and mapped in huge pages where the file system keeps such in its cache.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Of this part only a few bytes here and there will be wanted: nothing around them is read from
  // the disk with them. A hint.
  void expect_single_reads(std::span<const uint8_t> part) const;

  // Whether the descriptor is of this file, and not of one that came to bear its name.
  bool is_mapping_of(int fd) const;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
};

// The whole file as a string; refuses files above `max_bytes` by name and size.
Result<std::string> read_file(const std::string& path, size_t max_bytes = size_t{1} << 30);

// Writes the file under a temporary name beside it and renames it, so that a reader never sees
// half of it. Symbolic links stay, their target is written; so do devices and pipes, which are
// written in place.
Status write_file(const std::string& path, std::string_view content);

// Whether write_file() has a chance: what is wrong with the path is told before the work whose
// result is to be written. Touches nothing.
Status check_writable(const std::string& path);

}  // namespace millrace
