#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/expert_source.h"
#include "engine/load_options.h"
#include "engine/recording.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/runner.h"
#include "sys/thread_pool.h"

namespace millrace {

// The table called `isa`, or an error that lists what there is.
Result<const KernelTable*> choose_kernels(std::string_view isa);

std::string numerics_name(Numerics numerics);  // "reference" or "fp32"

// What two computers must share to give the same answer for the same checkpoint: the kernels'
// measured digest and the mode.
std::string numerics_id(uint64_t digest, Numerics numerics);

// Of the checkpoint that was opened in this directory.
Result<ModelIdentity> identify_model(const std::string& model_dir, const Checkpoint& checkpoint);

// A checkpoint opened, checked and bound, with the threads and kernels that run it. Stays at one
// address: its parts point to each other.
class LoadedModel {
 public:
  // `token_map` belongs to the tokenizer beside the checkpoint (tokenizer/token_map.h).
  static Result<std::unique_ptr<LoadedModel>> open(const LoadOptions& options,
                                                   std::vector<int32_t> token_map,
                                                   const OpenProgress& progress = {});

  const ModelConfig& config() const { return model_.config; }
  const Model& model() const { return model_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() { return pool_; }
  KernelContext& kernel_context() { return kernel_context_; }
  // Runs the model on sequences in `store`, which must outlive it, as must this.
  Runner make_runner(KvStore& store) {
    return Runner(model_, experts_, store, kernels_, kernel_context_);
  }

 private:
  LoadedModel(Checkpoint checkpoint, MappedExpertSource experts, Model model,
              const KernelTable& kernels, int num_threads);

  Checkpoint checkpoint_;
  MappedExpertSource experts_;
  Model model_;
  const KernelTable& kernels_;
  ThreadPool pool_;
  KernelContext kernel_context_;
};

}  // namespace millrace
