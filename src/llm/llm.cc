#include "llm/llm.h"

#include <algorithm>
#include <random>

#include "base/format.h"
#include "chat/wire_text.h"
#include "llm/generation_config.h"
#include "model_config/model_config.h"
#include "sys/file.h"
#include "tokenizer/published_tokenizer.h"
#include "tokenizer/token_map.h"
#include "tokenizer/tokenizer_json.h"

namespace millrace {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;  // of config.json and generation_config.json
constexpr int64_t kNoToken = -1;             // of image_token_id: no token stands for an image

Error in_file(const std::string& path, const Error& error) {
  return {error.code, format(path, ": ", error.message)};
}

Result<ModelConfig> open_config(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxConfigBytes));
  Result<ModelConfig> config = parse_model_config(text);
  if (!config.has_value()) return in_file(path, config.error());
  return config;
}

Result<GenerationConfig> open_generation_config(const std::string& model_dir, int64_t vocab_size) {
  const std::string path = model_dir + "/generation_config.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text.has_value()) {
    if (text.error().code == Code::kNotFound) return GenerationConfig{};
    return text.error();
  }
  Result<GenerationConfig> config = parse_generation_config(text.value(), vocab_size);
  if (!config.has_value()) return in_file(path, config.error());
  return config;
}

// config.json's ids of control tokens are those of the tokenizer, where it has such tokens. A text
// that begins or ends with another token than the model was told of would only answer worse.
Status check_control_tokens(const std::string& model_dir, const ModelConfig& config,
                            const Tokenizer& tokenizer) {
  struct ControlToken {
    std::string_view key, literal;
    int64_t id;
  };
  for (const ControlToken& token :
       {ControlToken{"bos_token_id", wire::kBos, config.bos_token_id},
        ControlToken{"eos_token_id", wire::kEos, config.eos_token_id},
        ControlToken{"image_token_id", wire::kImage, config.image_token_id}}) {
    const std::optional<int32_t> expected = tokenizer.token_id(token.literal);
    if (!expected || token.id == *expected || token.id == kNoToken) continue;
    return Error{Code::kInvalidArgument,
                 format(model_dir, "/config.json: ", token.key, ": found ", token.id, ", expected ",
                        *expected, ", which is ", token.literal, " in tokenizer.json")};
  }
  return {};
}

// Below 2^53: the answer reports it, and readers of JSON keep no more of a number.
uint64_t draw_seed() {
  std::random_device device;
  return (uint64_t(device()) << 32 | device()) >> 11;
}

// Where stop strings apply in a reply that starts like this.
StopScope stop_scope(const Tokenizer& tokenizer, ReplyStart start) {
  StopScope scope;
  if (start == ReplyStart::kReasoning || start == ReplyStart::kReasoningContinued) {
    scope.begin_after_token_id = tokenizer.token_id(wire::kEndThink);
  }
  scope.end_at_token_id = tokenizer.token_id(wire::kDsml);
  return scope;
}

}  // namespace

TokenTable make_token_table(const Tokenizer& tokenizer, std::vector<int32_t> eos_token_ids) {
  TokenTable table;
  table.bytes.reserve(size_t(tokenizer.vocab_size()));
  table.is_control.reserve(size_t(tokenizer.vocab_size()));
  table.is_added.reserve(size_t(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    table.bytes.emplace_back(tokenizer.token_bytes(id));
    table.is_control.push_back(tokenizer.is_special(id));
    table.is_added.push_back(tokenizer.is_added(id));
  }
  table.compressed_ids = make_token_map(tokenizer).compressed_ids;
  table.eos_token_ids = std::move(eos_token_ids);
  return table;
}

void add_bad_word(const Tokenizer& tokenizer, const std::string& word, SamplingParams& sampling) {
  for (const std::string& spelling : {word, " " + word}) {
    sampling.bad_words_token_ids.push_back(tokenizer.encode(spelling, SpecialTokens::kPlainText));
  }
}

Result<Tokenizer> open_tokenizer(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxTokenizerJsonBytes));
  Result<Tokenizer> tokenizer = Tokenizer::parse(text);
  if (!tokenizer.has_value()) return in_file(path, tokenizer.error());
  const Status status = check_published_token_map(text, tokenizer.value());
  if (!status.ok()) return in_file(path, status.error());
  return tokenizer;
}

std::vector<Error> find_faults(const std::string& model_dir, const ModelConfig& config) {
  std::vector<Error> faults;
  const Result<Tokenizer> tokenizer = open_tokenizer(model_dir);
  if (tokenizer.has_value()) {
    const Status status = check_control_tokens(model_dir, config, tokenizer.value());
    if (!status.ok()) faults.push_back(status.error());
  } else {
    faults.push_back(tokenizer.error());
  }
  const Result<GenerationConfig> generation = open_generation_config(model_dir, config.vocab_size);
  if (!generation.has_value()) faults.push_back(generation.error());
  return faults;
}

