#include "bench/disk.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "base/format.h"
#include "sys/read_queue.h"
#include "sys/reserved_memory.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

constexpr int64_t kMostWaitMs = 60'000;
constexpr size_t kNone = SIZE_MAX;

struct Piece {
  const std::string* path;
  int fd;
  uint64_t offset;
};

}  // namespace

Result<double> measure_disk(const std::vector<DiskRange>& ranges, size_t piece_bytes,
                            size_t in_flight, size_t max_bytes) {
  std::map<std::string, UniqueFd> fds;
  std::vector<Piece> pieces;
  for (const DiskRange& range : ranges) {
    auto file = fds.find(range.path);
    if (file == fds.end()) {
      const int opened = ::open(range.path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
      file = fds.emplace(range.path, opened).first;
    }
    const int fd = file->second.get();
    struct stat info;
    if (fd < 0 || ::fstat(fd, &info) != 0) {
      return Error{Code::kUnavailable, format(range.path, ": cannot open past the page cache: ",
                                              std::strerror(errno))};
    }
    const uint64_t end = std::min(range.end, uint64_t(info.st_size));
    for (uint64_t offset = range.begin;
         offset + piece_bytes <= end && pieces.size() * piece_bytes < max_bytes;
         offset += piece_bytes) {
      pieces.push_back({&file->first, fd, offset});
    }
  }
  if (pieces.empty()) {
    return Error{Code::kInvalidArgument,
                 format(ranges.empty() ? "disk" : ranges[0].path,
                        ": found no ", piece_bytes, " bytes to read, expected one read at least")};
  }
  ASSIGN_OR_RETURN(ReservedMemory memory, ReservedMemory::reserve(piece_bytes * in_flight));
  memory.prefer_huge_pages();  // small pages that lie anywhere would be the limit
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{1});  // is there when it begins
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadQueue> queue, open_uring_queue(in_flight));

  const auto begin = std::chrono::steady_clock::now();
  std::vector<FinishedRead> finished(in_flight);
  std::vector<size_t> on_its_way(in_flight, kNone);  // the piece, by its place in the memory
  size_t next = 0, num_done = 0;
  const auto add = [&](size_t place) {
    const Piece& piece = pieces[next];
    queue->add({piece.fd, piece.offset, memory.bytes().subspan(place * piece_bytes, piece_bytes),
                place});
    on_its_way[place] = next++;
  };
  const auto failed = [&](size_t piece, const std::string& what) {
    return Error{Code::kUnavailable,
                 format(*pieces[piece].path, ": at byte ", pieces[piece].offset, ": ", what)};
  };
  while (next < std::min(in_flight, pieces.size())) add(next);
  while (num_done < pieces.size()) {
    const size_t count = queue->take(finished, kMostWaitMs);
    if (count == 0) {
      const auto late =
          std::ranges::find_if(on_its_way, [](size_t piece) { return piece != kNone; });
      return failed(*late, format("no answer for ", kMostWaitMs, " ms"));
    }
    for (const FinishedRead& read : std::span(finished).first(count)) {
      const size_t piece = std::exchange(on_its_way[read.tag], kNone);
      if (read.result < 0) {
        return failed(piece, format("cannot read ", piece_bytes, " bytes: ",
                                    std::strerror(int(-read.result))));
      }
      if (read.result != int64_t(piece_bytes)) {
        return failed(piece, format("found ", read.result, " bytes, expected ", piece_bytes));
      }
      if (next < pieces.size()) add(read.tag);
    }
    num_done += count;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return double(pieces.size() * piece_bytes) / seconds.count() / 1e9;
}

}  // namespace millrace
