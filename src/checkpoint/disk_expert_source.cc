#include "checkpoint/disk_expert_source.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace millrace {
namespace {

// Of an expert's reads that were interrupted or came back with a part: more is a fault.
constexpr int32_t kMostRetries = 64;

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t experts_in_queue(int64_t slot_bytes, size_t num_queues, const ReadQueue& queue) {
  const size_t bytes = num_queues * queue.capacity() * DiskExpertSource::kPieceBytes;
  return std::max<int64_t>(
      int64_t(bytes) / std::max(slot_bytes, int64_t(DiskExpertSource::kPieceBytes)), 1);
}

}  // namespace

Result<std::unique_ptr<DiskExpertSource>> DiskExpertSource::open(ExpertFiles files,
                                                                 int64_t cache_bytes,
                                                                 std::unique_ptr<ReadQueue> queue,
                                                                 int64_t read_timeout_ms) {
  MR_CHECK_OP(read_timeout_ms, >, 0);
  int64_t num_experts = 0;
  for (const int64_t count : files.num_experts()) num_experts += count;
  const int64_t slot_bytes = int64_t(files.slot_bytes());
  MR_CHECK_OP(cache_bytes, >=, 2 * slot_bytes);
  const int64_t num_slots = std::min(cache_bytes / slot_bytes, num_experts);
  ASSIGN_OR_RETURN(ReservedMemory memory, ReservedMemory::reserve(size_t(num_slots * slot_bytes)));
  // A disk is told where each page of a piece is: of small ones, which lie anywhere, so many that
  // they cost it more than the bytes.
  memory.prefer_huge_pages();
  return std::unique_ptr<DiskExpertSource>(
      new DiskExpertSource(std::move(files), std::move(memory), num_slots, std::move(queue),
                           read_timeout_ms));
}

DiskExpertSource::DiskExpertSource(ExpertFiles files, ReservedMemory memory, int64_t num_slots,
                                   std::unique_ptr<ReadQueue> queue, int64_t read_timeout_ms)
    : files_(std::move(files)),
      memory_(std::move(memory)),
      cache_(files_.num_experts(), num_slots),
      slots_(size_t(num_slots)),
      num_in_queue_(experts_in_queue(int64_t(files_.slot_bytes()), 1, *queue)),
      max_ahead_(std::min(experts_in_queue(int64_t(files_.slot_bytes()), 2, *queue),
                          std::max<int64_t>(num_slots / 2, 1))),
      read_timeout_ms_(read_timeout_ms),
      pieces_(queue->capacity()),
      finished_(queue->capacity()),
      queue_(std::move(queue)) {
  for (uint64_t tag = pieces_.size(); tag-- > 0;) free_tags_.push_back(tag);
  const std::vector<int64_t> counts = files_.num_experts();
  const size_t most = size_t(*std::max_element(counts.begin(), counts.end()));
  unread_.reserve(size_t(num_slots));
  misses_.reserve(most);
  held_.reserve(most);
  given_.reserve(most);
  loaded_.reserve(most);
  reads_.cache_bytes = int64_t(memory_.bytes().size());
}

std::byte* DiskExpertSource::bytes_of(int32_t slot) const {
  return memory_.bytes().data() + size_t(slot) * files_.slot_bytes();
}

// ---- Leases.

ExpertLease DiskExpertSource::acquire(int64_t layer, std::span<const int32_t> ids) {
  MR_CHECK(!is_leased_);
  MR_CHECK_OP(layer, >=, 0);
  MR_CHECK_OP(layer, <, cache_.num_layers());
  for (const int32_t id : ids) {
    MR_CHECK_OP(id, >=, 0);
    MR_CHECK_OP(id, <, cache_.num_experts(layer));
  }
  is_leased_ = true;
  take_finished(/*wait=*/false);  // of leases before
  ++lease_;
  layer_ = layer;
  ids_ = ids;
  cache_.begin_turn(layer, ids);
  // All that is there is pinned before anything must go.
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t slot = cache_.find(layer, ids[i]);
    if (slot == ExpertCache::kNone) {
      misses_.push_back(int64_t(i));
      continue;
    }
    cache_.pin(slot);
    held_.push_back({int64_t(i), slot});
    if (slots_[size_t(slot)].is_late && !error_) error_ = slots_[size_t(slot)].error;
  }
  reads_.num_hits += int64_t(held_.size());
  reads_.num_misses += int64_t(misses_.size());
  begin_misses();
  take_finished(/*wait=*/false);
  return ExpertLease(*this);
}

