#include "engine/open_checks.h"

#include <cmath>

#include "base/format.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

constexpr int64_t kMostBlockSize = 65536;

Error out_of_range(const char* what, int64_t found, const std::string& expected) {
  return {Code::kInvalidArgument, format(what, ": found ", found, ", expected ", expected)};
}

}  // namespace

Status validate(const EngineOptions& options) {
  if (options.prefill_chunk < 1) return out_of_range("chunk", options.prefill_chunk, "at least 1");
  if (options.max_num_seqs < 1 || options.max_num_seqs > kMaxNumSeqs) {
    return out_of_range("max_num_seqs", options.max_num_seqs, format("1 to ", kMaxNumSeqs));
  }
  if (options.block_size && (*options.block_size < 1 || *options.block_size > kMostBlockSize)) {
    return out_of_range("block_size", *options.block_size, format("1 to ", kMostBlockSize));
  }
  if (options.num_blocks && *options.num_blocks < 1) {
    return out_of_range("num_blocks", *options.num_blocks, "at least 1");
  }
  if (options.kv_bytes && *options.kv_bytes < 0) {
    return out_of_range("kv_bytes", *options.kv_bytes, "at least 0");
  }
  if (options.load.expert_cache_bytes && *options.load.expert_cache_bytes < 0) {
    return out_of_range("expert_cache_bytes", *options.load.expert_cache_bytes, "at least 0");
  }
  if (!options.record_file.empty() && !std::isfinite(options.max_step_ms)) {
    return Error{Code::kInvalidArgument, format("max_step_ms: found ", options.max_step_ms,
                                                ", expected a finite time in a recording")};
  }
  if (options.watchdog_seconds && !(*options.watchdog_seconds > 0)) {
    return Error{Code::kInvalidArgument, format("watchdog_seconds: found ",
                                                *options.watchdog_seconds, ", expected more than 0")};
  }
  return {};
}

Status check_max_model_len(const EngineOptions& options, const ModelConfig& config) {
  const int64_t longest = options.max_model_len.value_or(config.max_position_embeddings);
  if (longest < 1 || longest > config.max_position_embeddings) {
    return out_of_range("max_model_len", longest,
                        format("1 to ", config.max_position_embeddings,
                               ", the checkpoint's max_position_embeddings"));
  }
  return {};
}

Status complete(const ModelConfig& config, TokenTable& tokens) {
  if (int64_t(tokens.bytes.size()) > config.vocab_size) {
    return Error{Code::kInvalidArgument, format("tokenizer: found ", tokens.bytes.size(),
                                                " tokens, expected at most vocab_size, ",
                                                config.vocab_size)};
  }
  tokens.bytes.resize(size_t(config.vocab_size));
  tokens.is_control.resize(size_t(config.vocab_size), 0);
  tokens.is_added.resize(size_t(config.vocab_size), 0);
  if (tokens.eos_token_ids.empty()) tokens.eos_token_ids = {int32_t(config.eos_token_id)};
  for (int32_t id : tokens.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return out_of_range("eos_token_id", id, format("0 to ", config.vocab_size - 1));
    }
  }
  return {};
}

}  // namespace millrace
