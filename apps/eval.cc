#include <algorithm>
#include <deque>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/sha256.h"
#include "chat/wire_text.h"
#include "commands.h"
#include "console.h"
#include "eval/cases.h"
#include "eval/report.h"
#include "llm/llm.h"
#include "model_flags.h"
#include "named_files.h"
#include "sys/file.h"

namespace millrace {
namespace {

// Cases that are computed at a time: short ones share a step.
constexpr int64_t kNumAtATime = 16;

Error wrong_argument(std::string_view what, const std::string& found, const std::string& expected) {
  return {Code::kInvalidArgument, format(what, ": found ", found, ", expected ", expected)};
}

// A task, with its cases as tokens.
struct Work {
  EvalTask task;
  std::vector<EvalCase> cases;
};

Result<std::string> read_text(const std::string& file) {
  ASSIGN_OR_RETURN(std::string text, read_input(file));
  if (text.empty()) return wrong_argument(file, "no text", "some");
  RETURN_IF_ERROR(check_utf8(file, text));
  return text;
}

// The cases of an evaluation. They are the same for every mode.
class CaseMaker {
 public:
  CaseMaker(const EvalCommandOptions& options, const Llm& llm)
      : options_(options),
        llm_(llm),
        tokenizer_(llm.tokenizer()),
        bos_(tokenizer_.token_id(wire::kBos)),
        eos_(tokenizer_.token_id(wire::kEos)) {}

  Result<Work> text(const std::string& text) const {
    const int64_t stride = options_.stride.value_or(options_.window / 2);
    RETURN_IF_ERROR(check_length("--window", options_.window));
    const auto mode = options_.special ? SpecialTokens::kRecognise : SpecialTokens::kPlainText;
    std::vector<int32_t> ids = tokenizer_.encode(text, mode);
    // A text that begins with the begin token means the one in front of every window.
    if (bos_ && ids.front() == *bos_) ids.erase(ids.begin());
    if (options_.limit) ids.resize(std::min(ids.size(), size_t(*options_.limit)));
    const size_t least = bos_ ? 1 : 2;  // nothing comes before the first
    if (ids.size() < least) {
      return wrong_argument(options_.file, format(ids.size(), " tokens"),
                            format("at least ", least));
    }
    Work work;
    work.task.name = "nll";
    work.cases = text_windows(tokenizer_, ids, bos_, options_.window, stride);
    work.task.cells.resize(work.cases.size());
    return work;
  }

  Result<Work> needle(EvalForm form) const {
    Work work = begin("needle", form, options_.lengths);
    work.task.depths = options_.depths;
    for (size_t l = 0; l < options_.lengths.size(); ++l) {
      const int64_t length = options_.lengths[l];
      RETURN_IF_ERROR(check_length("--lengths", length));
      for (size_t d = 0; d < options_.depths.size(); ++d) {
        for (int64_t i = 0; i < options_.num_cases; ++i) {
          const uint64_t seed = case_seed(kNeedle, l, d, i);
          ASSIGN_OR_RETURN(EvalCase made, needle_case(form, seed, length, options_.depths[d]));
          work.cases.push_back(std::move(made));
          work.task.cells.push_back({l, d});
        }
      }
    }
    return work;
  }

  Result<Work> copy(EvalForm form) const {
    Work work = begin("copy", form, options_.copy_lengths);
    for (size_t l = 0; l < options_.copy_lengths.size(); ++l) {
      for (int64_t i = 0; i < options_.num_cases; ++i) {
        Random random(case_seed(kCopy, l, 0, i));
        ASSIGN_OR_RETURN(EvalCase made,
                         encode(form, copy_text(random, form, options_.copy_lengths[l])));
        RETURN_IF_ERROR(check_length("--copy-lengths", int64_t(made.token_ids.size())));
        work.cases.push_back(std::move(made));
        work.task.cells.push_back({l, 0});
      }
    }
    return work;
  }

 private:
  enum Purpose : uint64_t { kNeedle = 1, kCopy };

  static Work begin(const char* name, EvalForm form, const std::vector<int64_t>& lengths) {
    Work work;
    work.task.name = name;
    work.task.form = form == EvalForm::kChat ? "chat" : "plain";
    work.task.lengths = lengths;
    return work;
  }

