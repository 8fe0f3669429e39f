#pragma once

#include <cstdint>

namespace millrace {

// What an engine is doing, and what it has done.
struct SchedulerStats {
  int64_t num_waiting_requests = 0;  // without a running sequence
  int64_t num_running_requests = 0;
  int64_t num_waiting_sequences = 0;  // preempted ones among them
  int64_t num_prefilling_sequences = 0;
  int64_t num_decoding_sequences = 0;
  int64_t num_paused_requests = 0;
  int64_t num_blocks = 0;
  int64_t num_free_blocks = 0;    // what is only cached is free
  int64_t num_cached_blocks = 0;  // of the free ones
  int64_t num_snapshots = 0;
  int64_t block_size = 0;         // tokens
  int64_t bookkeeping_bytes = 0;  // tokens, block tables and pool entries of what is running

  // Since the start.
  int64_t num_steps = 0;  // committed, not abandoned
  int64_t num_abandoned_steps = 0;
  int64_t num_prefill_rows = 0;
  int64_t num_decode_rows = 0;
  int64_t num_recomputed_rows = 0;  // of the prefill rows: paid for a second time
  int64_t num_preemptions = 0;
  int64_t num_finished_requests = 0;
  int64_t num_queried_tokens = 0;  // of prompts, looked up in the prefix cache
  int64_t num_cached_tokens = 0;   // of these, found
  int64_t num_prompt_tokens = 0;  // computed; those of a prompt once, however many its choices
  int64_t num_output_tokens = 0;  // of all choices
};

}  // namespace millrace
