#include "engine/replay.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/format.h"
#include "sys/fp_environment.h"

namespace millrace {
namespace {

// Far above any real run, far below what would not fit in memory.
constexpr int64_t kMaxVocabSize = int64_t{1} << 24;
constexpr int64_t kMaxBlocks = int64_t{1} << 26;
constexpr int64_t kMaxSnapshots = 65536;
constexpr int64_t kMaxLayers = 1024;

std::string describe(const std::vector<RecordedRows>& rows, size_t idx) {
  if (idx >= rows.size()) return "none";
  const RecordedRows& r = rows[idx];
  return format(r.num_rows, " of sequence ", r.sequence_id, " from position ", r.first_position,
                " with ", r.num_samples, " samples");
}

// Of two lists that differ.
std::string describe_difference(const std::vector<RecordedRows>& found,
                                const std::vector<RecordedRows>& expected) {
  size_t idx = 0;
  while (idx < found.size() && idx < expected.size() && found[idx] == expected[idx]) ++idx;
  return format("found ", found.size(), " lists of rows, expected ", expected.size(), "; list ",
                idx + 1, ": found ", describe(found, idx), ", expected ", describe(expected, idx));
}

// Ends every step before its first layer: what is planned besides rows happens, no row does.
class AbandonAtOnce : public LayerMonitor {
  bool before_layer(int64_t) override { return false; }
};

class Replay {
 public:
  Replay(const RecordingHeader& header, Executor* executor)
      : executor_(executor),
        bytes_(size_t(header.vocab_size)),
        is_control_(size_t(header.vocab_size)),
        eos_token_ids_(header.eos_token_ids),
        scheduler_(header.scheduler, {bytes_, is_control_, eos_token_ids_}) {}

  // Each returns what is wrong with the record.
  Status take(const RecordedArrival& arrival);
  Status take(const RecordedCancel& cancel);
  Status take(const RecordedPause& pause);
  Status take(const RecordedReset&);
  Status take(const RecordedPlan& plan);
  Status take(const RecordedResult& result);
  Status take(const RecordingHeader&) { return {}; }  // there is one, and it has been read
  Status take(const RecordingEnd&) { return {}; }

  bool has_diverged() const { return has_diverged_; }
  ReplayReport& report() { return report_; }

 private:
  Status advance(double now_ms);
  Status check(const RecordedResult& result) const;
  void compare(const RowsResult& found, const RowsResult& expected, size_t rows_idx);
  void add_difference(std::string what);

  Executor* executor_;
  // As far as output has needed them. They stay where they are: the scheduler looks at them.
  std::vector<std::string> bytes_;
  std::vector<uint8_t> is_control_;
  std::vector<int32_t> eos_token_ids_;
  Scheduler scheduler_;

