// The program's flags, and which command they lead to. Everything behind a flag's name is in
// commands.h.

#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "bench_flags.h"
#include "commands.h"
#include "config_file.h"
#include "console.h"
#include "eval_flags.h"
#include "flag_groups.h"
#include "serve_flags.h"
#include "engine/loaded_model.h"
#include "model_flags.h"
#include "request/request.h"
#include "scheduler/scheduler.h"
#include "sys/fp_environment.h"
#include "sys/mapping_faults.h"

namespace millrace {
namespace {

std::string check_token_ids(const std::string& list) {
  const Result<std::vector<int32_t>> ids = parse_token_ids(list);
  if (!ids.has_value()) return ids.error().message;
  return ids.value().empty() ? "found no tokens, expected at least one" : "";
}

std::string check_seed(std::string& text) {
  uint64_t seed = 0;
  if (!parse_seed(text, seed)) return format("found \"", text, "\", expected ", kSeedRange);
  text = std::to_string(seed);
  return "";
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  const std::string group = "Sampling (defaults: the model's generation_config.json)";
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(group);
  };
  add("--temperature,--temp", flags.temperature, "0 to 2; 0: always the likeliest token");
  add("--top-k", flags.top_k, "only the k likeliest tokens; 0 or -1: all")
      ->transform(integer<int64_t>(-1));
  add("--top-p", flags.top_p, "only the likeliest tokens that together reach this probability");
  add("--min-p", flags.min_p, "only tokens with this fraction of the likeliest one's probability");
  add("--presence-penalty", flags.presence_penalty, "-2 to 2, on tokens that were generated");
  add("--frequency-penalty", flags.frequency_penalty, "-2 to 2, for each time they were generated");
  add("--repetition-penalty", flags.repetition_penalty,
      "above 0, on tokens of prompt and answer; 1: none");
  add("--logit-bias", flags.logit_bias,
      "added to a token's logit; beyond -100 to 100 it counts as these; may be repeated")
      ->type_name("ID=NUMBER")
      ->allow_extra_args(false);
  add("--allowed-token-ids", flags.allowed_token_ids, "only these tokens")
      ->check(check_token_ids)
      ->type_name("ID,ID,...");
  add("--bad-word", flags.bad_words, "text that must not come out; may be repeated")
      ->check(check_text)
      ->allow_extra_args(false);
  add("--seed", flags.seed, "same seed, same answer; default: drawn anew")
      ->transform(CLI::Validator(check_seed, ""));

  const std::string stop_group = "Length and stops";
  const auto add_stop = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(stop_group);
  };
  add_stop("-n,--max-tokens,--max-new-tokens,--n-predict", flags.max_tokens,
           "most tokens to generate; default: as many as the context holds")
      ->transform(integer<int64_t>(0));
  add_stop("--min-tokens", flags.min_tokens, "no end before so many tokens")
      ->transform(integer<int64_t>(0));
  add_stop("--stop", flags.stop, "text that ends the answer; may be repeated")
      ->check(check_text)
      ->allow_extra_args(false);
  add_stop("--stop-token-ids", flags.stop_token_ids, "tokens that end the answer")
      ->check(check_token_ids)
      ->type_name("ID,ID,...");
  command.add_flag("--include-stop", flags.include_stop, "keep the stop text in the answer")
      ->group(stop_group);
  command.add_flag("--ignore-eos", flags.ignore_eos, "go on behind the model's end token")
      ->group(stop_group);
}

std::vector<CLI::Option*> add_thinking_flags(CLI::App& command, ThinkingFlags& flags) {
  CLI::Option* no_think =
      command.add_flag("--no-think", flags.no_think, "answer without thinking first")
          ->group("Chat");
  CLI::Option* effort =
      command
          .add_option("--effort,--reasoning-effort", flags.effort,
                      "how thoroughly to think: " + effort_names() + "; default: high")
          ->check([](const std::string& effort) {
            const Result<int> level = parse_effort(effort);
            return level.has_value() ? std::string() : level.error().message;
          })
          ->type_name("LEVEL")
          ->group("Chat");
  return {no_think, effort};
}

void require_one_at_most(const CLI::App& command, const std::vector<std::string>& options) {
  std::string found;
  int count = 0;
  for (const std::string& option : options) {
    if (!command.count(option)) continue;
    found += (found.empty() ? "" : " and ") + option;
    ++count;
  }
  if (count > 1) throw CLI::ValidationError("found " + found, "expected one of them");
}

