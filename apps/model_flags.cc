#include "model_flags.h"

#include <algorithm>
#include <filesystem>

#include "base/format.h"
#include "chat/request_parser.h"
#include "console.h"
#include "tokenizer/utf8.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

Error bad_flag(std::string_view flag, std::string_view found, std::string_view expected) {
  return {Code::kInvalidArgument, format(flag, ": found \"", found, "\", expected ", expected)};
}

Result<std::pair<int32_t, double>> parse_logit_bias(std::string_view text) {
  const size_t equals = text.find('=');
  std::pair<int32_t, double> bias;
  if (equals == text.npos || !parse_number(text.substr(0, equals), bias.first) ||
      !parse_number(text.substr(equals + 1), bias.second)) {
    return bad_flag("--logit-bias", text, "TOKEN_ID=NUMBER");
  }
  bias.second = std::clamp(bias.second, -kMaxLogitBias, kMaxLogitBias);  // as the server does
  return bias;
}

}  // namespace

Result<std::string> resolve_model_dir(const std::string& model_dir) {
  std::error_code error;
  if (!model_dir.empty()) {
    if (fs::is_directory(model_dir, error)) return model_dir;
    return Error{Code::kNotFound, format("--model: ", model_dir, " is not a directory")};
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path candidates[] = {program.parent_path() / "../models/nano",
                                 program.parent_path() / "../share/millrace/models/nano"};
  for (const fs::path& candidate : candidates) {
    if (fs::is_directory(candidate, error)) return candidate.lexically_normal().string();
  }
  return Error{
      Code::kNotFound,
      format("no model: found neither ", candidates[0].lexically_normal().string(), " nor ",
             candidates[1].lexically_normal().string(), "; name one with --model DIR")};
}

Result<LoadOptions> make_load_options(const ModelFlags& flags) {
  LoadOptions options;
  ASSIGN_OR_RETURN(options.model_dir, resolve_model_dir(flags.model_dir));
  options.numerics = flags.numerics == "fp32" ? Numerics::kFp32 : Numerics::kReference;
  options.num_threads = flags.num_threads;
  options.isa = flags.isa;
  options.expert_cache_bytes = flags.expert_cache_bytes;
  return options;
}

Result<EngineOptions> make_engine_options(const ModelFlags& flags, const EngineFlags& engine) {
  EngineOptions options;
  ASSIGN_OR_RETURN(options.load, make_load_options(flags));
  options.prefill_chunk = flags.chunk;
  options.max_model_len = flags.max_model_len;
  options.record_file = flags.record_file;
  options.script_file = flags.script_file;
  options.max_num_seqs = engine.max_num_seqs;
  options.max_num_batched_tokens = engine.max_num_batched_tokens;
  options.max_waiting = engine.max_waiting;
  options.max_step_ms = engine.max_step_ms;
  options.kv_bytes = engine.kv_bytes;
  return options;
}

Result<std::unique_ptr<Llm>> open_llm(const EngineOptions& options) {
  Progress progress("loading " + options.load.model_dir, "files");
  return Llm::open(options, [&](int64_t done, int64_t all) { progress(done, all); });
}

Result<std::unique_ptr<Llm>> open_llm(const ModelFlags& flags, const EngineFlags& engine) {
  ASSIGN_OR_RETURN(const EngineOptions options, make_engine_options(flags, engine));
  return open_llm(options);
}

bool parse_seed(std::string_view text, uint64_t& seed) {
  int64_t with_sign = 0;
  if (!parse_number(text, with_sign)) return parse_number(text, seed);
  seed = uint64_t(with_sign);
  return true;
}

Result<std::vector<int32_t>> parse_token_ids(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n", kSeparators = ", \t\r\n";
  std::vector<int32_t> ids;
  bool is_behind_comma = false;
  for (size_t at = text.find_first_not_of(kBlanks); at != text.npos || is_behind_comma;) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    const std::string_view item = text.substr(std::min(at, end), end - std::min(at, end));
    if (!parse_number(item, ids.emplace_back())) {
      return Error{Code::kInvalidArgument,
                   format("found ", item.empty() ? "nothing" : format("\"", item, "\""),
                          ", expected a token id as item ", ids.size(), " of the list")};
    }
    at = text.find_first_not_of(kBlanks, end);
    is_behind_comma = at != text.npos && text[at] == ',';
    if (is_behind_comma) at = text.find_first_not_of(kBlanks, at + 1);
  }
  return ids;
}

