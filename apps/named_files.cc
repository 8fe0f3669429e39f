#include "named_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "base/format.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// Where a write to `path` would end up.
fs::path target_of(fs::path path) {
  constexpr int kMaxLinks = 40;  // as for the system
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  path = fs::absolute(path, error);  // else what begins with "./" would differ
  const fs::path whole = fs::weakly_canonical(path, error);
  return error ? path : whole;
}

struct Place {
  std::optional<struct stat> info;  // none: there is nothing yet
  fs::path target;
};

//   standard_fd  what "-" stands for
Place place_of(const std::string& path, int standard_fd) {
  struct stat info;
  const bool is_there = path == "-" ? ::fstat(standard_fd, &info) == 0
                                    : ::stat(path.c_str(), &info) == 0;
  if (is_there) return {info, {}};
  return {std::nullopt, target_of(path)};
}

bool is_same(const Place& a, const Place& b) {
  if (a.info && b.info) {
    // Terminals, pipes and /dev/null take from several.
    return S_ISREG(a.info->st_mode) && a.info->st_dev == b.info->st_dev &&
           a.info->st_ino == b.info->st_ino;
  }
  return !a.info && !b.info && a.target == b.target;
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  return is_same(place_of(a, STDOUT_FILENO), place_of(b, STDOUT_FILENO));
}

Status check_apart(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs) {
  struct Known {
    const char* flag;
    Place place;
  };
  std::vector<Known> all;
  for (const NamedFile& input : inputs) {
    if (!input.path.empty()) all.push_back({input.flag, place_of(input.path, STDIN_FILENO)});
  }
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) continue;
    const Place place = place_of(output.path, STDOUT_FILENO);
    for (const Known& other : all) {
      if (!is_same(place, other.place)) continue;
      return Error{Code::kInvalidArgument,
                   format(output.flag, ": found the file of ", other.flag, ", expected another")};
    }
    all.push_back({output.flag, place});
  }
  return {};
}

}  // namespace millrace
