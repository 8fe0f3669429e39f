#include "engine/recorder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/format.h"

namespace millrace {

Result<Recorder> Recorder::create(const std::string& path, const RecordingHeader& header,
                                  Warning on_warning) {
  Recorder recorder;
  recorder.path_ = path;
  // A recording never replaces a file; devices and pipes are written in place.
  struct stat there;
  const bool is_file = ::stat(path.c_str(), &there) == 0 && S_ISREG(there.st_mode);
  if (is_file) {
    return Error{Code::kInvalidArgument, format(path, ": found a file, expected a new name")};
  }
  recorder.file_.reset(std::fopen(path.c_str(), "we"));
  if (!recorder.file_) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kUnavailable;
    return Error{code, format(path, ": cannot create: ", std::strerror(errno))};
  }
  std::setvbuf(recorder.file_.get(), nullptr, _IONBF, 0);  // pending_ is the buffer
  recorder.is_known_.resize(size_t(header.vocab_size));
  recorder.append(header);
  std::string why;
  recorder.on_warning_ = [&](const std::string& warning) { why = warning; };
  recorder.flush();
  if (!recorder.file_) return Error{Code::kUnavailable, why};
  recorder.on_warning_ = std::move(on_warning);
  return recorder;
}

void Recorder::arrival(RequestHandle handle, const Request& request, double now_ms) {
  if (file_) append(RecordedArrival{handle, now_ms, request});
}

void Recorder::cancel(RequestHandle handle) {
  if (file_) append(RecordedCancel{handle});
}

void Recorder::pause(RequestHandle handle, bool is_paused, double now_ms) {
  if (file_) append(RecordedPause{handle, is_paused, now_ms});
}

void Recorder::reset() {
  if (file_) append(RecordedReset{});
}

void Recorder::plan(const StepPlan& plan, double now_ms) {
  if (!file_) return;
  RecordedPlan record{plan.step_id, now_ms, {}, placement_digest(plan)};
  record.rows.reserve(plan.rows.size());
  for (const PlannedRows& rows : plan.rows) {
    record.rows.push_back({rows.sequence_id, rows.first_position, rows.num_rows, rows.num_samples});
  }
  append(std::move(record));
  flush();
}

void Recorder::result(const StepPlan& plan, const StepResult& result, const OutputTokens& tokens) {
  if (!file_) return;
  RecordedResult record{result.elapsed_ms, result.abandoned, {}, {}, {}};
  for (size_t i = 0; i < plan.rows.size() && !result.abandoned; ++i) {
    const RowsResult& rows = result.rows[i];
    if (rows.error) record.errors.push_back({int64_t(i), -1, rows.error->code, rows.error->message});
    for (int32_t c = 0; c < plan.rows[i].num_samples; ++c) {
      const SampledToken& sample = rows.samples[size_t(c)];
      if (rows.error || sample.error) {
        record.token_ids.push_back(0);
        if (rows.error) continue;
        record.errors.push_back({int64_t(i), c, sample.error->code, sample.error->message});
        continue;
      }
      const size_t id = size_t(sample.token_id);
      record.token_ids.push_back(sample.token_id);
      if (is_known_[id]) continue;
      is_known_[id] = true;
      record.new_tokens.push_back({sample.token_id, tokens.bytes[id], tokens.is_control[id] != 0});
    }
  }
  append(std::move(record));
}

void Recorder::end() {
  if (!file_) return;
  append(RecordingEnd{});
  flush();
  if (file_ && std::fclose(file_.release()) != 0) {
    give_up(format("cannot close: ", std::strerror(errno)));
  }
}

void Recorder::append(const Record& record) {
  const size_t begin = pending_.size();
  append_record(record, sum_, pending_);
  const size_t num_bytes = pending_.size() - begin;
  if (num_bytes > kMaxRecordBytes) {
    pending_.resize(begin);
    flush();
    give_up(format("found a record of ", num_bytes, " bytes, expected at most ", kMaxRecordBytes));
  }
}

void Recorder::flush() {
  if (!file_ || pending_.empty()) return;
  const size_t written = std::fwrite(pending_.data(), 1, pending_.size(), file_.get());
  const int error = errno;
  const bool is_whole = written == pending_.size();
  pending_.clear();
  if (!is_whole) give_up(format("cannot write: ", std::strerror(error)));
}

void Recorder::give_up(const std::string& why) {
  file_.reset();
  if (on_warning_) on_warning_(format(path_, ": recording ends here: ", why));
}

}  // namespace millrace
