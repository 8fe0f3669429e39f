#include "bench/disk.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>

#include "base/format.h"
#include "sys/read_queue.h"
#include "sys/reserved_memory.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

constexpr int64_t kMostWaitMs = 60'000;

}  // namespace

Result<double> measure_disk(const std::vector<DiskRange>& ranges, size_t piece_bytes,
                            size_t in_flight, size_t max_bytes) {
  std::map<std::string, UniqueFd> fds;
  std::vector<FileRead> reads;
  size_t all_bytes = 0;
  for (const DiskRange& range : ranges) {
    auto file = fds.find(range.path);
    if (file == fds.end()) {
      const int opened = ::open(range.path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
      file = fds.emplace(range.path, opened).first;
    }
    const int fd = file->second.get();
    struct stat info;
    if (fd < 0 || ::fstat(fd, &info) != 0) {
      return Error{Code::kUnavailable, format(range.path, ": ", std::strerror(errno))};
    }
    const uint64_t end = std::min(range.end, uint64_t(info.st_size));
    for (uint64_t offset = range.begin; offset + piece_bytes <= end && all_bytes < max_bytes;
         offset += piece_bytes, all_bytes += piece_bytes) {
      reads.push_back({fd, offset, {}, 0});
    }
  }
  if (reads.empty()) return Error{Code::kInvalidArgument, "no file is as large as one read"};
  ASSIGN_OR_RETURN(ReservedMemory memory, ReservedMemory::reserve(piece_bytes * in_flight));
  memory.prefer_huge_pages();  // small pages that lie anywhere would be the limit
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{1});  // is there when it begins
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadQueue> queue, open_uring_queue(in_flight));

  const auto begin = std::chrono::steady_clock::now();
  std::vector<FinishedRead> finished(in_flight);
  size_t next = 0, num_done = 0;
  const auto add = [&](uint64_t place) {
    FileRead read = reads[next++];
    read.to = memory.bytes().subspan(place * piece_bytes, piece_bytes);
    read.tag = place;
    queue->add(read);
  };
  while (next < std::min(in_flight, reads.size())) add(next);
  while (num_done < reads.size()) {
    const size_t count = queue->take(finished, kMostWaitMs);
    if (count == 0) return Error{Code::kUnavailable, "a disk that does not answer"};
    for (size_t i = 0; i < count; ++i) {
      if (finished[i].result != int64_t(piece_bytes)) {
        return Error{Code::kUnavailable, format("a read of ", piece_bytes, " bytes: found ",
                                                finished[i].result)};
      }
      if (next < reads.size()) add(finished[i].tag);
    }
    num_done += count;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return double(reads.size() * piece_bytes) / seconds.count() / 1e9;
}

}  // namespace millrace