  std::unordered_set<RequestHandle> handles_;  // of all requests ever
  double now_ms_ = 0;
  const StepPlan* plan_ = nullptr;  // whose result is to come
  std::vector<int32_t> num_samples_;  // of its rows: commit() takes them away
  StepResult recorded_, computed_;
  bool has_diverged_ = false;
  ReplayReport report_;
};

Error impossible(const std::string& what) { return {Code::kCorrupt, what}; }

Status Replay::advance(double now_ms) {
  if (now_ms < now_ms_) {
    return impossible(format("now_ms: found ", now_ms, ", expected at least ", now_ms_));
  }
  now_ms_ = now_ms;
  return {};
}

Status Replay::take(const RecordedArrival& arrival) {
  RETURN_IF_ERROR(advance(arrival.now_ms));
  if (!handles_.insert(arrival.handle).second) {
    return impossible(format("handle: found ", arrival.handle, " again, expected a new one"));
  }
  const int32_t last_choice = std::numeric_limits<int32_t>::max() - kMaxChoices;
  if (arrival.request.choice_idx < 0 || arrival.request.choice_idx > last_choice) {
    return impossible(format("choice_idx: found ", arrival.request.choice_idx, ", expected 0 to ",
                             last_choice));
  }
  RETURN_IF_ERROR(scheduler_.check(arrival.request));
  const Status status = scheduler_.on_arrival(arrival.handle, arrival.request, now_ms_);
  if (!status.ok() && status.error().code != Code::kExhausted) return status;  // the queue was full
  ++report_.num_requests;
  return {};
}

Status Replay::take(const RecordedCancel& cancel) {
  scheduler_.on_cancel(cancel.handle);
  return {};
}

Status Replay::take(const RecordedPause& pause) {
  RETURN_IF_ERROR(advance(pause.now_ms));
  scheduler_.set_paused(pause.handle, pause.is_paused, now_ms_);
  return {};
}

Status Replay::take(const RecordedReset&) {
  scheduler_.reset_prefix_cache();
  return {};
}

Status Replay::take(const RecordedPlan& recorded) {
  if (plan_ != nullptr) return impossible("found a plan, expected the result of the one before");
  RETURN_IF_ERROR(advance(recorded.now_ms));
  plan_ = &scheduler_.plan(now_ms_);
  num_samples_.clear();
  std::vector<RecordedRows> rows;
  for (const PlannedRows& r : plan_->rows) {
    rows.push_back({r.sequence_id, r.first_position, r.num_rows, r.num_samples});
    num_samples_.push_back(r.num_samples);
  }
  has_diverged_ = true;
  if (plan_->step_id != recorded.step_id) {
    add_difference(format("found step ", plan_->step_id, ", expected step ", recorded.step_id));
  } else if (rows != recorded.rows) {
    add_difference(
        format("step ", recorded.step_id, ": ", describe_difference(rows, recorded.rows)));
  } else if (placement_digest(*plan_) != recorded.placement) {
    add_difference(format("step ", recorded.step_id, ": found the recorded rows in other places or "
                          "with other copies, starts or ends, expected all of them as recorded"));
  } else {
    has_diverged_ = false;
  }
  return {};
}

// The scheduler may rely on what it is given.
Status Replay::check(const RecordedResult& result) const {
  int64_t num_samples = 0;
  for (const int32_t num : num_samples_) num_samples += num;
  if (result.abandoned) num_samples = 0;
  if (int64_t(result.token_ids.size()) != num_samples) {
    return impossible(format("token_ids: found ", result.token_ids.size(), ", expected ",
                             num_samples, " as planned"));
  }
  const auto check_token = [&](int32_t id) -> Status {
    if (id >= 0 && id < int64_t(bytes_.size())) return {};
    return impossible(format("token id: found ", id, ", expected 0 to ", bytes_.size() - 1));
  };
  for (const int32_t id : result.token_ids) RETURN_IF_ERROR(check_token(id));
  for (const RecordedToken& token : result.new_tokens) RETURN_IF_ERROR(check_token(token.token_id));
  for (const RecordedError& error : result.errors) {
    const bool is_planned =
        !result.abandoned && error.rows_idx >= 0 && error.rows_idx < int64_t(num_samples_.size()) &&
        error.sample_idx >= -1 && error.sample_idx < num_samples_[size_t(error.rows_idx)];
    if (!is_planned) {
      return impossible(format("errors: found rows ", error.rows_idx, ", sample ", error.sample_idx,
                               ", expected those of the plan"));
    }
  }
  return {};
}

Status Replay::take(const RecordedResult& result) {
  if (plan_ == nullptr) return impossible("found a result, expected a plan before it");
  RETURN_IF_ERROR(check(result));
  for (const RecordedToken& token : result.new_tokens) {
    bytes_[size_t(token.token_id)] = token.bytes;
    is_control_[size_t(token.token_id)] = token.is_control;
  }
  recorded_.elapsed_ms = result.elapsed_ms;
  recorded_.abandoned = result.abandoned;
  recorded_.rows.assign(plan_->rows.size(), {});
  size_t next = 0;
  for (size_t i = 0; i < plan_->rows.size() && !result.abandoned; ++i) {
    const PlannedRows& rows = plan_->rows[i];
    for (int32_t c = 0; c < rows.num_samples; ++c) {
      recorded_.rows[i].samples.push_back({result.token_ids[next++], {}, {}});
    }
    if (!rows.prompt_logprobs) continue;
    const int64_t last = std::min(rows.first_position + rows.num_rows, rows.num_prompt_tokens - 1);
    recorded_.rows[i].prompt_logprobs.resize(size_t(std::max<int64_t>(0, last - rows.first_position)));
  }
  for (const RecordedError& error : result.errors) {
    RowsResult& rows = recorded_.rows[size_t(error.rows_idx)];
    auto& to = error.sample_idx < 0 ? rows.error : rows.samples[size_t(error.sample_idx)].error;
    to = Error{error.code, error.message};
  }
  if (executor_ != nullptr) {
    AbandonAtOnce abandon;
    executor_->run(*plan_, result.abandoned ? &abandon : nullptr, computed_);
    for (size_t i = 0; i < plan_->rows.size() && !result.abandoned; ++i) {
      compare(computed_.rows[i], recorded_.rows[i], i);
    }
  }
  if (!result.abandoned) {
    report_.num_steps += plan_->num_rows > 0;
    report_.num_rows += plan_->num_rows;
    for (const RowsResult& rows : recorded_.rows) {
      for (const SampledToken& sample : rows.samples) {
        report_.num_tokens += !rows.error && !sample.error;
      }
    }
  }
  plan_ = nullptr;
  scheduler_.commit(recorded_, [](RequestHandle, int32_t, StreamEvent&) {});
  return {};
}

std::string describe(const std::optional<Error>& error) {
  return error ? format("the error \"", error->message, "\"") : std::string("no error");
}

void Replay::compare(const RowsResult& found, const RowsResult& expected, size_t rows_idx) {
  const PlannedRows& rows = plan_->rows[rows_idx];
  const auto is_equal = [](const std::optional<Error>& a, const std::optional<Error>& b) {
    return a.has_value() == b.has_value() && (!a || a->message == b->message);
  };
  const int64_t position = rows.first_position + rows.num_rows;
  const auto where = [&](int32_t choice) {
    return format("step ", plan_->step_id, ", sequence ", rows.sequence_id + choice, ", position ",
                  position, ": found ");
  };
  if (!is_equal(found.error, expected.error)) {
    return add_difference(
        format(where(0), describe(found.error), ", expected ", describe(expected.error)));
  }
  for (int32_t c = 0; c < rows.num_samples && !found.error; ++c) {
    const SampledToken& a = found.samples[size_t(c)];
    const SampledToken& b = expected.samples[size_t(c)];
    if (!is_equal(a.error, b.error)) {
      add_difference(format(where(c), describe(a.error), ", expected ", describe(b.error)));
    } else if (!a.error && a.token_id != b.token_id) {
      add_difference(format(where(c), "token ", a.token_id, ", expected ", b.token_id));
    }
  }
}

void Replay::add_difference(std::string what) {
  ++report_.num_differences;
  if (report_.differences.size() < ReplayReport::kMaxShown) {
    report_.differences.push_back(std::move(what));
  }
}

Status check(const RecordingHeader& header) {
  const auto within = [](const char* what, int64_t found, int64_t least, int64_t most) -> Status {
    if (found >= least && found <= most) return {};
    return impossible(format(what, ": found ", found, ", expected ", least, " to ", most));
  };
  RETURN_IF_ERROR(validate(header.scheduler));
  RETURN_IF_ERROR(within("num_blocks", header.scheduler.num_blocks, 1, kMaxBlocks));
  RETURN_IF_ERROR(within("max_num_snapshots", header.scheduler.max_num_snapshots, 0, kMaxSnapshots));
  RETURN_IF_ERROR(
      within("layer_reach: num_layers", header.scheduler.layer_reach.num_layers, 0, kMaxLayers));
  RETURN_IF_ERROR(within("layer_reach: sliding_window",
                         header.scheduler.layer_reach.sliding_window, 1, kMaxBlockSize));
  RETURN_IF_ERROR(within("vocab_size", header.vocab_size, 1, kMaxVocabSize));
  for (const int32_t id : header.eos_token_ids) {
    RETURN_IF_ERROR(within("eos_token_ids", id, 0, header.vocab_size - 1));
  }
  return {};
}

Error at_line(int64_t line, const Error& error) {
  return {error.code, format("line ", line, ": ", error.message)};
}

}  // namespace

// ---- The model.

ReplayModel::ReplayModel(std::unique_ptr<LoadedModel> model, KvStore store,
                         std::vector<int32_t> eos_token_ids)
    : model_(std::move(model)),
      store_(std::move(store)),
      eos_token_ids_(std::move(eos_token_ids)),
      executor_(*model_, store_, eos_token_ids_) {
  const ScopedFpEnvironment fp_environment;
  numerics_id_ = millrace::numerics_id(numerics_digest(model_->kernels(), model_->kernel_context()),
                                       model_->model().numerics);
}

Result<std::unique_ptr<ReplayModel>> ReplayModel::open(const RecordingHeader& header,
                                                       LoadOptions options,
                                                       std::vector<int32_t> token_map,
                                                       const OpenProgress& progress) {
  for (const Numerics numerics : {Numerics::kReference, Numerics::kFp32}) {
    if (numerics_name(numerics) == header.numerics) options.numerics = numerics;
  }
  if (numerics_name(options.numerics) != header.numerics) {
    return impossible(format("numerics: found ", header.numerics, ", expected reference or fp32"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model,
                   LoadedModel::open(options, std::move(token_map), progress));
  ASSIGN_OR_RETURN(const ModelIdentity identity,
                   identify_model(options.model_dir, model->checkpoint()));
  if (identity != header.model || model->config().vocab_size != header.vocab_size) {
    return Error{Code::kInvalidArgument,
                 format(options.model_dir, ": found a model with config.json ",
                        identity.config_sha256, " and tensors ", identity.tensors_sha256,
                        ", expected that of the recording: ", header.model.config_sha256, " and ",
                        header.model.tensors_sha256)};
  }
  const SchedulerOptions& scheduling = header.scheduler;
  const KvLayout layout =
      kv_layout(model->config(), kv_format_of(model->model().numerics), scheduling.block_size);
  if (layout.block_size != scheduling.block_size) {
    return impossible(format("block_size: found ", scheduling.block_size, ", expected ",
                             layout.block_size, " of this model"));
  }
  if (scheduling.layer_reach.num_layers > 0 && scheduling.layer_reach != model->model().reach) {
    return impossible("layer_reach: found that of another model");
  }
  ASSIGN_OR_RETURN(KvStore store,
                   KvStore::create(layout, scheduling.num_blocks,
                                   scheduling.max_num_seqs + scheduling.max_num_snapshots));
  return std::unique_ptr<ReplayModel>(
      new ReplayModel(std::move(model), std::move(store), header.eos_token_ids));
}

// ---- The run.

Result<RecordingHeader> read_header(std::string_view recording) {
  RecordingReader reader(recording);
  Result<std::optional<Record>> first = reader.next();
  RETURN_IF_ERROR(first);
  auto* header = std::get_if<RecordingHeader>(&*first.value());
  MR_CHECK(header != nullptr);
  const Status status = check(*header);
  if (!status.ok()) return at_line(1, status.error());
  return std::move(*header);
}

Result<ReplayReport> replay(std::string_view recording, Executor* executor) {
  const ScopedFpEnvironment fp_environment;
  ASSIGN_OR_RETURN(const RecordingHeader header, read_header(recording));
  RecordingReader reader(recording);
  Replay replay(header, executor);
  // What came while a step was computed comes behind its plan, and changes nothing of the step.
  while (!replay.has_diverged()) {
    const Result<std::optional<Record>> record = reader.next();
    RETURN_IF_ERROR(record);
    if (!record.value()) break;
    const Status status =
        std::visit([&](const auto& item) { return replay.take(item); }, *record.value());
    if (!status.ok()) return at_line(reader.line(), status.error());
  }
  ReplayReport report = std::move(replay.report());
  report.is_complete = reader.is_complete();
  report.num_lines = reader.line();
  return report;
}

}  // namespace millrace
