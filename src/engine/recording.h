#pragma once

// What a run of the engine saw and decided, as text: enough to do it again (engine/replay.h).
// docs/engine.md describes the file.
//
// One record is one line of JSON and ends with a checksum of this line and all before it. So a file
// that was cut off says where, and nothing in the middle can be changed, lost or moved unnoticed.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "request/request.h"
#include "request/step.h"
#include "scheduler/scheduler.h"

namespace millrace {

inline constexpr int64_t kRecordingVersion = 2;
inline constexpr size_t kMaxRecordBytes = size_t{1} << 25;

// What tells one checkpoint from another, without reading its weights.
struct ModelIdentity {
  std::string config_sha256;   // of config.json
  std::string tensors_sha256;  // of the names, types and shapes
  bool operator==(const ModelIdentity&) const = default;
};

// The first record.
struct RecordingHeader {
  int64_t version = kRecordingVersion;
  std::string numerics;  // "reference" or "fp32"
  std::string numerics_id;
  std::string isa;  // for readers, as is the number of threads: neither changes a result
  int64_t num_threads = 0;
  ModelIdentity model;
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  SchedulerOptions scheduler;
};

// What came from outside, in the order in which the scheduler was told.
struct RecordedArrival {
  RequestHandle handle = 0;
  double now_ms = 0;
  Request request;
};
struct RecordedCancel {
  RequestHandle handle = 0;
};
struct RecordedPause {
  RequestHandle handle = 0;
  bool is_paused = false;
  double now_ms = 0;
};

struct RecordedReset {};  // of the prefix cache

struct RecordedRows {
  SequenceId sequence_id = 0;
  int64_t first_position = 0, num_rows = 0, num_samples = 0;
  bool operator==(const RecordedRows&) const = default;
};
struct RecordedPlan {
  int64_t step_id = 0;
  double now_ms = 0;
  std::vector<RecordedRows> rows;
  uint64_t placement = 0;  // placement_digest()
};

// A token of the output, as stop strings see it. Given once, before or when it is first sampled.
struct RecordedToken {
  int32_t token_id = 0;
  std::string bytes;
  bool is_control = false;
};
struct RecordedError {
  int64_t rows_idx = 0;    // in the plan
  int64_t sample_idx = 0;  // -1: of the rows as a whole
  Code code = Code::kCorrupt;
  std::string message;
};
// Of the plan before it. Only what the scheduler decides from: no log-probabilities.
struct RecordedResult {
  double elapsed_ms = 0;
  bool abandoned = false;
  std::vector<RecordedToken> new_tokens;
  // num_samples of each of the plan's rows in a row; 0 where there is an error. None if abandoned.
  std::vector<int32_t> token_ids;
  std::vector<RecordedError> errors;
};

// The last record of a run that ended by itself.
struct RecordingEnd {};

using Record = std::variant<RecordingHeader, RecordedArrival, RecordedCancel, RecordedPause,
                            RecordedReset, RecordedPlan, RecordedResult, RecordingEnd>;

// Where a plan puts its rows: slots, the newest blocks, copies, and what starts and ends with it.
uint64_t placement_digest(const StepPlan& plan);

// Adds `record` to `text` as a line. `sum`: of the line before; kFirstSum for the first.
inline constexpr uint64_t kFirstSum = 0xcbf29ce484222325;
void append_record(const Record& record, uint64_t& sum, std::string& text);

// Closes the line that begins at `begin`, whose JSON lacks only its end.
void append_sum(size_t begin, uint64_t& sum, std::string& text);

// Reads a recording record by record. The text must outlive it.
class RecordingReader {
 public:
  explicit RecordingReader(std::string_view text) : text_(text) {}

  // The next record; none: there is no further whole one. The first is a header and no other is;
  // nothing follows the end. Errors name the line, what was found and what was expected.
  Result<std::optional<Record>> next();

  int64_t line() const { return line_; }  // of the record that was read last, from 1
  // Whether the run ended by itself: the last record is its end.
  bool is_complete() const { return has_ended_; }

 private:
  Error error(const std::string& what) const;

  std::string_view text_;  // what is left
  int64_t line_ = 0;
  uint64_t sum_ = kFirstSum;
  bool has_ended_ = false;
};

}  // namespace millrace
