#pragma once

// The toy checkpoint, and what a tokenizer would say of it.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "sys/file.h"

namespace millrace::test {

inline const std::string kGolden = MILLRACE_SOURCE_DIR "/tests/golden/";
constexpr int32_t kControl = 7;  // a token that we declare to be a control token

// The toy checkpoint's token map, as the reference stored it.
inline std::vector<int32_t> golden_token_map() {
  const std::string path = kGolden + "tiny-v41.golden.safetensors";
  const MappedFile file = std::move(MappedFile::open(path).value());
  const std::vector<TensorEntry> entries = parse_safetensors(file.bytes(), path).value();
  for (const TensorEntry& entry : entries) {
    if (entry.name != "token_map") continue;
    std::vector<int32_t> map(size_t(entry.shape[0]));
    std::memcpy(map.data(), file.bytes().data() + entry.begin, map.size() * sizeof(int32_t));
    return map;
  }
  return {};
}

// Every token is its number in angle brackets: what was generated can be read off the bytes.
inline std::string token_text(int32_t id) { return "<" + std::to_string(id) + ">"; }

inline TokenTable token_table() {
  TokenTable table;
  table.compressed_ids = golden_token_map();
  for (int32_t id = 0; id < int32_t(table.compressed_ids.size()); ++id) {
    table.bytes.push_back(token_text(id));
    table.is_control.push_back(id == kControl);
  }
  return table;
}

inline EngineOptions options() {
  EngineOptions options;
  options.load.model_dir = kGolden + "tiny-v41";
  options.load.num_threads = 1;
  return options;
}

inline std::unique_ptr<Engine> open(const EngineOptions& options,
                                    TokenTable table = token_table()) {
  Result<std::unique_ptr<Engine>> engine = Engine::open(options, std::move(table));
  if (!engine.has_value()) ADD_FAILURE() << engine.error().message;
  return std::move(engine.value());
}

inline Request greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.request_id = "r";
  request.prompt_token_ids = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

inline std::vector<int32_t> prompt_of(int64_t length, int32_t seed) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back((i * 37 + seed * 101 + 11) % 500);
  return prompt;
}

inline std::vector<int32_t> long_prompt() { return prompt_of(45, 0); }

}  // namespace millrace::test
