#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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
#include "sys/thread_plan.h"
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
  //   kv_bytes  for the state of sequences, which a cache of experts leaves room for; none: the
  //             least of a plan
  static Result<std::unique_ptr<LoadedModel>> open(const LoadOptions& options,
                                                   std::vector<int32_t> token_map,
                                                   const OpenProgress& progress = {},
                                                   std::optional<int64_t> kv_bytes = std::nullopt);

  const ModelConfig& config() const { return model_.config; }
  const Model& model() const { return model_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() { return pool_; }
  // Where the pool's threads are, by the system's numbers, if they are at several.
  std::span<const int> memory_nodes() const { return memory_nodes_; }
  KernelContext& kernel_context() { return kernel_context_; }
  const ExpertSource& experts() const { return *experts_; }
  // How they come: "mapped", or by what they are read into a cache ("io_uring", "pread").
  const std::string& expert_reads() const { return expert_reads_; }
  // Of the files, what a cache of experts takes the place of.
  int64_t cached_file_bytes() const { return cached_file_bytes_; }
  // What whoever runs the model should know.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Runs the model on sequences in `store`, which must outlive it, as must this.
  Runner make_runner(KvStore& store) { return make_runner(store, kernels_); }
  // With other kernels than those it was opened for.
  Runner make_runner(KvStore& store, const KernelTable& kernels) {
    return Runner(model_, *experts_, store, kernels, kernel_context_);
  }

 private:
  LoadedModel(Checkpoint checkpoint, Model model, const KernelTable& kernels, ThreadPlan threads);
  Status open_experts(const LoadOptions& options, std::optional<int64_t> kv_bytes);

  Checkpoint checkpoint_;
  std::unique_ptr<ExpertSource> experts_;
  std::string expert_reads_ = "mapped";
  int64_t cached_file_bytes_ = 0;
  std::vector<std::string> warnings_;
  Model model_;
  const KernelTable& kernels_;
  std::vector<int> memory_nodes_;
  ThreadPool pool_;
  KernelContext kernel_context_;
};

}  // namespace millrace
