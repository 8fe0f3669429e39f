#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "base/format.h"
#include "batch_lines.h"
#include "commands.h"
#include "console.h"
#include "llm/llm.h"
#include "model_flags.h"
#include "named_files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Answered requests that wait for an earlier one to be written, for each that is running.
constexpr int64_t kWindowsAhead = 8;

constexpr int64_t kNoLimit = int64_t{1} << 30;

Error system_error(const std::string& file, const char* what) {
  return {Code::kUnavailable, format(file, ": ", what, ": ", std::strerror(errno))};
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

std::string folder_name(const fs::path& folder) {
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  return error ? folder.string() : whole.filename().string();
}

std::string quoted(const std::optional<std::string>& id) {
  return id ? format("\"", *id, "\"") : "null";
}

// The input, line by line, without empty lines.
class InputLines {
 public:
  Status open(const std::string& file) {
    if (file == "-") return {};
    file_.open(file, std::ios::binary);
    if (!file_) return system_error(file, "cannot be read");
    input_ = &file_;
    file_name_ = file;
    std::error_code error;
    if (fs::is_directory(file, error)) {
      return Error{Code::kInvalidArgument, format(file, ": is a directory, expected a file")};
    }
    if (!fs::is_regular_file(file, error)) return {};  // a pipe can be read only once
    // Counting costs a pass over the file; without a count there is no end to be told.
    std::string line;
    int64_t count = 0;
    while (std::getline(file_, line)) count += !is_blank(line);
    if (file_.bad()) return system_error(file, "cannot be read");
    num_lines_ = count;
    file_.clear();
    file_.seekg(0);
    return {};
  }

  bool next(std::string& line) {
    do {
      is_at_end_ = is_at_end_ || !std::getline(*input_, line);
      if (is_at_end_) return false;
      ++line_number_;
    } while (is_blank(line));
    return true;
  }

  bool is_at_end() const { return is_at_end_; }  // next() has found no more

  // Whether it has ended, or could not be read any further.
  Status status() const {
    if (!input_->bad()) return {};
    return Error{Code::kUnavailable, format(file_name_, ": cannot be read to its end")};
  }

  int64_t line_number() const { return line_number_; }                 // of the line read last
  std::optional<int64_t> num_lines() const { return num_lines_; }      // none: of a pipe

 private:
  std::string file_name_ = "stdin";
  std::ifstream file_;
  std::istream* input_ = &std::cin;
  int64_t line_number_ = 0;
  bool is_at_end_ = false;
  std::optional<int64_t> num_lines_;
};

// The output: whole lines only. Holds a lock, so that two runs cannot write one file.
class OutputLines {
 public:
  ~OutputLines() {
    if (is_new_) ::unlink(name_.c_str());
    if (fd_ >= 0 && is_file_) ::close(fd_);
  }

  Status open(const std::string& file, bool overwrite) {
    name_ = file;
    if (file == "-") {
      fd_ = STDOUT_FILENO;
      return {};
    }
    fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const bool is_new = fd_ >= 0;
    if (!is_new) fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) return system_error(file, "cannot be written");
    std::error_code error;
    is_file_ = true;
    has_past_ = fs::is_regular_file(file, error);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    if (has_past_ && ::fcntl(fd_, F_OFD_SETLK, &lock) != 0) {
      return Error{Code::kUnavailable, format(file, ": another process is writing it")};
    }
    is_new_ = is_new;
    starts_anew_ = overwrite;
    return {};
  }

  // Reads what an earlier run has written and goes on behind it; a line that was begun is dropped.
  // Every line must answer the line of the input in its place. Gives their number.
  Result<int64_t> resume(InputLines& input, const std::string& fingerprint,
                         const BatchOptions& options, std::unordered_set<std::string>& ids) {
    int64_t num_lines = 0, num_bytes = 0;
    std::ifstream past;
    if (has_past_ && !starts_anew_) past.open(name_, std::ios::binary);
    std::string line, asked;
    const auto wrong = [&](const std::string& found, const std::string& expected) {
      return Error{Code::kInvalidArgument,
                   format(name_, ": line ", num_lines + 1, ": found ", found, ", expected ",
                          expected, "; --overwrite starts anew")};
    };
    while (past.is_open() && std::getline(past, line) && !past.eof()) {
      const Result<AnsweredLine> answered = read_answered_line(line, options.limits.json);
      if (!answered.has_value()) return wrong("something else", "a line of a batch's output");
      if (!input.next(asked)) return wrong("one more line", "as many as the input has");
      const std::optional<std::string> id = custom_id_of(asked, options.limits.json);
      if (id != answered.value().custom_id) {
        return wrong(format("custom_id ", quoted(answered.value().custom_id)),
                     format(quoted(id), ", as line ", input.line_number(), " of the input"));
      }
      if (answered.value().id != batch_id(input.line_number(), asked, options)) {
        return wrong(format("the answer to another request, or under other flags (custom_id ",
                            quoted(id), ")"),
                     format("that to line ", input.line_number(), " of the input"));
      }
      const std::string& other = answered.value().system_fingerprint;
      if (!other.empty() && other != fingerprint) {
        return wrong(format("system_fingerprint ", other), fingerprint);
      }
      if (id) ids.insert(*id);
      ++num_lines;
      num_bytes += int64_t(line.size()) + 1;
    }
    if (!is_begun_line(line)) {
      return wrong("something else", "a line of a batch's output, or its beginning");
    }
    if (past.bad()) return system_error(name_, "cannot be read");
    is_new_ = false;
    if (has_past_ && (::ftruncate(fd_, num_bytes) != 0 || ::lseek(fd_, num_bytes, SEEK_SET) < 0)) {
      return system_error(name_, "cannot be written");
    }
    return num_lines;
  }

  Status write(std::string_view line) {
    while (!line.empty()) {
      const ssize_t count = ::write(fd_, line.data(), line.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return system_error(name_, "cannot be written");
      line.remove_prefix(size_t(count));
    }
    return {};
  }

  // Until it is on the disk.
  Status finish() {
    if (has_past_ && ::fsync(fd_) != 0) return system_error(name_, "cannot be written");
    return {};
  }

 private:
  std::string name_;
  int fd_ = -1;
  bool is_file_ = false;   // not stdout
  bool is_new_ = false;    // made by this run, which has not begun to answer
  bool has_past_ = false;  // a regular file
  bool starts_anew_ = false;
};

// Which requests have something to read. Outlives the requests: the engine's thread may still be
// about to call.
class ReadyList {
 public:
  void add(int64_t number) {
    {
      const std::lock_guard lock(mutex_);
      numbers_.push_back(number);
    }
    changed_.notify_one();
  }

  void wait(std::vector<int64_t>& numbers) {
    numbers.clear();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !numbers_.empty(); });
    numbers.swap(numbers_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> numbers_;
};

// "[####------] 123 of 1000 requests, 456 tokens/s, 0:32 left" on a terminal, redrawn; elsewhere
// without the bar, ever more seldom.
class BatchProgress {
 public:
  BatchProgress(int64_t num_done, std::optional<int64_t> num_all)
      : num_before_(num_done), num_all_(num_all), is_terminal_(stderr_is_terminal()) {}
  ~BatchProgress() {
    if (is_line_open_) std::cerr << "\n";
  }

  void show(int64_t num_done, int64_t num_tokens, bool at_once) {
    const Clock::time_point now = Clock::now();
    const std::chrono::milliseconds pause = is_terminal_ ? std::chrono::milliseconds(100) : pause_;
    if (!at_once && now - last_ < pause) return;
    last_ = now;
    if (!is_terminal_) pause_ = std::min(pause_ * 2, std::chrono::milliseconds(60000));
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const int64_t num_new = num_done - num_before_;
    std::string line;
    if (num_all_ && is_terminal_) {
      const auto filled = size_t(kBar * num_done / std::max<int64_t>(*num_all_, 1));
      line = "[" + std::string(filled, '#') + std::string(size_t(kBar) - filled, '-') + "] ";
    }
    line += format(num_done, num_all_ ? format(" of ", *num_all_) : "", " requests, ",
                   int64_t(double(num_tokens) / std::max(seconds, 1e-3)), " tokens/s");
    if (num_all_ && num_new > 0 && num_done < *num_all_) {
      const auto left = int64_t(seconds / double(num_new) * double(*num_all_ - num_done));
      line += format(", ", left / 60, left % 60 < 10 ? ":0" : ":", left % 60, " left");
    }
    if (is_terminal_) {
      std::cerr << "\r\033[K" << line << std::flush;
      is_line_open_ = true;
    } else {
      std::cerr << line << "\n";
    }
  }

 private:
  static constexpr int64_t kBar = 20;

  const int64_t num_before_;
  const std::optional<int64_t> num_all_;
  const bool is_terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
  std::chrono::milliseconds pause_{1000};  // of lines that stay
  bool is_line_open_ = false;
};

class Batch {
 public:
  Batch(Llm& llm, const BatchOptions& options, std::string model_name)
      : llm_(llm), options_(options), model_name_(std::move(model_name)) {}

  // Answers every line from here on. kCancelled: Ctrl-C.
  Status run(InputLines& input, OutputLines& output, int64_t num_done,
             std::unordered_set<std::string> ids) {
    ids_ = std::move(ids);
    num_written_ = num_done;
    BatchProgress progress(num_done, input.num_lines());
    const Interrupts interrupts;
    std::vector<int64_t> ready;
    while (true) {
      fill(input);
      RETURN_IF_ERROR(write_finished(output));
      progress.show(num_written_, num_tokens_, /*at_once=*/false);
      if (window_.empty() && input.is_at_end()) break;
      if (window_.empty()) continue;
      if (Interrupts::take()) return Error{Code::kCancelled, interrupted_text(input)};
      ready_->wait(ready);
      for (int64_t number : ready) {
        if (number >= first_number_) take_events(window_[size_t(number - first_number_)]);
      }
    }
    progress.show(num_written_, num_tokens_, /*at_once=*/true);
    RETURN_IF_ERROR(input.status());
    return output.finish();
  }

  int64_t num_written() const { return num_written_; }
  int64_t num_refused() const { return num_refused_; }

 private:
  // One line of the input on its way.
  struct Work {
    std::string id, custom_id;
    openai::CompletionRequest request;
    std::vector<Prompt> prompts;
    std::vector<std::unique_ptr<AnswerStream>> streams;  // one for each prompt
    std::optional<Error> error;                          // of a stream
    std::string output;                                  // when it has ended
  };

  std::string interrupted_text(const InputLines& input) const {
    return format("stopped after ", num_written_,
                  input.num_lines() ? format(" of ", *input.num_lines()) : "",
                  " requests; the same command goes on from there");
  }

  void fill(InputLines& input) {
    const int64_t most = 2 * llm_.engine().info().max_num_seqs;
    std::string line;
    while (num_running_ < most && int64_t(window_.size()) < most * kWindowsAhead &&
           input.next(line)) {
      window_.push_back(begin(line, input.line_number()));
      Work& work = window_.back();
      if (work.output.empty()) submit(work, first_number_ + int64_t(window_.size()) - 1);
    }
  }

  // Parses and encodes; a line that cannot be answered has its output at once.
  Work begin(std::string_view line, int64_t line_number) {
    Work work;
    work.id = batch_id(line_number, line, options_);
    std::variant<BatchLine, BatchRefusal> parsed = parse_batch_line(line, options_);
    if (auto* refusal = std::get_if<BatchRefusal>(&parsed)) {
      const bool is_repeated = refusal->custom_id && !ids_.insert(*refusal->custom_id).second;
      refuse(work, is_repeated ? repeated(*refusal->custom_id) : *refusal);
      return work;
    }
    BatchLine& asked = std::get<BatchLine>(parsed);
    work.custom_id = asked.custom_id;
    if (!ids_.insert(asked.custom_id).second) {
      refuse(work, repeated(asked.custom_id));
      return work;
    }
    warn_of_other_model(asked.request.model);
    work.request = std::move(asked.request);
    // Errors while it runs name it.
    if (work.request.request_id.empty()) work.request.request_id = work.custom_id;
    Result<std::vector<Prompt>> prompts = openai::encode_prompts(work.request, llm_);
    if (prompts.has_value()) {
      work.prompts = std::move(prompts.value());
    } else {
      refuse(work, {work.custom_id, prompts.error(), /*is_request=*/true});
    }
    return work;
  }

  static BatchRefusal repeated(const std::string& custom_id) {
    return {custom_id, {Code::kInvalidArgument, format("custom_id: found ", quoted(custom_id),
                                                       " twice, expected it once")}};
  }

  void refuse(Work& work, const BatchRefusal& refusal) {
    ++num_refused_;
    work.output = refused_line(work.id, refusal);
  }

  void warn_of_other_model(const std::string& model) {
    if (model.empty() || model == model_name_ || !warned_.insert(model).second) return;
    warn(format("model: requests ask for ", model, ", ", model_name_, " answers"));
  }

  void submit(Work& work, int64_t number) {
    for (const Prompt& prompt : work.prompts) {
      Result<std::unique_ptr<AnswerStream>> stream =
          llm_.submit(openai::make_answer_request(work.request, prompt, llm_),
                      [ready = ready_, number] { ready->add(number); });
      if (!stream.has_value()) {
        work.streams.clear();
        refuse(work, {work.custom_id, stream.error(), /*is_request=*/true});
        return;
      }
      work.streams.push_back(std::move(stream.value()));
    }
    num_running_ += int64_t(work.streams.size());
  }

  void take_events(Work& work) {
    if (!work.output.empty()) return;
    bool has_ended = true;
    for (const std::unique_ptr<AnswerStream>& stream : work.streams) {
      while (const AnswerEvent* event = stream->next(std::chrono::milliseconds(0))) {
        num_tokens_ += event->step.token_id.has_value();
        if (event->step.error && !work.error) work.error = *event->step.error;
      }
      has_ended &= stream->is_finished();
    }
    if (has_ended) finish(work);
  }

  void finish(Work& work) {
    num_running_ -= int64_t(work.streams.size());
    if (work.error) {
      refuse(work, {work.custom_id, *work.error, /*is_request=*/true});
    } else {
      std::vector<std::vector<Answer>> answers;
      for (const auto& stream : work.streams) answers.push_back(stream->take_answers());
      openai::ResponseContext context;
      context.id = work.id;
      context.model = work.request.model.empty() ? model_name_ : work.request.model;
      context.system_fingerprint = llm_.engine().info().numerics_id;
      context.tokenizer = &llm_.tokenizer();
      const std::string body =
          openai::completion_body(work.request, work.prompts, answers, context);
      work.output = answered_line(work.id, work.custom_id, 200, body);
    }
    work.streams.clear();
    work.prompts.clear();
  }

  Status write_finished(OutputLines& output) {
    while (!window_.empty() && !window_.front().output.empty()) {
      RETURN_IF_ERROR(output.write(window_.front().output));
      window_.pop_front();
      ++first_number_;
      ++num_written_;
    }
    return {};
  }

  Llm& llm_;
  const BatchOptions& options_;
  const std::string model_name_;
  std::shared_ptr<ReadyList> ready_ = std::make_shared<ReadyList>();
  std::deque<Work> window_;   // in the order of the input
  int64_t first_number_ = 0;  // of window_'s first
  int64_t num_running_ = 0, num_written_ = 0, num_refused_ = 0, num_tokens_ = 0;
  std::unordered_set<std::string> ids_, warned_;
};

}  // namespace