Result<std::unique_ptr<Llm>> Llm::open(const EngineOptions& options, const OpenProgress& progress) {
  const std::string& model_dir = options.load.model_dir;
  ASSIGN_OR_RETURN(Tokenizer tokenizer, open_tokenizer(model_dir));
  ASSIGN_OR_RETURN(const ModelConfig config, open_config(model_dir));
  RETURN_IF_ERROR(check_control_tokens(model_dir, config, tokenizer));
  ASSIGN_OR_RETURN(GenerationConfig generation,
                   open_generation_config(model_dir, config.vocab_size));
  TokenTable table = make_token_table(tokenizer, std::move(generation.eos_token_ids));
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                   Engine::open(options, std::move(table), progress));
  return std::unique_ptr<Llm>(
      new Llm(std::move(tokenizer), std::move(generation.sampling), std::move(engine)));
}

Llm::Llm(Tokenizer tokenizer, SamplingParams default_sampling, std::unique_ptr<Engine> engine)
    : tokenizer_(std::move(tokenizer)),
      default_sampling_(std::move(default_sampling)),
      engine_(std::move(engine)) {
  for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
    longest_token_bytes_ = std::max(longest_token_bytes_, tokenizer_.token_bytes(id).size());
  }
}

Status Llm::check_length(size_t num_bytes) const {
  const auto fewest_tokens = int64_t(num_bytes / longest_token_bytes_);
  const int64_t max_model_len = engine_->max_model_len();
  if (fewest_tokens < max_model_len) return {};
  return Error{Code::kInvalidArgument,
               format("the maximum context length is ", max_model_len, " tokens, found at least ",
                      fewest_tokens, " in the prompt")};
}

Prompt Llm::encode_text(std::string_view text, SpecialTokens mode, bool add_bos) const {
  Prompt prompt{tokenizer_.encode(text, mode), std::nullopt};
  const std::optional<int32_t> bos = tokenizer_.token_id(wire::kBos);
  if (add_bos && bos && (prompt.token_ids.empty() || prompt.token_ids.front() != *bos)) {
    prompt.token_ids.insert(prompt.token_ids.begin(), *bos);
  }
  return prompt;
}

Result<Prompt> Llm::encode_chat(const ChatRequest& chat) const {
  ASSIGN_OR_RETURN(const EncodedPrompt encoded, encode_prompt(chat));
  if (!encoded.images.empty()) {
    return Error{Code::kUnimplemented,
                 format("messages: found ", encoded.images.size(), " images, expected text only")};
  }
  if (chat.thinking && chat.tool_choice == ToolChoice::kRequired) {
    return Error{Code::kInvalidArgument,
                 "tool_choice: a required call needs thinking to be off: nothing constrains yet "
                 "what follows the reasoning"};
  }
  size_t num_bytes = 0;
  for (const PromptSegment& segment : encoded.segments) num_bytes += segment.text.size();
  RETURN_IF_ERROR(check_length(num_bytes));
  std::vector<TextSegment> segments;
  for (const PromptSegment& segment : encoded.segments) {
    if (segment.is_control && !tokenizer_.token_id(segment.text)) {
      return Error{Code::kInvalidArgument, format("tokenizer.json: no token ", segment.text,
                                                  ", which this chat's prompt needs")};
    }
    segments.push_back({segment.text, segment.is_control});
  }
  return Prompt{tokenizer_.encode(segments), encoded.reply_start};
}

Result<std::unique_ptr<AnswerStream>> Llm::submit(AnswerRequest wish,
                                                  std::function<void()> on_event) {
  const std::optional<ReplyStart> reply_start = wish.prompt.reply_start;
  Request request;
  request.request_id = std::move(wish.request_id);
  if (request.request_id.empty()) request.request_id = format(++num_requests_);
  request.prompt_token_ids = std::move(wish.prompt.token_ids);
  request.sampling = std::move(wish.sampling);
  request.choice_idx = wish.choice_idx;
  request.num_choices = wish.num_choices;
  request.priority = wish.priority;
  request.fairness_key = std::move(wish.fairness_key);
  request.timeout_ms = wish.timeout_ms;
  if (!request.sampling.seed) request.sampling.seed = draw_seed();
  const bool hides_control = reply_start && request.sampling.skip_special_tokens;
  if (reply_start) {
    // Control tokens are markup that the reply parser reads.
    request.sampling.skip_special_tokens = false;
    request.stop_scope = stop_scope(tokenizer_, *reply_start);
    if (*reply_start == ReplyStart::kToolCalls) request.sampling.stop.clear();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<RequestStream> stream,
                   engine_->submit(request, std::move(on_event)));
  return std::make_unique<AnswerStream>(tokenizer_, request, reply_start, hides_control,
                                        std::move(stream));
}

Result<Answer> Llm::generate(AnswerRequest request, const AnswerSink& on_event) {
  MR_CHECK_OP(request.num_choices, ==, 1);
  ASSIGN_OR_RETURN(const std::unique_ptr<AnswerStream> stream, submit(std::move(request)));
  while (const AnswerEvent* event = stream->next()) {
    if (event->step.error) return *event->step.error;
    if (on_event && !on_event(*event)) break;
  }
  return std::move(stream->take_answers()[0]);
}

}  // namespace millrace
