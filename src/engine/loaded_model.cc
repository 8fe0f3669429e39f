#include "engine/loaded_model.h"

#include <cstdio>

#include "base/format.h"
#include "base/sha256.h"
#include "sys/file.h"

namespace millrace {

Result<const KernelTable*> choose_kernels(std::string_view isa) {
  if (const KernelTable* table = find_kernels(isa)) return table;
  std::string names;
  for (const KernelTable* table : fast_kernels()) names += format(table->name, ", ");
  return Error{Code::kInvalidArgument,
               format("kernel table: found \"", isa, "\", expected one of ", names, ref_kernels().name)};
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

LoadedModel::LoadedModel(Checkpoint checkpoint, MappedExpertSource experts, Model model,
                         const KernelTable& kernels, int num_threads)
    : checkpoint_(std::move(checkpoint)),
      experts_(std::move(experts)),
      model_(std::move(model)),
      kernels_(kernels),
      pool_(num_threads),
      kernel_context_(pool_) {}

Result<std::unique_ptr<LoadedModel>> LoadedModel::open(const LoadOptions& options,
                                                       std::vector<int32_t> token_map,
                                                       const OpenProgress& progress) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return Error{Code::kInvalidArgument, format("threads: found ", options.num_threads,
                                                ", expected 1 to ", kMaxThreads, ", or 0 for all")};
  }
  ASSIGN_OR_RETURN(const KernelTable* kernels, choose_kernels(options.isa));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(options.model_dir, progress));
  // What is bound here are addresses in mapped memory, which stay when the owner moves.
  ASSIGN_OR_RETURN(MappedExpertSource experts,
                   MappedExpertSource::open(checkpoint.config(), checkpoint));
  ASSIGN_OR_RETURN(Model model, Model::load(checkpoint.config(), checkpoint, std::move(token_map),
                                            options.numerics));
  const int num_threads = options.num_threads > 0 ? options.num_threads : default_num_threads();
  return std::unique_ptr<LoadedModel>(new LoadedModel(std::move(checkpoint), std::move(experts),
                                                      std::move(model), *kernels, num_threads));
}

}  // namespace millrace