void add_chat(CLI::App& app, ChatOptions& options, std::function<int()>& action) {
  CLI::App& command = *app.add_subcommand("chat", "talk with the model");
  command.footer(
      "On a terminal, /help lists the commands and Ctrl-C stops an answer; rlwrap adds line "
      "editing. From a pipe every line is a turn:\n"
      "  echo 'What is the capital of France?' | millrace chat --temp 0");
  command.add_option("--system", options.system, "system prompt")
      ->check(utf8_fault)
      ->group("Chat");
  command
      .add_option(
          "--tools", options.tools_file,
          "JSON list of tools in the Chat Completions form; the result of a call is the next "
          "line")
      ->check(check_file)
      ->type_name("FILE")
      ->group("Chat");
  add_thinking_flags(command, options.thinking);
  command.add_flag("--fold", options.fold, "show that the model thinks, not what")->group("Chat");
  command.add_flag("--stats", options.stats, "tokens and speed after every answer, on stderr");
  add_sampling_flags(command, options.sampling);
  add_model_flags(command, options.model);
  add_context_flag(command, options.model);
  command.callback([&] { action = [&] { return run_chat(options); }; });
}

void add_generate(CLI::App& app, GenerateOptions& options, std::function<int()>& action) {
  CLI::App& command =
      *app.add_subcommand("generate", "continue a prompt, or answer a chat request");
  command.footer(
      "Without a prompt it is read from stdin. Examples:\n"
      "  millrace generate 'Once upon a time' --max-tokens 50\n"
      "  millrace generate --chat request.json --json");
  const std::string group = "Prompt (one of PROMPT, --file, --chat, --token-ids; or stdin)";
  command.add_option("PROMPT,-p,--prompt", options.prompt, "the text to continue")
      ->check(utf8_fault)
      ->group(group);
  command.add_option("--file", options.file, "a file with the text; a final newline is dropped")
      ->check(check_path)
      ->type_name("FILE")
      ->group(group);
  CLI::Option* chat =
      command
          .add_option("--chat", options.chat_file,
                      "a Chat Completions request in JSON; - is stdin. Flags win over its fields")
          ->check(check_path)
          ->type_name("FILE")
          ->group(group);
  command.add_option("--token-ids", options.token_ids, "the prompt as tokens")
      ->check(check_token_ids)
      ->type_name("ID,ID,...")
      ->group(group);
  command.add_flag("--no-bos", options.no_bos, "do not put the begin token in front of text")
      ->excludes(chat)
      ->group(group);
  command
      .add_flag("--no-special", options.no_special,
                "control tokens spelled in the text are plain text")
      ->excludes(chat)
      ->group(group);
  for (CLI::Option* flag : add_thinking_flags(command, options.thinking)) flag->needs(chat);
  CLI::Option* json = command.add_flag("--json", options.json, "one line of JSON per answer")
                          ->group("Output");
  const auto add_output = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Output");
  };
  add_output("--logprobs", options.sampling.logprobs,
             "log-probability of every token, with the N likeliest; -1: all")
      ->transform(integer<int64_t>(-1))
      ->needs(json);
  add_output("--prompt-logprobs", options.sampling.prompt_logprobs, "the same of the prompt")
      ->transform(integer<int64_t>(-1))
      ->needs(json);
  add_output("--choices", options.num_choices,
             "answers to the same prompt, which is computed once; default: 1")
      ->transform(integer<int64_t>(1, kMaxChoices))
      ->type_name("N");
  command.add_flag("--keep-special", options.sampling.keep_special, "show control tokens")
      ->group("Output");
  command.add_flag("--stats", options.stats, "tokens and speed, on stderr")->group("Output");
  add_record_flag(command, options.model);
  add_sampling_flags(command, options.sampling);
  add_model_flags(command, options.model);
  add_context_flag(command, options.model);
  command.callback([&command, &options, &action] {
    require_one_at_most(command, {"PROMPT", "--file", "--chat", "--token-ids"});
    action = [&options] { return run_generate(options); };
  });
}

