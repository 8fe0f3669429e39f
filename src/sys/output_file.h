#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

// The name that a temporary file was to get from a process that was killed. None: it is no
// temporary file, or its process still lives. Asks for processes of this machine, or container:
// those of others that write into the same folder count as killed. To be asked before this process
// writes any: one with its own id is of an earlier process that had it.
std::optional<std::string> abandoned_name(std::string_view temporary_name);

// A file that is written piece by piece under a temporary name beside its own and takes its own
// name when it is complete. What is not finished is removed.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  Status write(std::span<const uint8_t> bytes);
  // Zeros that take no space where the file system knows holes.
  void skip(uint64_t num_bytes) { size_ += num_bytes; }
  // Requires: not finished yet.
  Status finish();

 private:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string temporary_path() const;

  std::string path_;
  int fd_ = -1;  // -1: finished, or moved from
  uint64_t size_ = 0;
};

}  // namespace millrace
