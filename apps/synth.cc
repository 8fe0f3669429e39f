#include "synth/synth.h"

#include <chrono>
#include <cstdio>

#include "base/format.h"
#include "commands.h"
#include "console.h"
#include "sys/file.h"

namespace millrace {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

Result<ModelConfig> base_config(const SynthCommandOptions& options) {
  if (options.config_file.empty()) return named_shape(options.shape);
  ASSIGN_OR_RETURN(const std::string json, read_file(options.config_file, kMaxConfigBytes));
  Result<ModelConfig> config = parse_model_config(json);
  if (!config.has_value()) {
    return Error{config.error().code, format(options.config_file, ": ", config.error().message)};
  }
  return config;
}

Status synth(const SynthCommandOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig base, base_config(options));
  ASSIGN_OR_RETURN(const SynthPlan plan, plan_synth(base, options.sizes));
  const Interrupts interrupts{SIGINT, SIGTERM};  // what is half written goes
  const auto begin = std::chrono::steady_clock::now();
  {
    Progress show(format("writing ", options.folder), "MB");
    const auto on_progress = [&](int64_t bytes_done, int64_t bytes_all) {
      show(bytes_done / 1'000'000, bytes_all / 1'000'000);
      return !Interrupts::take();
    };
    RETURN_IF_ERROR(write_synth(options.folder, plan, options.write, on_progress));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  char speed[64];
  std::snprintf(speed, sizeof speed, "%.1f s, %.0f MB/s", seconds.count(),
                double(plan.tensor_bytes) / seconds.count() / 1e6);
  print(format(options.folder, ": ", plan.num_tensors, " tensors, ", plan.tensor_bytes, " bytes",
               options.write.sparse ? ", all holes" : format(", ", speed), "\n"));
  return {};
}

}  // namespace

int run_synth(const SynthCommandOptions& options) {
  const Status status = synth(options);
  return status.ok() ? kExitOk : fail(status.error());
}

}  // namespace millrace