  uint64_t case_seed(Purpose purpose, size_t length_idx, size_t depth_idx, int64_t i) const {
    return mix64(mix64(mix64(options_.seed, purpose), length_idx << 32 | depth_idx), uint64_t(i));
  }

  Status check_length(const char* flag, int64_t num_tokens) const {
    const int64_t most = llm_.engine().max_model_len();
    if (num_tokens <= most) return {};
    return wrong_argument(flag, format(num_tokens, " tokens"),
                          format("at most ", most, ", the maximum context length"));
  }

  // With so much filler that the whole has `length` tokens, or a sentence less.
  Result<EvalCase> needle_case(EvalForm form, uint64_t seed, int64_t length, int64_t depth) const {
    const auto make = [&](int64_t num_filler_tokens) {
      Random random(seed);
      return encode(form,
                    needle_text(random, tokenizer_, form, num_filler_tokens, double(depth) / 100));
    };
    ASSIGN_OR_RETURN(const EvalCase bare, make(0));
    const auto least = int64_t(bare.token_ids.size());
    if (length < least) {
      return wrong_argument("--lengths", format(length, " tokens"),
                            format("at least ", least, ", which the facts and the question take"));
    }
    return make(length - least);
  }

  Result<EvalCase> encode(EvalForm form, const EvalText& text) const {
    if (form == EvalForm::kPlain) {
      std::vector<int32_t> front;
      if (bos_) front.push_back(*bos_);
      return make_case(tokenizer_, std::move(front), text.prompt + text.reply,
                       text.prompt.size() + text.judged_begin, text.prompt.size() + text.judged_end,
                       std::nullopt);
    }
    ChatRequest chat;
    chat.messages.push_back({.role = Role::kUser, .content = {{Part::Kind::kText, text.prompt}}});
    chat.thinking = false;
    ASSIGN_OR_RETURN(Prompt prompt, llm_.encode_chat(chat));
    return make_case(tokenizer_, std::move(prompt.token_ids), text.reply, text.judged_begin,
                     text.judged_end, text.judges_end ? eos_ : std::nullopt);
  }