Result<SamplingParams> make_sampling(const SamplingFlags& flags, SamplingParams params,
                                     const Llm& llm) {
  const auto replace = [](auto& value, const auto& flag) {
    if (flag) value = *flag;
  };
  replace(params.temperature, flags.temperature);
  replace(params.top_k, flags.top_k);
  replace(params.top_p, flags.top_p);
  replace(params.min_p, flags.min_p);
  replace(params.repetition_penalty, flags.repetition_penalty);
  replace(params.presence_penalty, flags.presence_penalty);
  replace(params.frequency_penalty, flags.frequency_penalty);
  if (!flags.logit_bias.empty()) params.logit_bias.clear();
  for (const std::string& text : flags.logit_bias) {
    ASSIGN_OR_RETURN(auto bias, parse_logit_bias(text));
    params.logit_bias.push_back(bias);
  }
  if (!flags.allowed_token_ids.empty()) {
    ASSIGN_OR_RETURN(params.allowed_token_ids, parse_token_ids(flags.allowed_token_ids));
  }
  if (!flags.stop_token_ids.empty()) {
    ASSIGN_OR_RETURN(params.stop_token_ids, parse_token_ids(flags.stop_token_ids));
  }
  if (!flags.bad_words.empty()) params.bad_words_token_ids.clear();
  for (const std::string& word : flags.bad_words) add_bad_word(llm.tokenizer(), word, params);
  if (flags.seed) params.seed = flags.seed;
  if (!flags.stop.empty()) params.stop = flags.stop;
  params.include_stop_str_in_output |= flags.include_stop;
  if (flags.keep_special) params.skip_special_tokens = false;
  params.ignore_eos |= flags.ignore_eos;
  replace(params.min_tokens, flags.min_tokens);
  if (flags.max_tokens) params.max_tokens = flags.max_tokens;
  if (flags.logprobs) params.logprobs = flags.logprobs;
  if (flags.prompt_logprobs) params.prompt_logprobs = flags.prompt_logprobs;
  RETURN_IF_ERROR(validate(params, llm.engine().vocab_size()));
  return params;
}

std::string utf8_fault(const std::string& text) {
  const std::optional<size_t> at = find_invalid_utf8(text);
  return at ? format("found a byte at ", *at, " that is not UTF-8, expected UTF-8") : "";
}

Status check_utf8(std::string_view name, const std::string& text) {
  const std::string fault = utf8_fault(text);
  if (fault.empty()) return {};
  return Error{Code::kInvalidArgument, format(name, ": ", fault)};
}

std::string effort_names() {
  std::string names;
  for (const EffortLevel& level : default_effort_levels()) {
    names += (names.empty() ? "" : ", ") + level.name;
  }
  return names + " or 1 to 100";
}

Result<int> parse_effort(std::string_view effort) {
  for (const EffortLevel& level : default_effort_levels()) {
    if (level.name == effort) return level.effort;
  }
  int number = 0;
  if (parse_number(effort, number) && number >= 1 && number <= 100) return number;
  return Error{Code::kInvalidArgument, format("found \"", effort, "\", expected ", effort_names())};
}

Status apply(const ThinkingFlags& flags, ChatRequest& chat) {
  if (flags.no_think) chat.thinking = false;
  if (flags.effort.empty()) return {};
  ASSIGN_OR_RETURN(chat.reasoning_effort, parse_effort(flags.effort));
  return {};
}

}  // namespace millrace
