#include <algorithm>
#include <utility>

#include "base/format.h"
#include "checkpoint/safetensors.h"
#include "commands.h"
#include "console.h"
#include "engine/loaded_model.h"
#include "llm/llm.h"
#include "model/lone_sequence.h"
#include "model_flags.h"
#include "named_files.h"
#include "sampler/sampler.h"
#include "sys/file.h"
#include "tokenizer/token_map.h"

namespace millrace {
namespace {

// The tensors that each output file will hold; outputs may share a file, also by other names of it.
class Outputs {
 public:
  template <class T>
  void add(const std::string& file, std::string name, Dtype dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    tensors_of(file).push_back({std::move(name), dtype, std::move(shape),
                                std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(T))});
  }

  Status write() const {
    for (const auto& [file, tensors] : files_) {
      std::vector<TensorHeader> list;
      for (const Tensor& t : tensors) list.push_back({t.name, t.dtype, t.shape});
      std::string content = safetensors_header(list);
      for (const Tensor& t : tensors) content.append(t.bytes.begin(), t.bytes.end());
      RETURN_IF_ERROR(write_file(file, content));
    }
    return {};
  }

 private:
  struct Tensor {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
  };

  std::vector<Tensor>& tensors_of(const std::string& file) {
    for (auto& [name, tensors] : files_) {
      if (name == file || is_same_file(name, file)) return tensors;
    }
    return files_.emplace_back(file, std::vector<Tensor>()).second;
  }

  std::vector<std::pair<std::string, std::vector<Tensor>>> files_;
};

void add_trace(const Trace& trace, const std::string& file, Outputs& outputs) {
  for (const auto& [name, tensor] : trace.tensors()) {
    outputs.add(file, "trace." + name, Dtype::kF32, tensor.shape, tensor.values);
  }
  for (const auto& [name, tensor] : trace.ids()) {
    outputs.add(file, "trace." + name, Dtype::kI32, tensor.shape, tensor.values);
  }
  for (const auto& [name, selection] : trace.selections()) {
    const int64_t num_tokens = int64_t(selection.selected.size());
    std::vector<uint8_t> mask(size_t(num_tokens * selection.num_rows));
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int32_t row : selection.selected[size_t(t)])
        mask[size_t(t * selection.num_rows + row)] = 1;
    }
    outputs.add(file, "trace." + name, Dtype::kU8, {num_tokens, selection.num_rows}, mask);
  }
}

// The draft after the greedy next token.
Status add_draft(Runner& runner, const LoneSequence& sequence, std::span<const float> logits,
                 const std::string& file, Outputs& outputs) {
  const auto anchor = int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  ASSIGN_OR_RETURN(const Draft draft,
                   runner.draft(sequence.slot(), sequence.num_tokens(), anchor));
  const auto count = int64_t(draft.tokens.size());
  outputs.add(file, "draft.anchor", Dtype::kI64, {1}, std::vector<int64_t>{anchor});
  outputs.add(file, "draft.tokens", Dtype::kI64, {count},
              std::vector<int64_t>(draft.tokens.begin(), draft.tokens.end()));
  outputs.add(file, "draft.confidence", Dtype::kF32, {count}, draft.confidences);
  return {};
}

// Only the Engram memory needs the tokenizer; a checkpoint without it may come without one.
Result<std::vector<int32_t>> read_token_map(const std::string& model_dir) {
  ASSIGN_OR_RETURN(const std::string json, read_file(model_dir + "/config.json"));
  const Result<ModelConfig> config = parse_model_config(json);
  if (config.has_value() && config.value().engram_layer_ids.empty()) return std::vector<int32_t>();
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(model_dir));
  return make_token_map(tokenizer).compressed_ids;
}

Status forward(const ForwardCommandOptions& options, const std::vector<int32_t>& token_ids) {
  for (const std::string& file : {options.logits_file, options.trace_file, options.draft_file}) {
    if (!file.empty()) RETURN_IF_ERROR(check_writable(file));
  }
  ASSIGN_OR_RETURN(const LoadOptions load, make_load_options(options.model));
  ASSIGN_OR_RETURN(std::vector<int32_t> token_map, read_token_map(load.model_dir));
  Progress progress("loading " + load.model_dir, "files");
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                   LoadedModel::open(load, std::move(token_map),
                                     [&](int64_t done, int64_t all) { progress(done, all); }));
  for (const std::string& warning : model->warnings()) warn(warning);
  const int64_t vocab_size = model->config().vocab_size;
  const int64_t num_tokens = int64_t(token_ids.size());
  if (num_tokens > model->config().max_position_embeddings) {
    return Error{Code::kInvalidArgument,
                 format("--token-ids: found ", num_tokens, " tokens, expected at most ",
                        model->config().max_position_embeddings, ", max_position_embeddings")};
  }

  Trace trace;
  ForwardOptions forward_options;
  forward_options.feed_draft = !options.draft_file.empty();
  forward_options.trace = options.trace_file.empty() ? nullptr : &trace;
  ASSIGN_OR_RETURN(LoneSequence sequence,
                   LoneSequence::create(model->config(), model->model().numerics, num_tokens));
  Runner runner = model->make_runner(sequence.store());
  std::vector<float> logits, chunk_logits;
  for (int64_t begin = 0; begin < num_tokens; begin += options.model.chunk) {
    const int64_t end = std::min(begin + options.model.chunk, num_tokens);
    const BatchSegment segment =
        sequence.append(std::span(token_ids).subspan(size_t(begin), size_t(end - begin)),
                        !options.logits_file.empty() ? LogitsFor::kAll
                        : end == num_tokens          ? LogitsFor::kLast
                                                     : LogitsFor::kNone);
    RETURN_IF_ERROR(runner.forward({&segment, 1}, forward_options, chunk_logits));
    logits.insert(logits.end(), chunk_logits.begin(), chunk_logits.end());
  }

  Outputs outputs;
  if (!options.logits_file.empty()) {
    outputs.add(options.logits_file, "logits", Dtype::kF32, {num_tokens, vocab_size}, logits);
  }
  if (!options.trace_file.empty()) add_trace(trace, options.trace_file, outputs);
  if (!options.draft_file.empty()) {
    RETURN_IF_ERROR(add_draft(runner, sequence, std::span(logits).last(size_t(vocab_size)),
                              options.draft_file, outputs));
  }
  RETURN_IF_ERROR(outputs.write());
  // Said after writing: the files show where it began.
  const int64_t num_rows = int64_t(logits.size()) / vocab_size;
  for (int64_t r = 0; r < num_rows; ++r) {
    RETURN_IF_ERROR(
        check_finite(std::span(logits).subspan(size_t(r * vocab_size), size_t(vocab_size)),
                     "forward", num_tokens - num_rows + r));
  }
  return {};
}

}  // namespace

int run_forward(const ForwardCommandOptions& options) {
  const Result<std::vector<int32_t>> token_ids = parse_token_ids(options.token_ids);
  if (!token_ids.has_value()) return fail_usage(token_ids.error());
  const Status status = forward(options, token_ids.value());
  return status.ok() ? kExitOk : fail(status.error());
}

}  // namespace millrace
