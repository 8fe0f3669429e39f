#include "bench_flags.h"

#include <string>

#include "flag_groups.h"

namespace millrace {
namespace {

std::string check_positive(const std::string& text) {
  double number = 0;
  const bool is_fine = parse_number(text, number) && number > 0 && number <= 1e9;
  return is_fine ? "" : "found \"" + text + "\", expected a number above 0, at most 1e9";
}

std::string check_ratio(const std::string& text) {
  double number = 0;
  const bool is_fine = parse_number(text, number) && number > 0 && number <= 1;
  return is_fine ? "" : "found \"" + text + "\", expected a number above 0, at most 1";
}

void add_target_flags(CLI::App& command, BenchCommandOptions& options) {
  const std::string group = "Target";
  CLI::Option* url =
      command
          .add_option("--url", options.url,
                      "a server of the OpenAI API, with or without /v1; unix:PATH is one at a Unix "
                      "socket, SSL_CERT_FILE=FILE in the environment the authority of an https one")
          ->check(check_text)
          ->capture_default_str()
          ->group(group);
  command
      .add_flag("--in-process", options.in_process,
                "an engine in this process instead, opened with the flags of Model and Engine")
      ->excludes(url)
      ->group(group);
  command
      .add_option("--api-key", options.api_key,
                  "sent as bearer token; default: MILLRACE_API_KEY; shows in the process list")
      ->check(check_text)
      ->type_name("KEY")
      ->group(group);
  command
      .add_option("--model-name", options.model_name,
                  "the model's name in the API; default: the first of /v1/models")
      ->check(check_text)
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--tokenizer", options.tokenizer_dir,
                  "directory with tokenizer.json; default: the root in /v1/models. Without one "
                  "prompts are text")
      ->check(check_path)
      ->type_name("DIR")
      ->group(group);
  command
      .add_option("--ready-timeout", options.ready_timeout_s,
                  "seconds to wait until the server answers a request")
      ->check(check_positive)
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
}

void add_workload_flags(CLI::App& command, BenchCommandOptions& options) {
  const std::string group = "Workload";
  const auto add = [&](const char* name, auto& value, const char* help, int64_t least) {
    return command.add_option(name, value, help)
        ->transform(integer<int64_t>(least, int64_t(1) << 40))
        ->type_name("N")
        ->capture_default_str()
        ->group(group);
  };
  command
      .add_option_function<std::string>(
          "--workload",
          [&options](const std::string& name) { options.is_open_loop = name == "open"; },
          "fixed: so many requests at a time; open: they come at a rate, however many run")
      ->check(CLI::IsMember({"fixed", "open"}).description(""))
      ->type_name("NAME")
      ->default_str("fixed")
      ->group(group);
  add("-n,--requests,--num-prompts", options.num_requests, "that are measured", 1);
  command
      .add_option("--duration", options.duration_s, "send nothing any more after so many seconds")
      ->check(check_positive)
      ->type_name("S")
      ->group(group);
  add("--input-tokens,--isl", options.mix.lengths.prompt_tokens, "of each prompt", 1);
  add("--output-tokens,--osl", options.mix.lengths.output_tokens, "of each answer", 1);
  command
      .add_option("--range-ratio", options.mix.lengths.range_ratio,
                  "lengths are uniform from so much of the above up to the above")
      ->check(check_ratio)
      ->type_name("R")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--lengths", options.lengths_file,
                  "lines PROMPT,OUTPUT to draw lengths from, instead")
      ->check(check_file)
      ->type_name("FILE.csv")
      ->group(group);
  add("--prefix-tokens", options.mix.shared_prefix_tokens,
      "in front of every prompt, the same for all, beside its own", 0);
  command.add_option("--seed", options.mix.seed, "of everything that is drawn")
      ->transform(integer<uint64_t>())
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  add("--warmup", options.num_warmup,
      "requests before, which do not count; default: as many as --concurrency, open: 1", 0);
  command
      .add_option("--corpus", options.corpus_file,
                  "text that prompts are cut from; default: this program's own documentation")
      ->check(check_file)
      ->type_name("FILE")
      ->group(group);
  command
      .add_flag("--random-tokens", options.random_tokens,
                "prompts of random tokens; for prefill ceilings only")
      ->group(group);
  add("--concurrency", options.concurrency, "requests at a time (fixed)", 1);