void add_replay(CLI::App& app, ReplayOptions& options, std::function<int()>& action) {
  CLI::App& command =
      *app.add_subcommand("replay", "run what --record wrote once more, and compare");
  command.footer(
      "Exit status 1 if anything differs. Example:\n"
      "  millrace generate 'Once upon a time' -n 50 --record run.jsonl && millrace replay "
      "run.jsonl");
  command.add_option("FILE", options.file, "the recording")->required()->check(check_file);
  command.add_option("MODEL_DIR", options.model_dir, kModelHelp)->check(check_path);
  add_compute_flags(command, options.num_threads, options.isa);
  command
      .add_flag("--plans-only", options.plans_only,
                "only what was decided, with the recorded tokens; needs no model")
      ->excludes("MODEL_DIR", "--threads", "--isa");
  command.callback([&] { action = [&] { return run_replay(options); }; });
}

void add_forward(CLI::App& app, ForwardCommandOptions& options, std::function<int()>& action) {
  CLI::App& command =
      *app.add_subcommand("forward", "run the forward pass over tokens and store what it computes");
  command.footer(
      "Outputs may share one file. tools/reference/compare.py compares the files with golden "
      "ones.");
  command.add_option("--token-ids", options.token_ids, "the tokens")
      ->required()
      ->check(check_token_ids)
      ->type_name("ID,ID,...");
  const auto add_output = [&](const char* name, std::string& file, const char* help) {
    command.add_option(name, file, help)
        ->check(check_file)
        ->type_name("FILE")
        ->group("Output (at least one; safetensors)");
  };
  add_output("--logits", options.logits_file, "logits [T, vocab_size]");
  add_output("--trace", options.trace_file,
             "inputs and outputs of every sublayer, named as in tests/golden/README.md");
  add_output("--draft", options.draft_file,
             "draft.anchor (the likeliest next token), draft.tokens, draft.confidence");
  add_model_flags(command, options.model);
  command.callback([&command, &options, &action] {
    if (!command.count("--logits") && !command.count("--trace") && !command.count("--draft")) {
      throw CLI::RequiredError("one of --logits, --trace, --draft");
    }
    action = [&options] { return run_forward(options); };
  });
}

void add_inspect(CLI::App& app, InspectOptions& options, std::function<int()>& action) {
  CLI::App& command = *app.add_subcommand("inspect", "describe a model, or this machine");
  command.add_option("PATH", options.path, "a model directory or a config.json; default: the "
                                           "model that comes with the program")
      ->check(check_file);
  command.add_flag(
      "--machine", options.machine,
      "this computer: processor, caches, memory, limits, what is chosen of them, kernel "
      "tables with their numerics ids, and what cannot be tested here; with PATH behind "
      "the model, and how many sequences fit its free memory");
  command
      .add_option("--kv-bytes", options.kv_bytes,
                  "also how many sequences fit, with their state in so many bytes")
      ->transform(integer<int64_t>(0))
      ->type_name("N");
  command.add_flag("--json", options.json, "as JSON");
  command.callback([&] { action = [&] { return run_inspect(options); }; });
}

void add_batch(CLI::App& app, BatchCommandOptions& options, std::function<int()>& action) {
  CLI::App& command =
      *app.add_subcommand("batch", "answer a file of requests, many at a time, in their order");
  command.footer(
      "A line is {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", "
      "\"body\": {...}},\nor /v1/completions. Run again, it goes on where an earlier run was "
      "stopped. docs/batch.md has the details.");
  command.add_option("-i,--input", options.input, "requests, one JSON object per line; - is stdin")
      ->required()
      ->check(check_path)
      ->type_name("FILE");
  command.add_option("-o,--output", options.output, "answers, one per request; - is stdout")
      ->required()
      ->check(check_path)
      ->type_name("FILE");
  command.add_flag("--overwrite", options.overwrite,
                   "start anew instead of going on behind the answers that are there");
  command.add_option("--seed", options.seed, "for requests without a seed, together with custom_id")
      ->transform(integer<uint64_t>())
      ->capture_default_str();
  command
      .add_option(
          "--served-model-name", options.served_model_name,
          "refuse requests for another model; default: the folder's name, and none is refused")
      ->check(check_text)
      ->type_name("NAME");
  command
      .add_option("--max-logprobs", options.max_logprobs,
                  "alternatives per token that a request may ask for; -1: the whole vocabulary")
      ->transform(integer<int64_t>(-1))
      ->type_name("N")
      ->capture_default_str();
  add_model_flags(command, options.model);
  add_context_flag(command, options.model);
  add_engine_flags(command, options.engine);
  add_record_flag(command, options.model);
  command.callback([&] { action = [&] { return run_batch(options); }; });
}

