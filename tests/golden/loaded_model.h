#pragma once

#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/disk_expert_source.h"
#include "checkpoint/expert_source.h"
#include "model/runner.h"
#include "sys/fp_environment.h"
#include "sys/test_read_queue.h"
#include "tokenizer/token_map.h"

namespace millrace {

// A checkpoint from the repository with everything a Runner needs.
class LoadedModel {
 public:
  // `num_slots`: experts come from the disk, into a cache of so many; 0: they are mapped.
  LoadedModel(const std::string& folder, Numerics numerics, int64_t num_slots = 0)
      : tokenizer_(take(Tokenizer::parse(take(read_file(folder + "/tokenizer.json"))))),
        checkpoint_(take(Checkpoint::open(folder))),
        model_(take(Model::load(checkpoint_.config(), checkpoint_,
                                make_token_map(tokenizer_).compressed_ids, numerics))) {
    if (num_slots == 0) {
      experts_ = std::make_unique<MappedExpertSource>(
          take(MappedExpertSource::open(checkpoint_.config(), checkpoint_)));
      return;
    }
    ExpertFiles files = take(ExpertFiles::open(checkpoint_));
    const int64_t bytes = num_slots * int64_t(files.slot_bytes());
    experts_ = take(DiskExpertSource::open(std::move(files), bytes, test::open_queue(16)));
  }

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const Model& model() const { return model_; }
  ExpertSource& experts() { return *experts_; }

 private:
  template <class T>
  static T take(Result<T> result) {
    if (!result.has_value()) check_failed(__FILE__, __LINE__, result.error().message.c_str());
    return std::move(result.value());
  }

  ScopedFpEnvironment fp_;
  Tokenizer tokenizer_;
  Checkpoint checkpoint_;
  Model model_;
  std::unique_ptr<ExpertSource> experts_;
};

}  // namespace millrace
