#pragma once

// Does a recorded run again: the same scheduler, told the same in the same order.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/loaded_model.h"
#include "engine/recording.h"
#include "kvstore/kv_store.h"

namespace millrace {

struct ReplayReport {
  int64_t num_steps = 0;  // with rows, and not abandoned
  int64_t num_rows = 0;
  int64_t num_requests = 0;
  int64_t num_tokens = 0;
  // Of the first plan that is not the recorded one, where the replay ends; and of tokens and errors
  // that are not the recorded ones. Only the first kMaxShown are described.
  int64_t num_differences = 0;
  std::vector<std::string> differences;
  bool is_complete = false;  // the run ended by itself, and so does the recording
  int64_t num_lines = 0;     // that were replayed

  static constexpr size_t kMaxShown = 10;
};

// What computes the steps of a replay: the model of the recorded run, under any number of threads
// and any kernels.
class ReplayModel {
 public:
  // Refuses a model that is not that of the recording. `token_map` as for LoadedModel; the mode of
  // numerics is the recording's.
  static Result<std::unique_ptr<ReplayModel>> open(const RecordingHeader& header,
                                                   LoadOptions options,
                                                   std::vector<int32_t> token_map,
                                                   const OpenProgress& progress = {});

  Executor& executor() { return executor_; }
  const std::string& numerics_id() const { return numerics_id_; }

 private:
  ReplayModel(std::unique_ptr<LoadedModel> model, KvStore store,
              std::vector<int32_t> eos_token_ids);

  std::unique_ptr<LoadedModel> model_;
  KvStore store_;
  std::vector<int32_t> eos_token_ids_;
  Executor executor_;
  std::string numerics_id_;
};

// The first record of a recording.
Result<RecordingHeader> read_header(std::string_view recording);

// Without an executor (null) the scheduler gets the recorded results. With one each step is computed
// too, and what comes out is compared bit for bit; the scheduler still gets the recorded results, so
// that one difference does not hide the next. Reads up to the last whole record. Refuses, naming the
// line, what is no recording or could not have happened.
Result<ReplayReport> replay(std::string_view recording, Executor* executor);

}  // namespace millrace