void add_synth(CLI::App& app, SynthCommandOptions& options, std::function<int()>& action) {
  CLI::App& command =
      *app.add_subcommand("synth", "write a checkpoint with random weights and a tokenizer");
  command.footer(
      "Same options, same files. Examples:\n"
      "  millrace synth mini\n"
      "  millrace synth slice --shape v4.1 --layers 3 --experts 16 --engram-rows 100000 "
      "--draft 0 --no-vision\n"
      "  millrace synth kinds --shape v4.1 --layer-ids 0,1,2,3,14,20,21,24 --experts 16 "
      "--engram-rows 100000 --draft 0 --no-vision\n"
      "  millrace synth full --shape v4.1 --sparse");
  command.add_option("OUT_DIR", options.folder, "the folder to write; created if it does not exist")
      ->required()
      ->check(check_path);
  const std::string group = "Sizes (default: those of the shape)";
  const auto add_size = [&](const char* name, std::optional<int64_t>& value, int64_t least,
                            const char* help) {
    command.add_option(name, value, help)
        ->transform(integer<int64_t>(least))
        ->type_name("N")
        ->group(group);
  };
  std::string names;
  for (const std::string_view name : shape_names())
    names += format(names.empty() ? "" : ", ", name);
  CLI::Option* shape = command.add_option(
      "--shape", options.shape,
      names +
          ": mini has every mechanism at small sizes, real-structure has small widths under the "
          "release's layer map, windows and selections");
  shape->check(CLI::IsMember(std::vector<std::string>(shape_names().begin(), shape_names().end()))
                   .description(""))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  command.add_option("--config", options.config_file, "a config.json instead of a shape")
      ->check(check_file)
      ->type_name("FILE")
      ->excludes(shape)
      ->group(group);
  add_size("--layers", options.sizes.layers, 1, "only the first N layers");
  command
      .add_option(
          "--layer-ids", options.sizes.layer_ids,
          "only these layers, as 0,1,2: with the layers whose rows and selections they read")
      ->delimiter(',')
      ->transform(integer<int64_t>(0))
      ->type_name("IDS")
      ->excludes("--layers")
      ->group(group);
  add_size("--experts", options.sizes.experts, 1, "routed experts per layer");
  add_size("--hidden", options.sizes.hidden, 1, "hidden_size");
  add_size("--vocab", options.sizes.vocab, 1, "vocabulary size");
  add_size("--engram-rows", options.sizes.engram_rows, 0,
           "rows of each Engram table, about; 0: no Engram");
  add_size("--draft", options.sizes.draft, 0, "draft stages");
  command
      .add_flag_callback("--no-vision", [&] { options.sizes.vision = false; },
                         "leave the vision tower out")
      ->group(group);
  command.add_option("--seed", options.write.seed, "of the weights")
      ->transform(integer<uint64_t>())
      ->capture_default_str();
  command.add_option("--shards", options.write.num_shards, "safetensors files; default: by size")
      ->transform(integer<int64_t>(1))
      ->type_name("N");
  command.add_flag("--sparse", options.write.sparse,
                   "tensors are holes in the files: zeros that take no space");
  command.add_flag("--overwrite", options.write.overwrite,
                   "write into a folder that holds files; shards of a model there are removed");
  command.callback([&] { action = [&] { return run_synth(options); }; });
}

void add_tokenize(CLI::App& app, TokenizeOptions& options, std::function<int()>& action) {
  CLI::App& command = *app.add_subcommand("tokenize", "text to token ids");
  CLI::Option* text = command.add_option("TEXT", options.text, "the text; default: stdin");
  command.add_option("--file", options.file, "a file with the text")
      ->check(check_path)
      ->type_name("FILE")
      ->excludes(text);
  command.add_flag("--special", options.special, "recognise control tokens spelled in the text");
  command.add_flag("--json", options.json, "token_ids, count and the text of each token");
  command.add_option("--model", options.model_dir, kModelHelp)->check(check_path)->type_name("DIR");
  command.callback([&] { action = [&] { return run_tokenize(options); }; });
}

void add_detokenize(CLI::App& app, DetokenizeOptions& options, std::function<int()>& action) {
  CLI::App& command = *app.add_subcommand("detokenize", "token ids to text");
  command.add_option("ID", options.token_ids,
                     "token ids, separated by blanks or commas; default: stdin");
  command.add_flag("--json", options.json, "text, and the text of each token");
  command.add_option("--model", options.model_dir, kModelHelp)->check(check_path)->type_name("DIR");
  command.callback([&] { action = [&] { return run_detokenize(options); }; });
}

