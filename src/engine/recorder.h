#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/recording.h"
#include "scheduler/stop_rules.h"

namespace millrace {

// Writes a recording while the run goes on. What is recorded lies in the file before a step is
// computed and before the engine waits, so a run that is killed lacks at most the result of its
// last step, and one that hangs shows the step in which it does.
//
// One that was made without a file records nothing. When the file cannot be written any further
// (the disk is full), recording ends with a warning and the run goes on.
//
// Threading: one owner thread.
class Recorder {
 public:
  using Warning = std::function<void(const std::string&)>;

  Recorder() = default;
  // Replaces what is there. `on_warning`: called at most once.
  static Result<Recorder> create(const std::string& path, const RecordingHeader& header,
                                 Warning on_warning);

  // What the scheduler is told, and in this order: before on_arrival(), ...
  void arrival(RequestHandle handle, const Request& request, double now_ms);
  void cancel(RequestHandle handle);
  void pause(RequestHandle handle, bool is_paused, double now_ms);
  void reset();
  // ... behind plan(), ...
  void plan(const StepPlan& plan, double now_ms);
  // ... before commit(), which takes things away, ...
  void result(const StepPlan& plan, const StepResult& result, const OutputTokens& tokens);
  // ... and when the run ends by itself.
  void end();

  void flush();

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void append(const Record& record);
  void give_up(const std::string& why);

  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;  // null: nothing is recorded
  std::string pending_;                         // text for the file
  uint64_t sum_ = kFirstSum;
  std::vector<bool> is_known_;  // token ids that the recording has described
  Warning on_warning_;
};

}  // namespace millrace
