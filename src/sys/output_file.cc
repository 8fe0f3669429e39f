#include "sys/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
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

constexpr std::string_view kMark = ".tmp.";  // between a name and the id of who writes it

}  // namespace

std::optional<std::string> abandoned_name(std::string_view temporary_name) {
  const size_t mark = temporary_name.rfind(kMark);
  if (mark == temporary_name.npos) return std::nullopt;
  const std::string_view digits = temporary_name.substr(mark + kMark.size());
  pid_t id = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (error != std::errc() || end != digits.data() + digits.size() || id <= 0) return std::nullopt;
  const bool is_gone = id == ::getpid() || (::kill(id, 0) != 0 && errno == ESRCH);
  if (!is_gone) return std::nullopt;
  return std::string(temporary_name.substr(0, mark));
}

std::string OutputFile::temporary_path() const { return format(path_, kMark, ::getpid()); }

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
