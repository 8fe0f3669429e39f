#include "engine/loaded_model.h"

#include <algorithm>
#include <cstdio>

#include "base/format.h"
#include "base/sha256.h"
#include "checkpoint/disk_expert_source.h"
#include "engine/memory_plan.h"
#include "model_config/cost.h"
#include "sys/file.h"
#include "sys/memory.h"
#include "sys/read_queue.h"

namespace millrace {

Result<const KernelTable*> choose_kernels(std::string_view isa) {
  if (const KernelTable* table = find_kernels(isa)) return table;
  std::string names;
  for (const KernelTable* table : fast_kernels()) names += format(table->name, ", ");
  return Error{Code::kInvalidArgument, format("kernel table: found \"", isa, "\", expected one of ",
                                              names, ref_kernels().name)};
}

std::string numerics_name(Numerics numerics) {
  return numerics == Numerics::kReference ? "reference" : "fp32";
}

std::string numerics_id(uint64_t digest, Numerics numerics) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(digest));
  return format(numerics_name(numerics), "-", hex);
}

Result<ModelIdentity> identify_model(const std::string& model_dir, const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(const std::string config, read_file(model_dir + "/config.json"));
  std::string tensors;
  for (const TensorSpec& tensor : checkpoint.tensors()) {
    tensors.append(tensor.name).append(" ").append(dtype_name(tensor.dtype));
    for (const int64_t size : tensor.shape) tensors.append(" ").append(std::to_string(size));
    tensors += '\n';
  }
  return ModelIdentity{sha256(config), sha256(tensors)};
}

LoadedModel::LoadedModel(Checkpoint checkpoint, Model model, const KernelTable& kernels,
                         ThreadPlan threads)
    : checkpoint_(std::move(checkpoint)),
      model_(std::move(model)),
      kernels_(kernels),
      memory_nodes_(std::move(threads.memory_nodes)),
      pool_(threads.num_threads, std::move(threads.cpus)),
      kernel_context_(pool_) {}

Result<std::unique_ptr<LoadedModel>> LoadedModel::open(const LoadOptions& options,
                                                       std::vector<int32_t> token_map,
                                                       const OpenProgress& progress,
                                                       std::optional<int64_t> kv_bytes) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return Error{Code::kInvalidArgument,
                 format("threads: found ", options.num_threads, ", expected 1 to ", kMaxThreads,
                        ", or 0 for the default")};
  }
  ASSIGN_OR_RETURN(const KernelTable* kernels, choose_kernels(options.isa));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(options.model_dir, progress));
  // What is bound here are addresses in mapped memory, which stay when the owner moves.
  ASSIGN_OR_RETURN(Model model, Model::load(checkpoint.config(), checkpoint, std::move(token_map),
                                            options.numerics));
  ThreadPlan threads =
      plan_threads({.num_threads = options.num_threads, .serves = options.serves});
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(std::move(checkpoint), std::move(model),
                                                      *kernels, std::move(threads)));
  RETURN_IF_ERROR(loaded->open_experts(options, kv_bytes));
  return loaded;
}

Status LoadedModel::open_experts(const LoadOptions& options,
                                 std::optional<int64_t> kv_bytes) {
  const ModelConfig& config = checkpoint_.config();
  ASSIGN_OR_RETURN(ExpertFiles files, ExpertFiles::open(checkpoint_));
  const CheckpointSize sizes = checkpoint_size(checkpoint_.tensors());
  const int64_t experts_per_token = std::max(
      config.num_experts_per_tok,
      config.num_nextn_predict_layers > 0 ? config.dspark_num_experts_per_tok : int64_t{0});
  ExpertSizes experts;
  experts.expert_bytes = sizes.of(TensorPart::kRoutedExpert).bytes;
  experts.dense_bytes =
      sizes.total.bytes - experts.expert_bytes - sizes.of(TensorPart::kEngramTable).bytes;
  for (const int64_t count : files.num_experts()) experts.num_experts += count;
  experts.slot_bytes = int64_t(files.slot_bytes());
  experts.least_slots = DiskExpertSource::least_slots(experts_per_token);
  const MachineMemory machine{memory_limit_bytes(), sizes.total.bytes, anonymous_bytes()};
  ASSIGN_OR_RETURN(
      const int64_t cache_bytes,
      plan_expert_cache(experts, machine, options.expert_cache_bytes, kv_bytes));
  if (cache_bytes == 0) {
    ASSIGN_OR_RETURN(MappedExpertSource mapped, MappedExpertSource::open(config, checkpoint_));
    experts_ = std::make_unique<MappedExpertSource>(std::move(mapped));
    return {};
  }
  Result<std::unique_ptr<ReadQueue>> queue = open_uring_queue(DiskExpertSource::kReadsInFlight);
  if (!queue.has_value()) {
    warnings_.push_back(format(queue.error().message,
                               ": experts are read with pread, one piece after the other"));
    queue = make_blocking_queue(DiskExpertSource::kReadsInFlight);
  }
  if (!files.is_direct()) {
    warnings_.push_back(format(options.model_dir,
                               ": the file system has no reads past the page cache: experts that "
                               "are read take memory there, too"));
  }
  expert_reads_ = queue.value()->name();
  cached_file_bytes_ = experts.expert_bytes;
  ASSIGN_OR_RETURN(experts_, DiskExpertSource::open(std::move(files), cache_bytes,
                                                    std::move(queue.value())));
  return {};
}

}  // namespace millrace
