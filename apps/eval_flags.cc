#include "eval_flags.h"

#include <algorithm>
#include <string>
#include <vector>

#include "flag_groups.h"

namespace millrace {
namespace {

constexpr int64_t kMost = int64_t(1) << 40;

template <class T>
CLI::Option* add_list(CLI::App& command, const char* name, std::vector<T>& values,
                      const std::string& help, const std::string& group) {
  return command.add_option(name, values, help)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group)
      ->capture_default_str();
}

void add_text_flags(CLI::App& command, EvalCommandOptions& options) {
  const std::string group = "Text (nll)";
  command.add_option("--file", options.file, "the text, UTF-8; - is stdin")
      ->check(check_path)
      ->type_name("FILE")
      ->group(group);
  command.add_flag("--special", options.special, "recognise control tokens spelled in the text")
      ->group(group);
  const auto add = [&](const char* name, auto& value, const char* help, int64_t least) {
    return command.add_option(name, value, help)
        ->transform(integer<int64_t>(least, kMost))
        ->type_name("N")
        ->group(group);
  };
  add("--limit", options.limit, "only the first tokens of the text", 1);
  add("--window", options.window, "most tokens that are computed together", 2)
      ->capture_default_str();
  add("--stride", options.stride,
      "tokens that a window adds to those before it; default: half of --window", 1);
}

void add_task_flags(CLI::App& command, EvalCommandOptions& options) {
  const std::string group = "Cases (needle, copy)";
  add_list(command, "--form", options.forms,
           "chat: a user's message and the assistant's reply; plain: one text", group)
      ->check(CLI::IsMember({"chat", "plain"}).description(""))
      ->type_name("NAME,...");
  command.add_option("--cases", options.num_cases, "of each length and depth")
      ->transform(integer<int64_t>(1, 1000000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  add_list(command, "--lengths", options.lengths, "needle: tokens of the whole prompt", group)
      ->transform(integer<int64_t>(1, kMost))
      ->type_name("N,...");
  add_list(command, "--depths", options.depths,
           "needle: how much of the filler stands before the fact, in percent", group)
      ->transform(integer<int64_t>(0, 100))
      ->type_name("N,...");
  add_list(command, "--copy-lengths", options.copy_lengths, "copy: words and numbers", group)
      ->transform(integer<int64_t>(1, 1000000))
      ->type_name("N,...");
}

void add_output_flags(CLI::App& command, EvalCommandOptions& options) {
  const std::string group = "Output";
  command.add_option("--summary", options.summary_file, "write every figure as JSON")
      ->check(check_file)
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--cases-file", options.cases_file,
                  "write a JSON line for each case of each mode, with its tokens")
      ->check(check_file)
      ->type_name("FILE")
      ->group(group);
  command.add_flag("--json", options.json, "the JSON of --summary on stdout instead of the tables")
      ->group(group);
}

// The same cases once more would count as further ones.
template <class T>
void check_different(const char* flag, const std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::count(values.begin(), values.begin() + int64_t(i), values[i]) == 0) continue;
    throw CLI::ValidationError(flag, format("found ", values[i], " twice, expected it once"));
  }
}

// What cannot be seen from one flag alone.
void check_together(const EvalCommandOptions& options) {
  check_different("--task", options.tasks);
  check_different("--form", options.forms);
  check_different("--lengths", options.lengths);
  check_different("--depths", options.depths);
  check_different("--copy-lengths", options.copy_lengths);
  check_different("--numerics", options.numerics);
  const bool is_text_asked = std::count(options.tasks.begin(), options.tasks.end(), "nll") > 0;
  if (is_text_asked && options.file.empty()) throw CLI::RequiredError("--file, of --task nll");
  if (options.stride.value_or(1) >= options.window) {
    throw CLI::ValidationError(
        "--stride",
        format("found ", *options.stride, ", expected fewer than --window, ", options.window));
  }
}

}  // namespace

void add_eval(CLI::App& app, EvalCommandOptions& options, std::function<int()>& action) {
  CLI::App& command = *app.add_subcommand("eval", "what a numerics mode costs in quality");
  command.footer(
      "Examples:\n"
      "  millrace eval --file book.txt --task nll --numerics fp32,reference\n"
      "  millrace eval models/nano --task needle --lengths 300,1000 --cases 20\n"
      "docs/eval.md says what is computed and how to read it.");
  CLI::Option* model_dir =
      command.add_option("MODEL_DIR", options.model.model_dir, "as --model")->check(check_path);
  add_list(command, "--task", options.tasks,
           "nll: how likely a text is; needle: a fact among filler; copy: words said once more; "
           "default: nll if there is a --file, needle, copy",
           "Tasks")
      ->check(CLI::IsMember({"nll", "needle", "copy"}).description(""))
      ->type_name("NAME,...");
  command.add_option("--seed", options.seed, "of everything that is drawn")
      ->transform(integer<uint64_t>())
      ->type_name("N")
      ->capture_default_str()
      ->group("Tasks");
  add_text_flags(command, options);
  add_task_flags(command, options);
  add_output_flags(command, options);
  add_model_flags(command, options.model);
  command.get_option("--model")->excludes(model_dir);
  // Several here, one after the other.
  command.remove_option(command.get_option("--numerics"));
  add_list(command, "--numerics", options.numerics,
           "the modes; figures are compared with those of the first", "Model")
      ->check(CLI::IsMember({"reference", "fp32"}).description(""))
      ->type_name("MODE,...");
  add_context_flag(command, options.model);
  command.callback([&] {
    check_together(options);
    action = [&] { return run_eval(options); };
  });
}

}  // namespace millrace