  const std::string open = "Open workload";
  command.add_option("--rate,--request-rate", options.rate.rate, "requests per second")
      ->check(check_positive)
      ->type_name("R")
      ->capture_default_str()
      ->group(open);
  command
      .add_option("--burstiness", options.burstiness,
                  "shape of the gaps: 1: Poisson; below: in bursts; above: more even")
      ->check(check_positive)
      ->type_name("B")
      ->capture_default_str()
      ->group(open);
  command
      .add_option("--max-concurrency", options.max_concurrency,
                  "requests that run; those beyond wait for their turn in the client")
      ->transform(integer<int64_t>(1))
      ->type_name("N")
      ->group(open);
  CLI::Option* ramp = command
                          .add_option_function<std::string>(
                              "--ramp",
                              [&options](const std::string& name) {
                                options.rate.ramp = name == "linear"
                                                        ? RequestRate::Ramp::kLinear
                                                        : RequestRate::Ramp::kExponential;
                              },
                              "how the rate grows: linear or exponential")
                          ->check(CLI::IsMember({"linear", "exponential"}).description(""))
                          ->type_name("NAME")
                          ->group(open);
  CLI::Option* from =
      command.add_option("--ramp-from", options.rate.ramp_from, "rate at the start")
          ->check(check_positive)
          ->type_name("R")
          ->capture_default_str()
          ->needs(ramp)
          ->group(open);
  CLI::Option* length =
      command.add_option("--ramp-seconds", options.rate.ramp_s, "until the rate is --rate")
          ->check(check_positive)
          ->type_name("S")
          ->needs(ramp)
          ->group(open);
  ramp->needs(from, length);
}

void add_request_flags(CLI::App& command, BenchCommandOptions& options) {
  const std::string group = "Requests";
  RequestFields& fields = options.fields;
  command
      .add_option_function<std::string>(
          "--endpoint",
          [&fields](const std::string& name) {
            fields.endpoint = name == "chat" ? BenchEndpoint::kChat : BenchEndpoint::kCompletions;
          },
          "completions or chat")
      ->check(CLI::IsMember({"completions", "chat"}).description(""))
      ->type_name("NAME")
      ->default_str("completions")
      ->group(group);
  command
      .add_flag("--text", fields.sends_text,
                "completions: prompts as text; default: as token ids where there is a tokenizer")
      ->group(group);
  command.add_option("--temperature,--temp", fields.temperature, "default: the server's")
      ->type_name("T")
      ->group(group);
  command
      .add_flag_callback(
          "--respect-eos", [&fields] { fields.ignores_eos = false; },
          "answers may end by themselves; default: ignore_eos, exact lengths")
      ->group(group);
  command
      .add_flag(
          "--count-tokens", fields.counts_tokens,
          "ask for the usage with every event: exact tokens per event, at a cost for the server")
      ->group(group);
  command
      .add_option("--extra-body", options.extra_body,
                  "JSON object of further fields; they replace those of the same name")
      ->check(check_text)
      ->type_name("JSON")
      ->group(group);
}

void add_output_flags(CLI::App& command, BenchCommandOptions& options) {
  const std::string group = "Output";
  const auto add_file = [&](const char* name, std::string& file, const char* help) {
    command.add_option(name, file, help)->check(check_file)->type_name("FILE")->group(group);
  };
  add_file("--summary", options.summary_file, "write every figure as JSON");
  add_file("--requests-file", options.requests_file, "write a JSON line for each request");
  command.add_flag("--json", options.json, "the JSON of --summary on stdout instead of the report")
      ->group(group);
  command.add_flag("--quiet", options.quiet, "no progress on stderr")->group(group);
  command.add_option("--gpus", options.num_gpus, "of the deployment: also figures per GPU")
      ->transform(integer<int64_t>(1, int64_t(1) << 20))
      ->type_name("N")
      ->group(group);
  command.add_option("--min-duration", options.min_duration_s, "a shorter run is not valid")
      ->check(check_positive)
      ->type_name("S")
      ->group(group);
}

// A flag of one workload chooses it, and makes no sense with the other.
void choose_workload(const CLI::App& command, BenchCommandOptions& options) {
  const bool is_named = command.count("--workload") > 0;
  for (const char* flag : {"--rate", "--burstiness", "--max-concurrency", "--ramp"}) {
    if (command.count(flag) == 0) continue;
    if (is_named && !options.is_open_loop) {
      throw CLI::ValidationError(std::string(flag) + ": not with --workload fixed");
    }
    options.is_open_loop = true;
  }
  if (options.is_open_loop && command.count("--concurrency") > 0) {
    throw CLI::ValidationError("--concurrency: not with an open workload; --max-concurrency is");
  }
}

}  // namespace

void add_bench(CLI::App& app, BenchCommandOptions& options, std::function<int()>& action) {
  CLI::App& command = *app.add_subcommand("bench", "load a server, or an engine, and measure it");
  command.footer(
      "Examples:\n"
      "  millrace bench --concurrency 64 --requests 1000 --input-tokens 1024 --output-tokens 1024\n"
      "  millrace bench --workload open --rate 4 --burstiness 0.5 --duration 300 --requests 10000 "
      "\\\n"
      "    --url http://127.0.0.1:8000 --endpoint chat --summary summary.json\n"
      "  millrace bench --in-process --model models/nano --concurrency 8\n"
      "docs/bench.md says what the figures mean and when a run is valid.");
  add_target_flags(command, options);
  add_workload_flags(command, options);
  add_request_flags(command, options);
  add_output_flags(command, options);
  add_engine_choice_flag(command, options.model);
  add_model_flags(command, options.model);
  add_context_flag(command, options.model);
  add_engine_flags(command, options.engine);
  command.callback([&] {
    choose_workload(command, options);
    action = [&] { return run_bench(options); };
  });
}

}  // namespace millrace
