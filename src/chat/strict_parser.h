#pragma once

// A finished reply, read without tolerance: for tests, evaluation and training data, where damaged
// markup should be seen rather than repaired.

#include <string_view>

#include "base/status.h"
#include "chat/reply_parser.h"

namespace millrace {

// `text` is everything generated, end-of-sentence token included (behind tool calls it may be
// missing). No newlines are dropped; the two before a block of tool calls belong to the markup.
// kCorrupt for everything that the format does not allow. JSON values are not validated.
Result<Reply> parse_reply_strictly(std::string_view text, bool thinking);

}  // namespace millrace
