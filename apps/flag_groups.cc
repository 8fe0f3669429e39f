#include "flag_groups.h"

#include "engine/engine.h"
#include "kernels/kernels.h"
#include "scheduler/scheduler.h"

namespace millrace {

std::string check_path(const std::string& path) {
  return path.empty() ? "found an empty name, expected a path" : "";
}

std::string check_file(const std::string& path) {
  if (path == "-") return "found \"-\", expected a file; one of that name is ./-";
  return check_path(path);
}

std::string check_text(const std::string& text) {
  return text.empty() ? "found nothing, expected at least one character" : "";
}

void add_compute_flags(CLI::App& command, int& num_threads, std::string& isa) {
  const std::string group = "Model";
  command
      .add_option("-t,--threads", num_threads,
                  "threads to compute with; default: one for each core (inspect --machine)")
      ->transform(integer<int>(1, kMaxThreads))
      ->type_name("N")
      ->group(group);
  command
      .add_option(
          "--isa", isa,
          "kernel table (inspect --machine lists them); default: the best. It never changes "
          "the result")
      ->check(check_text)
      ->check([](const std::string& name) {
        const Result<const KernelTable*> table = choose_kernels(name);
        return table.has_value() ? std::string() : table.error().message;
      })
      ->type_name("NAME")
      ->group(group);
}

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  const std::string group = "Model";
  command
      .add_option("--model", flags.model_dir, kModelHelp)
      ->check(check_path)
      ->type_name("DIR")
      ->group(group);
  command
      .add_option(
          "--numerics", flags.numerics,
          "reference: the published roundings; fp32: no rounding and no quantisation beyond "
          "the stored weights")
      ->check(CLI::IsMember({"reference", "fp32"}).description(""))
      ->type_name("MODE")
      ->capture_default_str()
      ->group(group);
  add_compute_flags(command, flags.num_threads, flags.isa);
  command
      .add_option("--chunk", flags.chunk,
                  "prompt tokens that are computed at once; it never changes the result")
      ->transform(integer<int64_t>(1, int64_t(1) << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--expert-cache-bytes", flags.expert_cache_bytes,
          "memory for experts that are read from the disk when they are needed; 0: they are "
          "mapped, and the system decides what stays; default: 0 if they fit into memory, "
          "or else what memory leaves. It never changes the result")
      ->transform(integer<int64_t>(0))
      ->type_name("N")
      ->group(group);
}

void add_engine_choice_flag(CLI::App& command, ModelFlags& flags) {
  const std::string scripted = "scripted=";
  const auto check = [scripted](const std::string& name) {
    if (name.starts_with(scripted)) return check_file(name.substr(scripted.size()));
    return name == "model" ? ""
                           : format("found \"", name, "\", expected model or scripted=FILE.jsonl");
  };
  command
      .add_option_function<std::string>(
          "--engine",
          [&flags, scripted](const std::string& name) {
            flags.script_file = name == "model" ? "" : name.substr(scripted.size());
          },
          "model, or scripted=FILE.jsonl: recorded answers (docs/scripted-engine.md)")
      ->check(check)
      ->type_name("ENGINE")
      ->default_str("model")
      ->group("Model");
}

void add_context_flag(CLI::App& command, ModelFlags& flags) {
  const auto read = [&flags](const std::string& text) {
    int64_t number = 0;
    flags.max_model_len.reset();
    if (parse_number(text, number)) flags.max_model_len = number;
  };
  const auto check = [](std::string& text) {
    return text == "auto" ? "" : integer<int64_t>(1)(text);
  };
  command
      .add_option_function<std::string>(
          "-c,--max-model-len,--ctx-size", read,
          "most tokens of prompt and answer; default: auto, what the checkpoint allows and memory "
          "has room for")
      ->check(CLI::Validator(check, ""))
      ->type_name("N")
      ->group("Model");
}

void add_record_flag(CLI::App& command, ModelFlags& flags) {
  command
      .add_option("--record", flags.record_file,
                  "write what the run sees and decides, prompts included, for replay")
      ->check(check_file)
      ->type_name("FILE")
      ->group("Output");
}

std::string check_step_ms(const std::string& text) {
  double number = 0;
  const bool is_fine = parse_number(text, number) && number > 0 && number <= 1e9;
  return is_fine ? "" : format("found \"", text, "\", expected milliseconds above 0, at most 1e9");
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  const std::string group = "Engine (no flag changes an answer)";
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->type_name("N")->group(group);
  };
  add("--max-num-seqs", flags.max_num_seqs, "sequences that are computed together")
      ->transform(integer<int64_t>(1, kMaxNumSeqs))
      ->capture_default_str();
  add("--max-num-batched-tokens", flags.max_num_batched_tokens, "tokens of one step")
      ->transform(integer<int64_t>(1, int64_t(1) << 20))
      ->capture_default_str();
  add("--max-step-ms", flags.max_step_ms,
      "milliseconds of a step while answers are being written; prompts take what is left")
      ->check(check_step_ms)
      ->capture_default_str();
  add("--kv-bytes", flags.kv_bytes, "for the state of sequences; default: what memory leaves")
      ->transform(integer<int64_t>(0));
}

}  // namespace millrace
