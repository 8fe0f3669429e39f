#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

// What the sequences hold, counted from their side.
struct Holdings {
  std::vector<int32_t> block_references;
  std::vector<int32_t> slot_owners;
  int64_t num_running = 0, num_waiting = 0, num_listed = 0, num_pending = 0;
};

void count_sequence(const Sequence& s, const SchedulerOptions& options, const PrefixCache& cache,
                    Holdings& found) {
  const ScheduledRequest& r = *s.request;
  const bool is_decoding = s.state == SequenceState::kDecoding;
  MR_CHECK_OP(s.id, ==, r.first_sequence_id + s.choice_idx);
  MR_CHECK_OP(s.num_computed_tokens, <=, s.num_tokens());
  if (is_decoding) MR_CHECK_OP(s.num_computed_tokens, ==, s.num_tokens() - 1);
  if (!r.is_paused && !is_decoding) ++found.num_pending;
  if (!s.is_running()) {
    ++found.num_waiting;
    MR_CHECK_OP(s.num_computed_tokens, ==, 0);
    MR_CHECK(s.block_table.empty());
    MR_CHECK_OP(s.slot, ==, kNoSlot);
    MR_CHECK(!s.prefix);
    const bool is_listed = r.key->waiting.contains(s.id);
    MR_CHECK_OP(is_listed, ==, !r.is_paused);
    found.num_listed += is_listed ? 1 : 0;
    return;
  }
  ++found.num_running;
  const int64_t num_covered = int64_t(s.block_table.size()) * options.block_size;
  MR_CHECK_OP(s.num_computed_tokens, <=, num_covered);
  MR_CHECK(cache.is_prefix_of(s.prefix, s.num_prefix_blocks, s.block_table));
  if (options.prefix_caching) {
    const int64_t num_known = std::max(s.num_computed_tokens, s.num_cached_tokens);
    MR_CHECK_OP(s.num_prefix_blocks, ==, num_known / options.block_size);
  }
  if (s.state == SequenceState::kPrefilling) MR_CHECK_OP(s.num_tokens(), <=, num_covered);
  for (const BlockId block : s.block_table) ++found.block_references[size_t(block)];
  MR_CHECK_OP(++found.slot_owners[size_t(s.slot)], ==, 1);
}

}  // namespace

void Scheduler::check_invariants() const {
  blocks_.check_invariants();
  slots_.check_invariants();
  fair_share_.check_invariants();
  Holdings found;
  found.block_references.resize(size_t(blocks_.num_blocks()));
  found.slot_owners.resize(size_t(slots_.num_slots()));
  int64_t num_waiting_requests = 0, num_deadlines = 0, num_paused = 0;
  for (const auto& [handle, request] : requests_) {
    const ScheduledRequest& r = *request;
    MR_CHECK_OP(r.handle, ==, handle);
    int32_t num_unmade = r.request.num_choices - int32_t(r.sequences.size());
    int32_t num_unfinished = num_unmade, num_running = 0;
    MR_CHECK(r.has_forked ? num_unmade == 0 : r.sequences.size() == 1);
    for (const std::unique_ptr<Sequence>& s : r.sequences) {
      if (!s) continue;
      MR_CHECK(s->request == &r);
      ++num_unfinished;
      num_running += s->is_running() ? 1 : 0;
      count_sequence(*s, options_, prefix_cache_, found);
    }
    MR_CHECK_OP(num_unfinished, ==, r.num_unfinished);
    MR_CHECK_OP(num_unfinished, >, 0);
    MR_CHECK_OP(num_running, ==, r.num_running);
    if (num_running == 0) ++num_waiting_requests;
    if (r.is_paused) ++num_paused;
    if (std::isfinite(r.deadline_ms)) {
      ++num_deadlines;
      MR_CHECK(deadlines_.contains({r.deadline_ms, handle}));
    }
  }
  MR_CHECK_OP(num_waiting_requests, ==, num_waiting_requests_);
  MR_CHECK_OP(num_deadlines, ==, int64_t(deadlines_.size()));
  MR_CHECK_OP(num_paused, ==, totals_.num_paused_requests);
  MR_CHECK_OP(found.num_waiting, ==, num_waiting_sequences_);
  MR_CHECK_OP(found.num_running, ==, int64_t(running_.size()));
  MR_CHECK_OP(found.num_pending, ==, fair_share_.num_pending());
  MR_CHECK_OP(found.num_listed, ==, fair_share_.num_waiting());
  MR_CHECK(std::is_sorted(running_.begin(), running_.end(), is_ranked_before));
  MR_CHECK_OP(int64_t(requests_.size()), <=, max_waiting_with_reserve() + options_.max_num_seqs);

  prefix_cache_.check_invariants();
  prefix_cache_.count_holdings(found.block_references, found.slot_owners);
  for (int64_t block = 0; block < blocks_.num_blocks(); ++block) {
    MR_CHECK_OP(blocks_.num_references(BlockId(block)), ==, found.block_references[size_t(block)]);
  }
  for (int64_t slot = 0; slot < slots_.num_slots(); ++slot) {
    MR_CHECK_OP(int(slots_.is_in_use(StateSlot(slot))), ==, found.slot_owners[size_t(slot)]);
  }
  if (!is_planned_) MR_CHECK(ending_handles_.empty());
}

}  // namespace millrace
