#pragma once

// From the text of flags to values.

#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/messages.h"
#include "commands.h"
#include "engine/loaded_model.h"
#include "llm/llm.h"

namespace millrace {

// The whole text as a number.
template <class T>
bool parse_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// Any 64 bits, kSeedRange: a negative seed is the number with the same bits.
bool parse_seed(std::string_view text, uint64_t& seed);

// The directory that --model names, or that of the model that comes with the program.
Result<std::string> resolve_model_dir(const std::string& model_dir);

Result<LoadOptions> make_load_options(const ModelFlags& flags);

Result<EngineOptions> make_engine_options(const ModelFlags& flags, const EngineFlags& engine);

// With progress on stderr.
Result<std::unique_ptr<Llm>> open_llm(const EngineOptions& options);
Result<std::unique_ptr<Llm>> open_llm(const ModelFlags& flags, const EngineFlags& engine = {});

// "1,2,3", also with blanks; one comma at most between two. The message does not say of what.
Result<std::vector<int32_t>> parse_token_ids(std::string_view text);

// The flags over `defaults`.
Result<SamplingParams> make_sampling(const SamplingFlags& flags, SamplingParams defaults,
                                     const Llm& llm);

// What keeps text from being UTF-8; empty: nothing.
std::string utf8_fault(const std::string& text);
// The same as an error of what has this name.
Status check_utf8(std::string_view name, const std::string& text);

// "minimal, low, ... or 1 to 100".
std::string effort_names();

// One of those. The message does not say of what.
Result<int> parse_effort(std::string_view effort);

Status apply(const ThinkingFlags& flags, ChatRequest& chat);

}  // namespace millrace