  const EvalCommandOptions& options_;
  const Llm& llm_;
  const Tokenizer& tokenizer_;
  const std::optional<int32_t> bos_, eos_;
};

Result<std::vector<Work>> make_work(const EvalCommandOptions& options, const std::string& text,
                                    const Llm& llm) {
  const auto is_asked = [&](const char* task) {
    return std::count(options.tasks.begin(), options.tasks.end(), task) > 0 ||
           (options.tasks.empty() && (task != std::string_view("nll") || !options.file.empty()));
  };
  const CaseMaker maker(options, llm);
  std::vector<Work> all;
  if (is_asked("nll")) {
    ASSIGN_OR_RETURN(Work work, maker.text(text));
    all.push_back(std::move(work));
  }
  for (const std::string& name : options.forms) {
    const EvalForm form = name == "chat" ? EvalForm::kChat : EvalForm::kPlain;
    if (is_asked("needle")) {
      ASSIGN_OR_RETURN(Work work, maker.needle(form));
      all.push_back(std::move(work));
    }
    if (is_asked("copy")) {
      ASSIGN_OR_RETURN(Work work, maker.copy(form));
      all.push_back(std::move(work));
    }
  }
  return all;
}

// A case that is being computed.
struct OpenCase {
  size_t case_idx;
  std::unique_ptr<AnswerStream> stream;
};

Result<OpenCase> submit(Llm& llm, const std::vector<EvalCase>& cases, size_t case_idx) {
  AnswerRequest request;
  request.prompt.token_ids = cases[case_idx].token_ids;
  request.sampling.temperature = 0;
  request.sampling.seed = 0;
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = 0;
  ASSIGN_OR_RETURN(std::unique_ptr<AnswerStream> stream, llm.submit(std::move(request)));
  return OpenCase{case_idx, std::move(stream)};
}

// Takes what there is; waits for it if told so.
Status take_events(AnswerStream& stream, std::chrono::milliseconds wait) {
  while (const AnswerEvent* event = stream.next(wait)) {
    if (event->step.error) return *event->step.error;
    wait = std::chrono::milliseconds(0);
  }
  return {};
}

// kCancelled: Ctrl-C.
Result<std::vector<CaseScore>> score(Llm& llm, const Work& work, const std::string& mode) {
  Progress progress(format(mode, ": ", work.task.title()), "cases");
  std::vector<CaseScore> scores(work.cases.size());
  std::deque<OpenCase> open;
  size_t num_submitted = 0, num_done = 0;
  while (num_done < work.cases.size()) {
    while (num_submitted < work.cases.size() && int64_t(open.size()) < kNumAtATime) {
      ASSIGN_OR_RETURN(OpenCase next, submit(llm, work.cases, num_submitted));
      open.push_back(std::move(next));
      ++num_submitted;
    }
    if (Interrupts::take()) {
      return Error{Code::kCancelled, format("stopped after ", num_done, " of ", work.cases.size(),
                                            " cases of ", work.task.title(), ", ", mode)};
    }
    // All are read: one that nobody reads would have to rest.
    for (size_t i = 0; i < open.size(); ++i) {
      const std::chrono::milliseconds wait(i == 0 ? 50 : 0);
      RETURN_IF_ERROR(take_events(*open[i].stream, wait));
    }
    while (!open.empty() && open.front().stream->is_finished()) {
      const size_t idx = open.front().case_idx;
      const std::vector<Answer> answers = open.front().stream->take_answers();
      scores[idx] = score_case(work.cases[idx], answers[0].completion.prompt_logprobs);
      open.pop_front();
      progress(int64_t(++num_done), int64_t(work.cases.size()));
    }
  }
  return scores;
}

Result<EvalRun> evaluate(const EvalCommandOptions& options, std::vector<Work>& all) {
  EvalRun run;
  run.version = MILLRACE_VERSION;
  run.seed = options.seed;
  ASSIGN_OR_RETURN(run.model, resolve_model_dir(options.model.model_dir));
  std::string text;
  if (!options.file.empty()) {
    ASSIGN_OR_RETURN(text, read_text(options.file));
    run.file = {options.file, sha256(text), int64_t(text.size()), options.window,
                options.stride.value_or(options.window / 2)};
  }
  for (const std::string& name : options.numerics) {
    ModelFlags flags = options.model;
    flags.numerics = name;
    EngineFlags engine;
    engine.max_num_seqs = kNumAtATime;
    // Logits of every row are kept until its log-probabilities are known.
    engine.max_num_batched_tokens = flags.chunk;
    ASSIGN_OR_RETURN(const std::unique_ptr<Llm> llm, open_llm(flags, engine));
    const Interrupts interrupts;
    if (run.modes.empty()) {
      ASSIGN_OR_RETURN(all, make_work(options, text, *llm));
    }
    run.modes.push_back({name, llm->engine().info().numerics_id});
    for (Work& work : all) {
      ASSIGN_OR_RETURN(std::vector<CaseScore> scores, score(*llm, work, name));
      work.task.scores.push_back(std::move(scores));
    }
  }
  for (const Work& work : all) run.tasks.push_back(work.task);
  return run;
}

}  // namespace

int run_eval(const EvalCommandOptions& options) {
  const Status apart = check_apart(
      {{"--file", options.file}},
      {{"stdout", "-"}, {"--summary", options.summary_file}, {"--cases-file", options.cases_file}});
  if (!apart.ok()) return fail_usage(apart.error());
  for (const std::string& file : {options.summary_file, options.cases_file}) {
    const Status status = file.empty() ? Status() : check_writable(file);
    if (!status.ok()) return fail(status.error());
  }
  std::vector<Work> all;
  const Result<EvalRun> run = evaluate(options, all);
  if (!run.has_value()) return fail(run.error());
  const std::string json = eval_json(run.value()) + "\n";
  print(options.json ? json : eval_text(run.value()));
  if (!options.summary_file.empty()) {
    const Status status = write_file(options.summary_file, json);
    if (!status.ok()) return fail(status.error());
  }
  if (!options.cases_file.empty()) {
    std::string lines;
    for (const Work& work : all) {
      lines += eval_cases_jsonl(run.value(), work.task, work.cases);
    }
    const Status status = write_file(options.cases_file, lines);
    if (!status.ok()) return fail(status.error());
  }
  return kExitOk;
}

}  // namespace millrace
