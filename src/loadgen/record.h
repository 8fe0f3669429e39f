#pragma once

// What became of one request: times in nanoseconds from the start of the run, by the clock of the
// process that reads the socket.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// What came at once: an event of a stream that shows text.
struct Chunk {
  int64_t at_ns = 0;
  int32_t num_tokens = 0;  // that the server told of; it need not tell
};

struct RequestRecord {
  int64_t id = 0;
  int64_t scheduled_ns = 0;           // when the plan wanted it sent
  int64_t ready_ns = 0;               // when nothing of the plan held it back any more
  int64_t send_ns = 0;                // when it was given to the socket
  std::optional<int64_t> head_ns;     // the header of the answer
  std::optional<int64_t> visible_ns;  // the first text that is not reasoning
  int64_t done_ns = 0;                // the end of the answer, or of the attempt
  std::vector<Chunk> chunks;          // the first and the last are the first and last text

  int64_t planned_prompt_tokens = 0, planned_output_tokens = 0;
  // As the server counts them; none: it did not say.
  std::optional<int64_t> prompt_tokens, cached_tokens, output_tokens, reasoning_tokens;
  std::string finish_reason;

  int http_status = 0;         // 0: there was none
  std::string error;           // why it failed, in words that many share; empty: it did not
  std::string message;         // the same with particulars
  bool was_cancelled = false;  // by the end of the run: neither answered nor failed
};

inline bool is_success(const RequestRecord& record) {
  return record.error.empty() && !record.was_cancelled;
}

}  // namespace millrace