constexpr const char* kEncodeExample = R"(
  {"id": "a", "input": {"messages": [{"role": "user", "content": "Hi"}]}}
  {"id": "a", "prompt": "..."}
)";
constexpr const char* kParseExample = R"(
  {"id": "a", "raw": "A greeting.</think>Hello.", "thinking": true}
  {"id": "a", "reasoning": "A greeting.", "content": "Hello.", "tool_calls": [], "finish_reason": "stop"}
)";

void add_lines(CLI::App& app, const char* name, const char* help, const char* example,
               std::string& file, int (*run)(const std::string&), std::function<int()>& action) {
  CLI::App& command = *app.add_subcommand(name, help);
  command.footer(
      std::string("A line, and what comes back:") + example +
      "or {\"id\": \"a\", \"error\": \"...\"}. The exit status is 1 when a line is not JSON. "
      "tests/golden/encoding/README.md lists the fields.");
  command.add_option("FILE", file, "one JSON object per line; - is stdin")->capture_default_str();
  command.callback([&file, run, &action] { action = [&file, run] { return run(file); }; });
}

// `help` and `version` are flags elsewhere, commands to many.
std::vector<std::string> plain_arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "version") arguments[0] = "--version";
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  }
  return arguments;
}

// Of a flag that was given more often than it may be; the library names only its first name.
std::string explain_repeats(const CLI::App& command, const std::string& otherwise) {
  for (const CLI::Option* option : command.get_options()) {
    const int most = std::max(option->get_items_expected_max(), 1);
    const bool is_named = otherwise.starts_with(option->get_name() + ":");
    if (!is_named || int64_t(option->count()) <= most) continue;
    return format(option->get_name(), ": found ", option->count(), " values (",
                  option->get_name(/*positional=*/false, /*all_options=*/true), "), expected ",
                  most);
  }
  return otherwise;
}

FlagInfo flag_info(const CLI::Option& option) {
  FlagInfo info{option.get_items_expected_max() == 0, {}};
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  return info;
}

// "--flag=" with nothing behind it, of which the library would make the next argument its value:
// with an unset variable of a shell one flag would swallow another.
std::string find_empty_value(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      return argument.substr(0, argument.size() - 1);
    }
  }
  return {};
}

// Names from llama.cpp and vLLM for what is named or defined a little differently here. (Where the
// meaning is the same, they are names of our flags.)
constexpr std::pair<std::string_view, std::string_view> kForeignFlags[] = {
    {"f", "--file"},
    {"m", "--model"},
    {"num-choices", "--choices"},
    {"n", "--choices"},
    {"no-thinking", "--no-think"},
    {"p", "--system"},
    {"prompt", "--system"},
    {"repeat-penalty", "--repetition-penalty"},
    {"reverse-prompt", "--stop"},
    {"s", "--seed"},
    {"system-prompt", "--system"},
};

// The flag that somebody meant who wrote `name` (without dashes), or nothing.
std::string meant_flag(const CLI::App& command, std::string name) {
  for (char& c : name) c = c == '_' ? '-' : char(std::tolower(uint8_t(c)));
  if (command.get_option_no_throw("--" + name) != nullptr) return "--" + name;
  for (const auto& [foreign, own] : kForeignFlags) {
    if (foreign == name && command.get_option_no_throw(std::string(own)) != nullptr) {
      return std::string(own);
    }
  }
  return {};
}

bool is_flag_name(const std::string& argument) {
  return argument.starts_with('-') && argument.find_first_not_of('-') != argument.npos;
}

// What is left over when a command line makes no sense, in the order in which it was given.
std::string explain_extras(const CLI::App& app) {
  std::string commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands += (commands.empty() ? "" : ", ") + command->get_name();
  }
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  const std::vector<std::string> outside = app.remaining();  // of a command
  const bool is_flag = !outside.empty() && is_flag_name(outside[0]);
  if (parsed.empty() || is_flag) {
    return format("found \"", outside[0], "\", expected a command", is_flag ? " first: " : ": ",
                  commands);
  }
  const CLI::App& command = *parsed[0];
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  for (const std::string& extra : extras) {
    if (!is_flag_name(extra)) continue;
    const std::string flag = extra.substr(0, extra.find('='));
    const std::string meant = meant_flag(command, flag.substr(flag.find_first_not_of('-')));
    return format(flag, ": no such flag; ",
                  meant.empty() ? format("millrace ", command.get_name(), " --help lists them",
                                         command.get_name() == "serve"
                                             ? ", docs/from-vllm.md those of vLLM"
                                             : "")
                                : format(command.get_name(), " has ", meant));
  }
  const std::string& first = extras[0] == "--" ? extras[1] : extras[0];
  return format("\"", first, "\": not expected; text with blanks needs quotes");
}

