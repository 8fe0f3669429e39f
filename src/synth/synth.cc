#include "synth/synth.h"

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/format.h"
#include "chat/wire_text.h"
#include "model_config/config_json.h"
#include "synth/random_weights.h"
#include "synth/synth_tokenizer.h"
#include "sys/file.h"
#include "sys/output_file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

// Of an average file; 48 of them hold the release.
constexpr int64_t kShardBytes = 10'700'000'000;
// For headers, index and tokenizer, which grow with the number of tensors and tokens.
constexpr int64_t kSpareBytes = int64_t{64} << 20;

std::string tokenizer_config_json(const ModelConfig& config) {
  const auto literal = [](std::string_view text) { return json::string(text.data(), text.size()); };
  const json::object root = {{"add_bos_token", false},
                             {"add_eos_token", false},
                             {"bos_token", literal(wire::kBos)},
                             {"eos_token", literal(wire::kEos)},
                             {"pad_token", literal(kPadLiteral)},
                             {"clean_up_tokenization_spaces", false},
                             {"model_max_length", config.max_position_embeddings},
                             {"tokenizer_class", "PreTrainedTokenizerFast"}};
  return json::serialize(root) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  const json::object root = {{"bos_token_id", config.bos_token_id},
                             {"eos_token_id", config.eos_token_id},
                             {"pad_token_id", config.pad_token_id},
                             {"do_sample", true},
                             {"temperature", 1.0},
                             {"top_p", 1.0}};
  return json::serialize(root) + "\n";
}

bool is_shard_name(std::string_view name) {
  constexpr std::string_view kForm = "model-00000-of-00000.safetensors";
  const auto is_alike = [](char form, char c) {
    return form == '0' ? '0' <= c && c <= '9' : c == form;
  };
  return std::equal(kForm.begin(), kForm.end(), name.begin(), name.end(), is_alike);
}

// A piece of such a file from a run that was killed.
bool is_abandoned(const fs::path& path) {
  constexpr std::string_view kNames[] = {"model.safetensors.index.json", "config.json",
                                         "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json"};
  const std::optional<std::string> name = abandoned_name(path.filename().string());
  return name && (is_shard_name(*name) || std::ranges::count(kNames, *name) > 0);
}

void remove_abandoned(const std::string& folder) {
  std::vector<fs::path> abandoned;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_abandoned(entry.path())) abandoned.push_back(entry.path());
  }
  for (const fs::path& path : abandoned) fs::remove(path, error);
}

Error cannot(const std::string& folder, std::string_view what, const std::error_code& error) {
  return {Code::kUnavailable, format(folder, ": cannot ", what, ": ", error.message())};
}

// Makes sure of an empty folder, or of one that may be written over; what killed runs left in it
// does not count. Whether it was created.
Result<bool> prepare(const std::string& folder, bool overwrite) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (fs::exists(status)) {
    if (!fs::is_directory(status)) {
      return Error{Code::kInvalidArgument, format(folder, ": found a file, expected a folder")};
    }
    bool is_empty = true;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      is_empty = is_empty && is_abandoned(entry.path());
    }
    if (error) return cannot(folder, "list", error);
    if (!is_empty && !overwrite) {
      return Error{
          Code::kInvalidArgument,
          format(folder, ": found files in the folder, expected none without --overwrite")};
    }
    return false;
  }
  fs::create_directories(folder, error);
  if (error) return cannot(folder, "create", error);
  return true;
}

Status check_space(const std::string& folder, int64_t needed) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) return cannot(folder, "ask for free space", error);
  if (space.available >= uint64_t(needed)) return {};
  return Error{Code::kExhausted,
               format(folder, ": found ", space.available, " bytes free, expected ", needed,
                      "; --sparse writes tensors as holes")};
}

// Names the flag whose value the config's error is about.
Error in_terms_of_flags(const Error& error, const SizeChanges& changes) {
  const struct {
    std::string_view key;
    bool is_changed;
    const char* flag;
  } flags[] = {{"hidden_size: ", changes.hidden.has_value(), "--hidden"},
               {"vocab_size: ", changes.vocab.has_value(), "--vocab"},
               {"n_routed_experts: ", changes.experts.has_value(), "--experts"},
               {"engram_vocab_size: ", changes.engram_rows.has_value(), "--engram-rows"},
               {"num_nextn_predict_layers: ", changes.draft.has_value(), "--draft"}};
  for (const auto& [key, is_changed, flag] : flags) {
    if (is_changed && error.message.starts_with(key)) {
      return {error.code, format(flag, ": ", error.message)};
    }
  }
  return error;
}

