#include "sys/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/format.h"
#include "sys/mapping_faults.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

Error errno_error(const std::string& path, const char* what) {
  const Code code = errno == ENOENT ? Code::kNotFound : Code::kUnavailable;
  return {code, format(path, ": ", what, ": ", std::strerror(errno))};
}

Error is_folder(const std::string& path) {
  return {Code::kInvalidArgument, format(path, ": is a directory, expected a file")};
}

// Of an open regular file; other kinds (folders, pipes) are refused by name.
Result<struct stat> stat_regular(const std::string& path, int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return errno_error(path, "cannot stat");
  if (!S_ISREG(info.st_mode)) {
    return Error{Code::kInvalidArgument, format(path, ": not a regular file")};
  }
  return info;
}

// Without waiting: a pipe would have to be opened by a writer first.
int open_to_read(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

Status write_all(const std::string& path, int flags, std::string_view content) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644));
  if (fd.get() < 0) return errno_error(path, "cannot open to write");
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(fd.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error(path, "cannot write");
    done += size_t(n);
  }
  return {};
}

Status replace_file(const std::string& path, std::string_view content) {
  const std::string temporary = format(path, ".tmp.", ::getpid());
  Status status = write_all(temporary, O_TRUNC, content);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = errno_error(path, "cannot rename to");
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const UniqueFd fd(open_to_read(path));
  if (fd.get() < 0) return errno_error(path, "cannot open");
  ASSIGN_OR_RETURN(const struct stat info, stat_regular(path, fd.get()));
  MappedFile file;
  file.path_ = path;
  file.device_ = info.st_dev;
  file.inode_ = info.st_ino;
  const size_t size = size_t(info.st_size);
  if (size == 0) return file;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return errno_error(path, "cannot map");
  ::madvise(data, size, MADV_HUGEPAGE);  // a kernel without them refuses
  note_mapping(path, data, size);
  file.data_ = static_cast<const uint8_t*>(data);
  file.size_ = size;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

// While the mapping lives, no other file gets the number of its inode.
bool MappedFile::is_mapping_of(int fd) const {
  struct stat info;
  return ::fstat(fd, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

void MappedFile::expect_single_reads(std::span<const uint8_t> part) const {
  // Whole pages: those at its ends it shares with its neighbours.
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin >= end) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_NOHUGEPAGE);
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<uint8_t*>(data_), size_);
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  const UniqueFd fd(open_to_read(path));
  if (fd.get() < 0) return errno_error(path, "cannot open");
  ASSIGN_OR_RETURN(const struct stat info, stat_regular(path, fd.get()));
  const size_t size = size_t(info.st_size);
  if (size > max_bytes) {
    return Error{Code::kExhausted,
                 format(path, ": ", size, " bytes, expected at most ", max_bytes)};
  }
  std::string content(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd.get(), content.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error(path, "cannot read");
    if (n == 0) break;
    done += size_t(n);
  }
  content.resize(done);
  return content;
}

Status check_writable(const std::string& path) {
  constexpr const char* kWhat = "cannot be written";
  struct stat info;
  const std::filesystem::path name(path);
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return errno_error(path, kWhat);
    const std::string folder = name.has_parent_path() ? name.parent_path().string() : ".";
    return ::access(folder.c_str(), W_OK | X_OK) == 0 ? Status() : errno_error(path, kWhat);
  }
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return errno_error(path, kWhat);
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(name, error);
    return check_writable((name.parent_path() / target).string());
  }
  if (S_ISDIR(info.st_mode)) return is_folder(path);
  if (!S_ISREG(info.st_mode)) {
    return ::access(path.c_str(), W_OK) == 0 ? Status() : errno_error(path, kWhat);
  }
  // A new file takes the old one's place: what is asked for is the folder's leave.
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(name, error);
  if (error) return errno_error(path, kWhat);
  return ::access(target.parent_path().c_str(), W_OK | X_OK) == 0 ? Status()
                                                                 : errno_error(path, kWhat);
}

Status write_file(const std::string& path, std::string_view content) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return replace_file(path, content);  // says what is wrong
  const bool leads_nowhere = ::stat(path.c_str(), &info) != 0;
  if (!leads_nowhere && S_ISDIR(info.st_mode)) return is_folder(path);
  // A link to nothing makes its target; a device or a pipe takes what is written.
  if (leads_nowhere || !S_ISREG(info.st_mode)) return write_all(path, 0, content);
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return errno_error(path, "cannot resolve");
  const std::string target = resolved;
  std::free(resolved);
  return replace_file(target, content);
}

}  // namespace millrace
