#pragma once

// What one forward call computes: rows of any number of sequences, side by side.

#include <cstdint>
#include <span>
#include <vector>

#include "kvstore/kv_store.h"

namespace millrace {

enum class RowKind : uint8_t {
  kText,
  kImage,  // no Engram memory, routed by its own bias
  kPad,    // only takes a place: touches no state and no expert, and its logits mean nothing
};

enum class LogitsFor { kNone, kLast, kAll };

// Tokens of one sequence that follow what its blocks and its slot hold. A segment of pads has
// neither: its first position is 0 and its tokens are any.
struct BatchSegment {
  // From position 0 to the last of the rows: layers look back a few tokens. The rows are
  // tokens[first_position, ...).
  std::span<const int32_t> tokens;
  int64_t first_position = 0;
  std::span<const BlockId> block_table;   // covers every token
  StateSlot slot = 0;
  LogitsFor logits = LogitsFor::kLast;
  bool is_padding = false;

  int64_t num_rows() const { return int64_t(tokens.size()) - first_position; }
  int64_t num_logits() const {
    return logits == LogitsFor::kNone ? 0 : logits == LogitsFor::kLast ? 1 : num_rows();
  }
};

}  // namespace millrace
