#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/expert_cache.h"
#include "checkpoint/expert_files.h"
#include "checkpoint/expert_source.h"
#include "sys/read_queue.h"
#include "sys/reserved_memory.h"

namespace millrace {

// Experts that are read from the disk into a cache of a fixed size when they are asked for.
//
// An expert is read in pieces, all of which that fit into the queue are in flight at once. A lease
// begins with what the cache holds, and reads ahead what it will give later: as much as keeps the
// disk busy, and not more, since what is read takes the place of what might be used again. While
// more is to be read than the queue takes, a call gives no more experts than the queue holds:
// nobody fills it while they are used.
//
// A read that fails, or ends before its bytes do, fails the lease by the file, the tensor and the
// place; the next lease that needs the expert reads it again. So does a read that is waited for
// while nothing at all comes for the read timeout; it keeps its slot until it ends, and leases that
// need the expert fail at once until then.
class DiskExpertSource : public ExpertSource {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  static constexpr size_t kReadsInFlight = 64;
  static constexpr int64_t kReadTimeoutMs = 60'000;

  // Of a cache for a model that gives a token `experts_per_token` experts of a layer: those, and
  // one that is read meanwhile.
  static int64_t least_slots(int64_t experts_per_token) { return experts_per_token + 1; }

  // Requires: room for two experts.
  static Result<std::unique_ptr<DiskExpertSource>> open(ExpertFiles files, int64_t cache_bytes,
                                                        std::unique_ptr<ReadQueue> queue,
                                                        int64_t read_timeout_ms = kReadTimeoutMs);

  ExpertLease acquire(int64_t layer, std::span<const int32_t> ids) override;
  ExpertReads reads() const override { return reads_; }

  const ReadQueue& queue() const { return *queue_; }
  const ExpertFiles& files() const { return files_; }
  const ReservedMemory& memory() const { return memory_; }
  int64_t num_slots() const { return cache_.num_slots(); }

 private:
  // What is known of a slot that the cache has given to an expert.
  struct Slot {
    int64_t layer = 0;
    int32_t id = 0;
    int64_t lease = 0;  // for which it was read
    bool is_loaded = false;
    ExpertWeights weights;

    // While it is read.
    ExpertFiles::Extents extents;
    size_t extent = 0;      // of which the next piece is
    uint64_t offset = 0;    // in the file, of the next piece
    int32_t in_flight = 0;  // pieces
    int32_t retries = 0;
    bool is_late = false;  // was waited for in vain, and is in flight still
    std::optional<Error> error;
  };
  struct Piece {
    int32_t slot = 0;
    size_t file = 0;
    uint64_t offset = 0, wanted_end = 0;
    std::span<std::byte> to;
  };

  DiskExpertSource(ExpertFiles files, ReservedMemory memory, int64_t num_slots,
                   std::unique_ptr<ReadQueue> queue, int64_t read_timeout_ms);
  Result<std::span<const LoadedExpert>> next() override;
  void release() noexcept override;

  std::byte* bytes_of(int32_t slot) const;
  void give_back();
  void begin_misses();
  void begin_reading(int32_t slot, int64_t layer, int32_t id);
  void add_pieces();
  void add(const Piece& piece);
  void take_finished(bool wait);
  void finish(const FinishedRead& read);
  void give_up_waiting();
  void fail(const Piece& piece, uint64_t offset, Code code, const std::string& what);
  void end_reading(int32_t slot);

  ExpertFiles files_;
  ReservedMemory memory_;
  ExpertCache cache_;
  std::vector<Slot> slots_;
  const int64_t num_in_queue_;  // experts whose pieces fill the queue
  const int64_t max_ahead_;     // that are read for a lease before it has asked for them
  const int64_t read_timeout_ms_;
  ExpertReads reads_;

  // Slots with pieces that are not in flight yet, in the order in which they were asked for.
  std::vector<int32_t> unread_;
  std::vector<Piece> pieces_;  // by tag
  std::vector<uint64_t> free_tags_;
  std::vector<FinishedRead> finished_;

  // The lease. Every list has room for any layer's experts.
  bool is_leased_ = false;
  int64_t lease_ = 0;  // counts them
  int64_t layer_ = 0;
  std::span<const int32_t> ids_;
  std::vector<int64_t> misses_;      // idx of those that no slot holds yet, from next_miss_ on
  size_t next_miss_ = 0;
  struct Awaited {
    int64_t idx;
    int32_t slot;
  };
  std::vector<Awaited> held_;        // pinned, and not given yet
  std::vector<int32_t> given_;       // slots, until the next call
  std::vector<LoadedExpert> loaded_;  // what is given
  std::optional<Error> error_;

  // Last: it waits for reads into the memory.
  std::unique_ptr<ReadQueue> queue_;
};

}  // namespace millrace
