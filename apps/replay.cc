// `millrace replay`: a recorded run once more, compared with what was recorded.

#include <iostream>

#include "base/format.h"
#include "commands.h"
#include "console.h"
#include "engine/replay.h"
#include "llm/llm.h"
#include "model_flags.h"
#include "sys/file.h"

namespace millrace {
namespace {

Result<std::unique_ptr<ReplayModel>> open_model(const ReplayOptions& options,
                                                std::string_view recording) {
  ASSIGN_OR_RETURN(const RecordingHeader header, read_header(recording));
  ModelFlags flags;
  flags.model_dir = options.model_dir;
  flags.num_threads = options.num_threads;
  flags.isa = options.isa;
  ASSIGN_OR_RETURN(const LoadOptions load, make_load_options(flags));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(load.model_dir));
  TokenTable table = make_token_table(tokenizer, {});
  Progress progress("loading " + load.model_dir, "files");
  ASSIGN_OR_RETURN(std::unique_ptr<ReplayModel> model,
                   ReplayModel::open(header, load, std::move(table.compressed_ids),
                                     [&](int64_t done, int64_t all) { progress(done, all); }));
  if (model->numerics_id() != header.numerics_id) {
    warn(format("numerics id: found ", model->numerics_id(), ", expected ", header.numerics_id,
                " of the recording: tokens may differ"));
  }
  return model;
}

}  // namespace

int run_replay(const ReplayOptions& options) {
  const Result<MappedFile> file = MappedFile::open(options.file);
  if (!file.has_value()) return fail(file.error());
  const std::span<const uint8_t> bytes = file.value().bytes();
  const std::string_view recording(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto fail_in_file = [&](const Error& error) {
    return fail({error.code, format(options.file, ": ", error.message)});
  };
  const Result<RecordingHeader> header = read_header(recording);
  if (!header.has_value()) return fail_in_file(header.error());

  std::unique_ptr<ReplayModel> model;
  if (!options.plans_only) {
    Result<std::unique_ptr<ReplayModel>> opened = open_model(options, recording);
    if (!opened.has_value()) return fail(opened.error());
    model = std::move(opened.value());
  }
  const Result<ReplayReport> replayed = replay(recording, model ? &model->executor() : nullptr);
  if (!replayed.has_value()) return fail_in_file(replayed.error());
  const ReplayReport& report = replayed.value();
  for (const std::string& difference : report.differences) std::cerr << difference << "\n";
  if (!report.is_complete && report.num_differences == 0) {
    warn(format(options.file, ": the recording ends with line ", report.num_lines,
                ", before the end of the run"));
  }
  print(format(report.num_steps, " steps, ", report.num_rows, " rows, ", report.num_requests,
               " requests, ", report.num_tokens, " tokens, ", report.num_differences,
               report.num_differences == 1 ? " difference" : " differences",
               options.plans_only ? " in plans\n" : "\n"));
  return report.num_differences == 0 ? kExitOk : kExitError;
}

}  // namespace millrace