int run_batch(const BatchCommandOptions& flags) {
  const Status apart =
      check_apart({{"--input", flags.input}},
                  {{"--output", flags.output}, {"--record", flags.model.record_file}});
  if (!apart.ok()) return fail_usage(apart.error());
  InputLines input;
  if (const Status status = input.open(flags.input); !status.ok()) return fail(status.error());
  OutputLines output;
  if (const Status status = output.open(flags.output, flags.overwrite); !status.ok()) {
    return fail(status.error());
  }
  EngineFlags engine = flags.engine;
  engine.max_waiting = kNoLimit;  // there are never more than the window has
  const Result<std::unique_ptr<Llm>> llm = open_llm(flags.model, engine);
  if (!llm.has_value()) return fail(llm.error());

  BatchOptions options;
  options.defaults = llm.value()->default_sampling();
  options.seed = flags.seed;
  options.served_model_name = flags.served_model_name;
  options.limits.max_logprobs = flags.max_logprobs;
  const Result<std::string> model_dir = resolve_model_dir(flags.model.model_dir);
  const std::string name = flags.served_model_name.empty() ? folder_name(model_dir.value())
                                                           : flags.served_model_name;

  std::unordered_set<std::string> ids;
  const Result<int64_t> num_done =
      output.resume(input, llm.value()->engine().info().numerics_id, options, ids);
  if (!num_done.has_value()) return fail(num_done.error());
  if (num_done.value() > 0) {
    std::cerr << format("resuming behind ", num_done.value(), " answered requests\n");
  }
  Batch batch(*llm.value(), options, name);
  const Status status = batch.run(input, output, num_done.value(), std::move(ids));
  if (!status.ok()) return fail(status.error());
  std::cerr << format(batch.num_written(), " requests in ", flags.output, ", ",
                      batch.num_refused(), " of them refused in this run\n");
  return kExitOk;
}

}  // namespace millrace