// Of the model that was there before, those that the new index does not name.
void remove_old_shards(const std::string& folder, std::span<const Shard> shards) {
  std::vector<fs::path> old;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const auto is_it = [&](const Shard& shard) { return shard.file_name == name; };
    if (is_shard_name(name) && std::none_of(shards.begin(), shards.end(), is_it)) {
      old.push_back(entry.path());
    }
  }
  for (const fs::path& path : old) fs::remove(path, error);
}

Status write_all(const std::string& folder, const SynthPlan& plan, const SynthOptions& options,
                 const WriteProgress& progress) {
  const int64_t num_shards =
      options.num_shards.value_or((plan.tensor_bytes + kShardBytes - 1) / kShardBytes);
  if (num_shards < 1 || num_shards > plan.num_tensors) {
    return Error{Code::kInvalidArgument, format("--shards: found ", num_shards, ", expected 1 to ",
                                                plan.num_tensors, ", the number of tensors")};
  }
  remove_abandoned(folder);  // before space is asked for, of which it took some
  RETURN_IF_ERROR(check_space(folder, kSpareBytes + (options.sparse ? 0 : plan.tensor_bytes)));
  TensorValues values;
  if (!options.sparse) {
    values = [&](const TensorSpec& tensor, int64_t offset, std::span<uint8_t> bytes) {
      random_values(options.seed, tensor, offset, bytes);
    };
  }
  std::error_code error;
  fs::remove(folder + "/config.json", error);  // until it is complete again
  const std::vector<Shard> shards = plan_shards(plan.config, num_shards);
  RETURN_IF_ERROR(write_shards(folder, shards, values, progress));
  std::vector<std::string> written = {folder + "/model.safetensors.index.json"};
  for (const Shard& shard : shards) written.push_back(format(folder, "/", shard.file_name));
  const std::pair<const char*, const std::string&> texts[] = {
      {"/tokenizer.json", plan.tokenizer_json},
      {"/tokenizer_config.json", plan.tokenizer_config_json},
      {"/generation_config.json", plan.generation_config_json},
      {"/config.json", plan.config_json}};
  for (const auto& [name, text] : texts) {
    const Status status = write_file(folder + name, text);
    if (!status.ok()) {
      for (const std::string& file : written) fs::remove(file, error);
      return status;
    }
    written.push_back(folder + name);
  }
  remove_old_shards(folder, shards);
  return {};
}

}  // namespace

Result<SynthPlan> plan_synth(const ModelConfig& base, const SizeChanges& changes) {
  SynthPlan plan;
  ModelConfig config = base;
  RETURN_IF_ERROR(apply(changes, config));
  config.engram_compressed_vocab_size =
      std::min(config.engram_compressed_vocab_size, config.vocab_size);
  ModelConfig checked = config;  // before a tokenizer of a senseless size is made
  if (const Status status = complete(checked); !status.ok()) {
    return in_terms_of_flags(status.error(), changes);
  }
  std::optional<int64_t> compressed_vocab_size;
  if (!changes.vocab && !config.engram_layer_ids.empty()) {
    compressed_vocab_size = config.engram_compressed_vocab_size;
  }
  Result<SynthTokenizer> tokenizer = make_tokenizer(config, compressed_vocab_size);
  if (!tokenizer.has_value()) return in_terms_of_flags(tokenizer.error(), changes);
  plan.tokenizer_json = std::move(tokenizer.value().json);
  config.engram_compressed_vocab_size = tokenizer.value().compressed_vocab_size;
  RETURN_IF_ERROR(complete(config));
  plan.config_json = config_json(config);
  ASSIGN_OR_RETURN(plan.config, parse_model_config(plan.config_json));
  plan.tokenizer_config_json = tokenizer_config_json(plan.config);
  plan.generation_config_json = generation_config_json(plan.config);
  const std::vector<TensorSpec> tensors = tensor_list(plan.config);
  plan.num_tensors = int64_t(tensors.size());
  for (const TensorSpec& tensor : tensors) plan.tensor_bytes += tensor.bytes();
  return plan;
}

Status write_synth(const std::string& folder, const SynthPlan& plan, const SynthOptions& options,
                   const WriteProgress& progress) {
  ASSIGN_OR_RETURN(const bool is_new, prepare(folder, options.overwrite));
  const Status status = write_all(folder, plan, options, progress);
  std::error_code error;
  if (!status.ok() && is_new) fs::remove(folder, error);
  return status;
}

}  // namespace millrace
