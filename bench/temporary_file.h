#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "sys/file.h"

namespace millrace {

// A file with this content for as long as it lives. The program ends where there can be none.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view content)
      : path_(std::filesystem::temp_directory_path() / "millrace-bench-XXXXXX") {
    const int fd = ::mkstemp(path_.data());  // finds other letters for the last six
    const Status status = fd < 0 ? Status(Error{Code::kUnavailable, path_ + ": cannot create"})
                                 : write_file(path_, content);
    if (fd >= 0) ::close(fd);
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    std::exit(1);
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace millrace
