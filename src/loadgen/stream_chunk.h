#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

struct StreamUsage {
  std::optional<int64_t> prompt_tokens, cached_tokens, output_tokens, reasoning_tokens;
};

// What a load generator wants to know of one event of a stream, of completions or of a chat.
struct StreamChunk {
  bool has_choices = false;  // otherwise it only tells the usage
  bool has_text = false;     // an answer, or a tool call
  bool has_reasoning = false;
  int64_t num_token_ids = 0;  // of those that the server shows
  std::string finish_reason;  // empty: none
  std::optional<StreamUsage> usage;
  std::optional<std::string> error;  // the message of an error event
};

// Reads one value of JSON in one pass and without building it: a client that reads 2,048 streams at
// once must not be what is measured. Of numbers and strings that it skips it checks only where they
// end. Errors: kCorrupt, with the byte position.
Result<StreamChunk> parse_stream_chunk(std::string_view json);

}  // namespace millrace