Result<std::span<const LoadedExpert>> DiskExpertSource::next() {
  give_back();
  begin_misses();
  take_finished(/*wait=*/false);
  const auto is_loaded = [&](const Awaited& held) { return slots_[size_t(held.slot)].is_loaded; };
  const auto has_more = [&] { return !held_.empty() || next_miss_ < misses_.size(); };
  while (!error_ && has_more() && std::none_of(held_.begin(), held_.end(), is_loaded)) {
    const int64_t begin_ns = now_ns();
    take_finished(/*wait=*/true);
    reads_.wait_ns += now_ns() - begin_ns;
    begin_misses();  // where reads of a lease that was given up had all slots
  }
  if (error_) return *error_;
  // With half of the slots at most there are others to read into while these are used.
  const bool has_unread = !unread_.empty() || next_miss_ < misses_.size();
  const int64_t half = std::max<int64_t>(num_slots() / 2, 1);
  const size_t most = size_t(has_unread ? std::min(num_in_queue_, half) : half);
  const auto end = std::remove_if(held_.begin(), held_.end(), [&](const Awaited& held) {
    if (!is_loaded(held) || given_.size() == most) return false;
    given_.push_back(held.slot);
    loaded_.push_back({held.idx, &slots_[size_t(held.slot)].weights});
    return true;
  });
  held_.erase(end, held_.end());
  MR_CHECK(!loaded_.empty() || !has_more());
  return std::span<const LoadedExpert>(loaded_);
}

void DiskExpertSource::release() noexcept {
  give_back();
  // What is being read is read to the end, and stays for the next lease.
  for (const Awaited& held : held_) cache_.unpin(held.slot);
  held_.clear();
  misses_.clear();
  next_miss_ = 0;
  error_.reset();
  is_leased_ = false;
}

void DiskExpertSource::give_back() {
  for (const int32_t slot : given_) cache_.unpin(slot);
  given_.clear();
  loaded_.clear();
}

void DiskExpertSource::begin_misses() {
  const auto is_reading = [&](const Awaited& held) { return !slots_[size_t(held.slot)].is_loaded; };
  int64_t num_reading = std::count_if(held_.begin(), held_.end(), is_reading);
  for (; next_miss_ < misses_.size() && num_reading < max_ahead_; ++next_miss_, ++num_reading) {
    const int64_t idx = misses_[next_miss_];
    const int32_t id = ids_[size_t(idx)];
    const int32_t slot = cache_.insert(layer_, id);
    if (slot == ExpertCache::kNone) break;  // all are held, or being read
    cache_.pin(slot);                       // for the lease, beside that of the reads
    held_.push_back({idx, slot});
    begin_reading(slot, layer_, id);
  }
}

// ---- Reads.

void DiskExpertSource::begin_reading(int32_t slot, int64_t layer, int32_t id) {
  Slot& of = slots_[size_t(slot)];
  MR_CHECK_OP(of.in_flight, ==, 0);
  of.layer = layer;
  of.id = id;
  of.lease = lease_;
  of.is_loaded = false;
  of.extents = files_.extents(layer, id);
  of.extent = 0;
  of.offset = of.extents.list[0].begin;
  of.retries = 0;
  of.is_late = false;
  of.error.reset();
  unread_.push_back(slot);
}

// Puts as many pieces in flight as the queue takes, those that were asked for first in front.
void DiskExpertSource::add_pieces() {
  while (!unread_.empty() && !free_tags_.empty()) {
    const int32_t slot = unread_.front();
    Slot& of = slots_[size_t(slot)];
    const ExpertFiles::Extent& extent = of.extents.list[of.extent];
    const size_t count = size_t(std::min<uint64_t>(extent.end - of.offset, kPieceBytes));
    std::byte* to = bytes_of(slot) + extent.slot_offset + (of.offset - extent.begin);
    add({slot, extent.file, of.offset, extent.wanted_end, {to, count}});
    ++of.in_flight;
    of.offset += count;
    if (of.offset < extent.end) continue;
    if (++of.extent < of.extents.count) {
      of.offset = of.extents.list[of.extent].begin;
    } else {
      unread_.erase(unread_.begin());
    }
  }
}

