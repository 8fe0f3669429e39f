#pragma once

// Random checkpoints in the released format, of any size, for tests and measurements.

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint_writer.h"
#include "model_config/model_config.h"
#include "synth/shapes.h"

namespace millrace {

// Everything but the tensors of a checkpoint, checked before anything is written.
struct SynthPlan {
  ModelConfig config;
  std::string config_json, tokenizer_json, tokenizer_config_json, generation_config_json;
  int64_t num_tensors = 0;
  int64_t tensor_bytes = 0;
};

// `base` with the changes, and a tokenizer that fits the result: with a vocabulary of the same
// size it has the config's number of compressed ids. The plan's config is what
// parse_model_config() makes of its config_json.
Result<SynthPlan> plan_synth(const ModelConfig& base, const SizeChanges& changes);

struct SynthOptions {
  uint64_t seed = 0;
  std::optional<int64_t> num_shards;  // default: by size; 48 for that of the release
  bool sparse = false;                // tensors are holes: zeros that take no space
  bool overwrite = false;             // write into a folder that is not empty, and remove the
                                      // shards of a model that was there
};

// Writes the checkpoint into `folder`, which is created if it does not exist. config.json comes
// last: a folder without it is not complete. After an error nothing of this call is left, and
// what was overwritten is gone.
Status write_synth(const std::string& folder, const SynthPlan& plan, const SynthOptions& options,
                   const WriteProgress& progress = {});

}  // namespace millrace
