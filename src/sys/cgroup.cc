#include "sys/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace millrace {
namespace {

// Version 1 writes "no limit" as a number close to 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;

bool has_word(const std::string& comma_list, std::string_view word) {
  std::istringstream words(comma_list);
  for (std::string w; std::getline(words, w, ',');) {
    if (w == word) return true;
  }
  return false;
}

// The process's place in the hierarchy of `controller`; "" names the one of version 2.
std::string own_path(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // 4:cpu,cpuacct:/a/b, or 0::/a/b
    const size_t list = line.find(':') + 1, path = line.find(':', list) + 1;
    if (list == 0 || path == 0) continue;
    const std::string controllers = line.substr(list, path - list - 1);
    if (controller.empty() ? line.starts_with("0::") : has_word(controllers, controller)) {
      return line.substr(path);
    }
  }
  return {};
}

struct Mount {
  std::string hierarchy_path;  // what of the hierarchy it shows: "/", or a container's part
  std::string folder;
};

std::vector<Mount> mounts(const std::string& root, std::string_view controller) {
  std::vector<Mount> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string skipped, type, options;
    Mount mount;
    left >> skipped >> skipped >> skipped >> mount.hierarchy_path >> mount.folder;
    right >> type >> skipped >> options;
    if (controller.empty() ? type == "cgroup2"
                           : type == "cgroup" && has_word(options, controller)) {
      found.push_back(std::move(mount));
    }
  }
  return found;
}

// The folders of the process's group and of the groups around it, as far as they are mounted.
std::vector<std::string> folders(const std::string& root, std::string_view controller) {
  std::vector<std::string> found;
  for (const Mount& mount : mounts(root, controller)) {
    std::string path = own_path(root, controller);
    // In a container the names of its own groups may be those outside, of which it sees a part.
    const std::string& top = mount.hierarchy_path;
    if (top != "/") path = path.starts_with(top) ? path.substr(top.size()) : "";
    // Empty: the top itself. Otherwise a group outside of what is mounted, or one that is only
    // called like the top with more behind it.
    if (!path.starts_with('/') || path.find("/..") != path.npos) path.clear();
    for (; path.size() > 1; path.resize(path.rfind('/'))) {
      found.push_back(root + mount.folder + path);
    }
    found.push_back(root + mount.folder);
  }
  return found;
}

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number) return number;  // not so: "max"
  return std::nullopt;
}

// What page cache takes of a group's memory, by the names that the version gives it.
int64_t page_cache_bytes(const std::string& folder, std::string_view prefix) {
  std::ifstream file(folder + "/memory.stat");
  int64_t bytes = 0, value = 0;
  for (std::string key; file >> key >> value;) {
    if (key == std::string(prefix) + "active_file" ||
        key == std::string(prefix) + "inactive_file") {
      bytes += value;
    }
  }
  return bytes;
}

template <class Number>
void lower(std::optional<Number>& limit, Number value) {
  if (!limit || value < *limit) limit = value;
}

void limit_cpus(CgroupLimits& limits, std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (quota && period && *quota > 0 && *period > 0) {
    lower(limits.cpus, double(*quota) / double(*period));
  }
}

void limit_memory(CgroupLimits& limits, std::optional<int64_t> limit, std::optional<int64_t> used,
                  int64_t page_cache) {
  if (!limit || *limit < 0 || *limit >= kNoLimit) return;
  lower(limits.memory_bytes, *limit);
  // Page cache is part of what is used; two files that are read one after the other may disagree.
  const int64_t kept = std::max<int64_t>(used.value_or(0) - page_cache, 0);
  lower(limits.memory_available_bytes, std::max<int64_t>(*limit - kept, 0));
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  for (const std::string& folder : folders(root, "")) {
    std::ifstream file(folder + "/cpu.max");
    int64_t quota = 0, period = 0;
    if (file >> quota >> period) limit_cpus(limits, quota, period);
    limit_memory(limits, number_in(folder + "/memory.max"), number_in(folder + "/memory.current"),
                 page_cache_bytes(folder, ""));
  }
  for (const std::string& folder : folders(root, "cpu")) {
    limit_cpus(limits, number_in(folder + "/cpu.cfs_quota_us"),
               number_in(folder + "/cpu.cfs_period_us"));
  }
  for (const std::string& folder : folders(root, "memory")) {
    limit_memory(limits, number_in(folder + "/memory.limit_in_bytes"),
                 number_in(folder + "/memory.usage_in_bytes"), page_cache_bytes(folder, "total_"));
  }
  return limits;
}

}  // namespace millrace
