#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expert_source.h"
#include "model/runner.h"
#include "sys/fp_environment.h"
#include "tokenizer/token_map.h"

namespace millrace {

// A checkpoint from the repository with everything a Runner needs.
class LoadedModel {
 public:
  LoadedModel(const std::string& folder, Numerics numerics)
      : tokenizer_(take(Tokenizer::parse(take(read_file(folder + "/tokenizer.json"))))),
        checkpoint_(take(Checkpoint::open(folder))),
        experts_(take(MappedExpertSource::open(checkpoint_.config(), checkpoint_))),
        model_(take(Model::load(checkpoint_.config(), checkpoint_,
                                make_token_map(tokenizer_).compressed_ids, numerics))) {}

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const Model& model() const { return model_; }
  ExpertSource& experts() { return experts_; }

 private:
  template <class T>
  static T take(Result<T> result) {
    if (!result.has_value()) check_failed(__FILE__, __LINE__, result.error().message.c_str());
    return std::move(result.value());
  }

  ScopedFpEnvironment fp_;
  Tokenizer tokenizer_;
  Checkpoint checkpoint_;
  MappedExpertSource experts_;
  Model model_;
};

}  // namespace millrace
