#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>
#include <vector>

#include "base/format.h"
#include "chat/json_writer.h"
#include "checkpoint/checkpoint.h"
#include "commands.h"
#include "console.h"
#include "engine/memory_plan.h"
#include "inspect_machine.h"
#include "llm/llm.h"
#include "model_config/cost.h"
#include "model_config/layer_map.h"
#include "model_flags.h"
#include "sys/file.h"
#include "sys/memory.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// What there is to say about a model, from its config alone or from its checkpoint.
struct Inspected {
  std::string path;
  ModelConfig config;
  std::optional<Checkpoint> checkpoint;  // when the folder has weights
  std::vector<Error> faults;             // of what stands beside the weights
};

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

bool has_weights(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

Result<Inspected> open(const std::string& path) {
  Inspected inspected{path, {}, std::nullopt, {}};
  std::error_code error;
  const bool is_folder = path.empty() || fs::is_directory(path, error);
  if (is_folder) {
    ASSIGN_OR_RETURN(inspected.path, resolve_model_dir(path));
    if (has_weights(inspected.path)) {
      Progress progress("loading " + inspected.path, "files");
      ASSIGN_OR_RETURN(Checkpoint checkpoint,
                       Checkpoint::open(inspected.path,
                                        [&](int64_t done, int64_t all) { progress(done, all); }));
      inspected.config = checkpoint.config();
      inspected.checkpoint.emplace(std::move(checkpoint));
      inspected.faults = find_faults(inspected.path, inspected.config);
      return inspected;
    }
  }
  const std::string file = is_folder ? inspected.path + "/config.json" : path;
  ASSIGN_OR_RETURN(const std::string json, read_file(file, kMaxConfigBytes));
  Result<ModelConfig> config = parse_model_config(json);
  if (!config.has_value()) {
    return Error{config.error().code, format(file, ": ", config.error().message)};
  }
  inspected.config = std::move(config.value());
  return inspected;
}

std::string layer_extras(const LayerInfo& layer) {
  std::string extras;
  const auto add = [&](bool has, const std::string& what) {
    if (has) extras += (extras.empty() ? "" : ", ") + what;
  };
  add(layer.owns_compressor, "compressor");
  add(layer.owns_index, "index");
  add(layer.is_candidate_source, "candidate source");
  add(layer.is_candidate_filtered, "candidate filter");
  add(layer.has_engram(), format("engram table ", layer.engram_table));
  add(layer.is_draft_target, "draft target");
  return extras;
}

// How many sequences of one length have room for their state.
struct Fit {
  int64_t tokens, sequences;
};

// At the longest context and at fractions of it.
std::vector<Fit> fits(const ModelConfig& config, int64_t kv_bytes) {
  const KvSize kv = kv_size(config);
  std::vector<Fit> fits;
  for (const int64_t part : {64, 16, 4, 1}) {
    const int64_t tokens = config.max_position_embeddings / part;
    if (tokens == 0) continue;
    const double bytes = double(kv.bytes_per_sequence()) + kv.bytes_per_token() * double(tokens);
    fits.push_back({tokens, int64_t(double(kv_bytes) / bytes)});
  }
  return fits;
}

// Of the cache, where the engine runs this model on this machine and nobody says otherwise.
int64_t default_kv_bytes(const Inspected& inspected) {
  const CheckpointSize size = checkpoint_size(tensor_list(inspected.config));
  return default_kv_bytes(MachineMemory{memory_limit_bytes(), size.total.bytes, anonymous_bytes()});
}

std::string id_or_dash(int64_t id) { return id < 0 ? "-" : std::to_string(id); }

std::string model_text(const Inspected& inspected, std::optional<int64_t> kv_bytes) {
  const ModelConfig& config = inspected.config;
  const CheckpointSize size = checkpoint_size(tensor_list(config));
  const KvSize kv = kv_size(config);
  std::ostringstream out;
  out << inspected.path << "\n";
  out << "layers " << config.num_hidden_layers << ", draft stages "
      << config.num_nextn_predict_layers << ", hidden " << config.hidden_size << ", heads "
      << config.num_attention_heads << " x " << config.head_dim << ", experts "
      << config.num_experts_per_tok << " of " << config.n_routed_experts << ", vocabulary "
      << config.vocab_size << ", context " << config.max_position_embeddings << "\n\n";

  out << std::left << std::setw(7) << "layer" << std::right << std::setw(6) << "ratio"
      << std::setw(11) << "kv source" << std::setw(14) << "index source"
      << "  extras\n";
  const std::vector<LayerInfo> layers = layer_map(config);
  for (size_t l = 0; l < layers.size(); ++l) {
    out << std::left << std::setw(7) << l << std::right << std::setw(6) << layers[l].compress_ratio
        << std::setw(11) << id_or_dash(layers[l].kv_source) << std::setw(14)
        << id_or_dash(layers[l].index_source) << "  " << layer_extras(layers[l]) << "\n";
  }

  out << "\n" << std::left << std::setw(18) << "part" << std::right << std::setw(9) << "tensors"
      << std::setw(20) << "parameters" << std::setw(20) << "bytes" << "\n";
  const auto row = [&](std::string_view name, const PartSize& part) {
    if (part.num_tensors == 0) return;
    out << std::left << std::setw(18) << name << std::right << std::setw(9) << part.num_tensors
        << std::setw(20) << grouped(part.parameters) << std::setw(20) << grouped(part.bytes)
        << "\n";
  };
  for (int p = 0; p < kNumTensorParts; ++p) row(part_name(TensorPart(p)), size.of(TensorPart(p)));
  row("total", size.total);

  out << "\nstate, stored: " << kv.bytes_per_token() << " bytes per token (compressed rows "
      << kv.compressed_bytes_per_token << ", index keys " << kv.index_bytes_per_token << ") and "
      << grouped(kv.bytes_per_sequence()) << " per sequence\n";
  if (kv_bytes) {
    out << "room for the state in " << grouped(*kv_bytes) << " bytes:\n";
    for (const Fit& fit : fits(config, *kv_bytes)) {
      out << std::right << std::setw(16) << grouped(fit.sequences) << " sequences of "
          << grouped(fit.tokens) << " tokens fit\n";
    }
  }
  if (inspected.checkpoint) {
    out << "checkpoint: " << inspected.checkpoint->shards().size()
        << " files, every tensor present (" << grouped(inspected.checkpoint->copied_bytes())
        << " misaligned bytes copied)\n";
  } else {
    out << "checkpoint: no weights here, config only\n";
  }
  out << "numerics " << numerics_id_here(*find_kernels("")) << "\n";
  return out.str();
}

void write_part(std::string_view name, const PartSize& part, JsonWriter& json) {
  json.key(name).begin_object().member("tensors", part.num_tensors);
  json.member("parameters", part.parameters).member("bytes", part.bytes).end_object();
}

void write_model(const Inspected& inspected, std::optional<int64_t> kv_bytes, JsonWriter& json) {
  const ModelConfig& config = inspected.config;
  const CheckpointSize size = checkpoint_size(tensor_list(config));
  const KvSize kv = kv_size(config);
  json.member("path", inspected.path);
  json.member("num_hidden_layers", config.num_hidden_layers);
  json.member("num_nextn_predict_layers", config.num_nextn_predict_layers);
  json.member("hidden_size", config.hidden_size);
  json.member("vocab_size", config.vocab_size);
  json.member("max_position_embeddings", config.max_position_embeddings);
  json.key("layers").begin_array();
  for (const LayerInfo& layer : layer_map(config)) {
    json.begin_object().member("compress_ratio", layer.compress_ratio);
    json.member("kv_source", layer.kv_source).member("index_source", layer.index_source);
    json.member("owns_compressor", layer.owns_compressor).member("owns_index", layer.owns_index);
    json.member("is_candidate_source", layer.is_candidate_source);
    json.member("is_candidate_filtered", layer.is_candidate_filtered);
    json.member("engram_table", layer.engram_table);
    json.member("is_draft_target", layer.is_draft_target).end_object();
  }
  json.end_array().key("parts").begin_object();
  for (int p = 0; p < kNumTensorParts; ++p) {
    write_part(part_name(TensorPart(p)), size.of(TensorPart(p)), json);
  }
  json.end_object();
  write_part("total", size.total, json);
  json.member("kv_bytes_per_token", kv.bytes_per_token());
  json.member("kv_bytes_per_sequence", kv.bytes_per_sequence());
  if (kv_bytes) {
    json.member("kv_bytes", *kv_bytes).key("fits").begin_array();
    for (const Fit& fit : fits(config, *kv_bytes)) {
      json.begin_object()
          .member("tokens", fit.tokens)
          .member("sequences", fit.sequences)
          .end_object();
    }
    json.end_array();
  }
  json.key("checkpoint_files");
  if (inspected.checkpoint) {
    json.value(int64_t(inspected.checkpoint->shards().size()));
  } else {
    json.null();
  }
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  const bool has_model = !options.machine || !options.path.empty() || options.kv_bytes;
  std::optional<int64_t> kv_bytes = options.kv_bytes;
  if (options.machine && !kv_bytes) kv_bytes = memory_available_bytes();
  JsonWriter json;
  json.begin_object();
  std::string text;
  int status = kExitOk;
  if (has_model) {
    const Result<Inspected> inspected = open(options.path);
    if (!inspected.has_value()) return fail(inspected.error());
    for (const Error& fault : inspected.value().faults) status = fail(fault);
    write_model(inspected.value(), kv_bytes, json);
    text = model_text(inspected.value(), kv_bytes);
    if (options.machine) {
      const int64_t by_default = default_kv_bytes(inspected.value());
      json.member("default_kv_bytes", by_default);
      text += format("an engine here would take ", grouped(by_default), " bytes for the state\n");
    }
  }
  if (options.machine) {
    write_machine(json);
    text += (has_model ? "\n" : "") + machine_text();
  }
  json.member("numerics_id", numerics_id_here(*find_kernels("")));
  print(options.json ? json.end_object().text() + "\n" : text);
  return status;
}

}  // namespace millrace