int run(int argc, char** argv) {
  CLI::App app("Millrace runs DeepSeek-V4.1-Flash from the released checkpoint.", "millrace");
  app.set_version_flag("--version", version_text,
                       "the version, the compiler and the numerics id of every kernel table");
  app.require_subcommand(0, 1);  // so that a wrong one is named
  app.get_formatter()->column_width(34);

  std::function<int()> action;
  ChatOptions chat;
  GenerateOptions generate;
  ReplayOptions replay;
  BatchCommandOptions batch;
  ServeCommandOptions serve;
  BenchCommandOptions bench;
  EvalCommandOptions eval;
  ForwardCommandOptions forward;
  InspectOptions inspect;
  SynthCommandOptions synth;
  TokenizeOptions tokenize;
  DetokenizeOptions detokenize;
  std::string encode_file = "-", parse_file = "-";
  add_serve(app, serve, action);
  add_bench(app, bench, action);
  add_chat(app, chat, action);
  add_generate(app, generate, action);
  add_replay(app, replay, action);
  add_batch(app, batch, action);
  add_eval(app, eval, action);
  add_forward(app, forward, action);
  add_inspect(app, inspect, action);
  add_synth(app, synth, action);
  add_tokenize(app, tokenize, action);
  add_detokenize(app, detokenize, action);
  add_lines(app, "chat-encode", "chat requests to prompts, line by line", kEncodeExample,
            encode_file, run_chat_encode, action);
  add_lines(app, "chat-parse", "replies of the model to their parts, line by line", kParseExample,
            parse_file, run_chat_parse, action);
  const CLI::App& served = *app.get_subcommand("serve");
  Result<ExpandedArguments> expanded =
      expand_config(plain_arguments(argc, argv), [&](const std::string& flag) {
        const CLI::Option* option = served.get_option_no_throw(flag);
        return option == nullptr ? std::nullopt : std::optional(flag_info(*option));
      });
  if (!expanded.has_value()) return fail_usage(expanded.error());
  serve.config_files = expanded.value().files;
  if (const std::string flag = find_empty_value(expanded.value().arguments); !flag.empty()) {
    return fail_usage({Code::kInvalidArgument,
                       format(flag, ": found nothing behind =, expected a value")});
  }
  try {
    // CLI11 wants the last one first.
    std::vector<std::string> arguments = expanded.value().arguments;
    std::reverse(arguments.begin(), arguments.end());
    app.parse(std::move(arguments));
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    // A required flag that seems to be missing may be a misspelled one that is left over.
    const bool is_extra = app.remaining_size(/*recurse=*/true) > 0;
    std::string message = is_extra ? explain_extras(app) : error.what();
    if (error.get_name() == "ArgumentMismatch" && !app.get_subcommands().empty()) {
      message = explain_repeats(*app.get_subcommands()[0], message);
    }
    for (const auto& [flag, file] : expanded.value().file_of) {
      if (message.starts_with(flag + ":")) message = format(file, ": ", message);
    }
    return fail_usage({Code::kInvalidArgument, message});
  }
  if (action) return action();
  std::cerr << app.help();
  return kExitUsage;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using millrace::Code, millrace::fail;
  millrace::open_standard_streams();
  millrace::report_mapping_faults();
  // A write beyond a limit of the shell (ulimit -f) fails, like one to a disk that is full.
  ::signal(SIGXFSZ, SIG_IGN);
  const millrace::ScopedFpEnvironment fp_environment;
  int status = millrace::kExitError;
  try {
    status = millrace::run(argc, argv);
  } catch (const std::bad_alloc&) {
    fail({Code::kExhausted, "out of memory"});
  } catch (const std::exception& error) {  // of threads that cannot be created
    fail({Code::kUnavailable, error.what()});
  }
  return millrace::finish_output(status);
}
