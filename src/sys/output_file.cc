#include "sys/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/format.h"

namespace millrace {
namespace {

Error errno_error(const std::string& path, const char* what) {
  const Code code = errno == ENOENT   ? Code::kNotFound
                    : errno == ENOSPC ? Code::kExhausted
                                      : Code::kUnavailable;
  return {code, format(path, ": ", what, ": ", std::strerror(errno))};
}

}  // namespace

std::string OutputFile::temporary_path() const { return format(path_, ".tmp.", ::getpid()); }

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile file(path, -1);
  file.fd_ = ::open(file.temporary_path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return errno_error(path, "cannot create");
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept { *this = std::move(other); }

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_path().c_str());
}

Status OutputFile::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), off_t(size_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error(path_, "cannot write");
    size_ += uint64_t(n);
    bytes = bytes.subspan(size_t(n));
  }
  return {};
}

Status OutputFile::finish() {
  MR_CHECK(fd_ >= 0);
  if (::ftruncate(fd_, off_t(size_)) != 0) return errno_error(path_, "cannot extend");
  if (::close(std::exchange(fd_, -1)) != 0 ||
      std::rename(temporary_path().c_str(), path_.c_str()) != 0) {
    const Error error = errno_error(path_, "cannot finish");
    ::unlink(temporary_path().c_str());
    return error;
  }
  return {};
}

}  // namespace millrace
