#include <iostream>

#include "chat/json_writer.h"
#include "commands.h"
#include "console.h"
#include "llm/llm.h"
#include "model_flags.h"

namespace millrace {
namespace {

Result<Tokenizer> open_default_tokenizer(const std::string& model_dir) {
  ASSIGN_OR_RETURN(const std::string folder, resolve_model_dir(model_dir));
  return open_tokenizer(folder);
}

std::string join(const std::vector<int32_t>& ids) {
  std::string text;
  for (int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

void write_tokens(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, JsonWriter& json) {
  json.key("tokens").begin_array();
  for (int32_t id : ids) json.value(tokenizer.decode({&id, 1}));
  json.end_array();
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  const Result<Tokenizer> tokenizer = open_default_tokenizer(options.model_dir);
  if (!tokenizer.has_value()) return fail(tokenizer.error());
  Result<std::string> text = options.text ? Result<std::string>(*options.text)
                                          : read_input(options.file.empty() ? "-" : options.file);
  if (!text.has_value()) return fail(text.error());
  const auto mode = options.special ? SpecialTokens::kRecognise : SpecialTokens::kPlainText;
  const std::vector<int32_t> ids = tokenizer.value().encode(text.value(), mode);
  if (!options.json) {
    std::cout << join(ids) << "\n";
    return kExitOk;
  }
  JsonWriter json;
  json.begin_object().member("token_ids", ids).member("count", int64_t(ids.size()));
  write_tokens(tokenizer.value(), ids, json);
  std::cout << json.end_object().text() << "\n";
  return kExitOk;
}

int run_detokenize(const DetokenizeOptions& options) {
  const Result<Tokenizer> tokenizer = open_default_tokenizer(options.model_dir);
  if (!tokenizer.has_value()) return fail(tokenizer.error());
  std::string list;
  for (const std::string& item : options.token_ids) list += item + " ";
  if (options.token_ids.empty()) {
    Result<std::string> input = read_input("-");
    if (!input.has_value()) return fail(input.error());
    list = std::move(input.value());
  }
  const Result<std::vector<int32_t>> ids = parse_token_ids(list);
  if (!ids.has_value()) return fail_usage({ids.error().code, "token ids: " + ids.error().message});
  for (int32_t id : ids.value()) {
    if (id < 0 || id >= tokenizer.value().vocab_size()) {
      return fail({Code::kInvalidArgument,
                   "token ids: found " + std::to_string(id) + ", expected 0 to " +
                       std::to_string(tokenizer.value().vocab_size() - 1)});
    }
  }
  const std::string text = tokenizer.value().decode(ids.value());
  if (!options.json) {
    std::cout << text;
    return kExitOk;
  }
  JsonWriter json;
  json.begin_object().member("text", text);
  write_tokens(tokenizer.value(), ids.value(), json);
  std::cout << json.end_object().text() << "\n";
  return kExitOk;
}

}  // namespace millrace
