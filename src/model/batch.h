#pragma once

// What one forward call computes: rows of any number of sequences, side by side.

#include <algorithm>
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
  // Rows of the blocks before this token exist and stay as they are: a prefix that was cached. The
  // slot need not know of it when the rows begin far enough before it (first_tokens()). Requires: a
  // multiple of every compress ratio, or first_position at most.
  int64_t num_cached_tokens = 0;
  // What the last layer makes of the tokens before this one is of no use: then layers leave out
  // rows that nothing depends on. Logits are of tokens from here on; with kLast the last token is
  // one of them.
  int64_t first_output = 0;
  LogitsFor logits = LogitsFor::kLast;
  bool is_padding = false;

  int64_t end_position() const { return int64_t(tokens.size()); }
  int64_t num_rows() const { return end_position() - first_position; }
  int64_t num_logits() const {
    if (logits != LogitsFor::kAll) return logits == LogitsFor::kLast ? 1 : 0;
    return std::max<int64_t>(0, end_position() - std::max(first_position, first_output));
  }
};

}  // namespace millrace