void DiskExpertSource::add(const Piece& piece) {
  const uint64_t tag = free_tags_.back();
  free_tags_.pop_back();
  pieces_[tag] = piece;
  queue_->add({files_.fd(piece.file), piece.offset, piece.to, tag});
}

void DiskExpertSource::take_finished(bool wait) {
  add_pieces();
  const size_t count = queue_->take(finished_, wait ? read_timeout_ms_ : 0);
  for (size_t i = 0; i < count; ++i) finish(finished_[i]);
  if (wait && count == 0) give_up_waiting();
  if (count == 0) return;
  add_pieces();
  // Begins them. What has ended meanwhile is seen the next time.
  const size_t more = queue_->take({}, /*wait_ms=*/0);
  MR_CHECK_OP(more, ==, 0u);
}

void DiskExpertSource::finish(const FinishedRead& read) {
  const Piece piece = pieces_[read.tag];
  free_tags_.push_back(read.tag);
  Slot& slot = slots_[size_t(piece.slot)];
  if (read.result > 0) reads_.num_bytes += read.result;
  const uint64_t wanted =
      std::min<uint64_t>(piece.wanted_end, piece.offset + piece.to.size()) - piece.offset;
  const bool is_interrupted = read.result == -EINTR || read.result == -EAGAIN;
  const bool is_part = read.result > 0 && uint64_t(read.result) < wanted &&
                       uint64_t(read.result) % ExpertFiles::kBlockBytes == 0;
  if ((is_interrupted || is_part) && !slot.error && slot.retries < kMostRetries) {
    ++slot.retries;
    const size_t done = is_part ? size_t(read.result) : 0;
    add({piece.slot, piece.file, piece.offset + done, piece.wanted_end, piece.to.subspan(done)});
    return;
  }
  if (!slot.error && read.result < 0) {
    fail(piece, piece.offset, Code::kUnavailable,
         format("cannot read ", wanted, " bytes: ", std::strerror(int(-read.result))));
  } else if (!slot.error && uint64_t(read.result) < wanted) {
    fail(piece, piece.offset + uint64_t(read.result), Code::kCorrupt,
         format("found ", read.result, " bytes, expected ", wanted,
                "; did the file become shorter?"));
  }
  if (--slot.in_flight == 0 && slot.extent == slot.extents.count) end_reading(piece.slot);
}

// None of the reads in flight has ended for long.
void DiskExpertSource::give_up_waiting() {
  for (uint64_t tag = 0; tag < pieces_.size(); ++tag) {
    if (std::find(free_tags_.begin(), free_tags_.end(), tag) != free_tags_.end()) continue;
    const Piece& piece = pieces_[tag];
    Slot& slot = slots_[size_t(piece.slot)];
    if (!slot.error) {
      fail(piece, piece.offset, Code::kUnavailable,
           format("no answer for ", read_timeout_ms_, " ms"));
    }
    slot.is_late = true;
    if (!error_) error_ = slot.error;
  }
}

// The expert does not come. What is in flight of it ends first. `offset`: where the file's bytes
// are missing.
void DiskExpertSource::fail(const Piece& piece, uint64_t offset, Code code,
                            const std::string& what) {
  Slot& slot = slots_[size_t(piece.slot)];
  slot.error = Error{code, format(files_.describe(slot.layer, slot.id, piece.file, offset),
                                  ": at byte ", piece.offset, ": ", what)};
  slot.extent = slot.extents.count;
  std::erase(unread_, piece.slot);
}

void DiskExpertSource::end_reading(int32_t slot) {
  Slot& of = slots_[size_t(slot)];
  if (!of.error) {
    of.is_loaded = true;
    of.weights = files_.weights(of.layer, of.id, bytes_of(slot));
    cache_.unpin(slot);
    return;
  }
  const auto held = std::find_if(held_.begin(), held_.end(),
                                 [&](const Awaited& h) { return h.slot == slot; });
  if (held != held_.end()) {
    if (of.lease == lease_) {
      if (!error_) error_ = of.error;
    } else {
      misses_.push_back(held->idx);  // was read for a lease before, and failed that one
    }
    cache_.unpin(slot);
    held_.erase(held);
  }
  cache_.remove(slot);
}

}  // namespace millrace
