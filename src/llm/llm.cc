#include "llm/llm.h"

#include <random>

#include "base/format.h"
#include "chat/wire_text.h"
#include "llm/generation_config.h"
#include "sys/file.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/published_tokenizer.h"
#include "tokenizer/token_map.h"
#include "tokenizer/tokenizer_json.h"

namespace millrace {
namespace {

constexpr size_t kMaxGenerationConfigBytes = 1 << 20;

Error in_file(const std::string& path, const Error& error) {
  return {error.code, format(path, ": ", error.message)};
}

Result<GenerationConfig> open_generation_config(const std::string& model_dir) {
  const std::string path = model_dir + "/generation_config.json";
  const Result<std::string> text = read_file(path, kMaxGenerationConfigBytes);
  if (!text.has_value()) {
    if (text.error().code == Code::kNotFound) return GenerationConfig{};
    return text.error();
  }
  Result<GenerationConfig> config = parse_generation_config(text.value());
  if (!config.has_value()) return in_file(path, config.error());
  return config;
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
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    table.bytes.emplace_back(tokenizer.token_bytes(id));
    table.is_control.push_back(tokenizer.is_special(id));
  }
  table.compressed_ids = make_token_map(tokenizer).compressed_ids;
  table.eos_token_ids = std::move(eos_token_ids);
  return table;
}

// Turns the engine's events into text: bytes of the output as they are settled, whole characters
// of them, and what a chat's characters mean.
class Llm::Writer {
 public:
  Writer(const Tokenizer& tokenizer, const SamplingParams& sampling,
         std::optional<ReplyStart> reply_start, const AnswerSink& sink, Answer& answer)
      : tokenizer_(tokenizer),
        skips_control_(sampling.skip_special_tokens),
        sink_(sink),
        answer_(answer) {
    if (reply_start) {
      ReplyParserOptions options;
      options.start = *reply_start;
      parser_.emplace(std::move(options));
    }
  }

  bool on_event(const StreamEvent& step) {
    if (step.token_id && *step.token_id < tokenizer_.vocab_size() &&
        !(skips_control_ && tokenizer_.is_special(*step.token_id))) {
      bytes_ += tokenizer_.token_bytes(*step.token_id);
    }
    write(step.num_settled_bytes, step.finish_reason.has_value());
    return !sink_ || sink_({step, text_, events_});
  }

  // After the engine's last event. Settles what an abort left.
  void finish(const Completion& completion) {
    if (!is_finished_) write(completion.num_output_bytes, true);
    const std::string_view reason = finish_reason_name(completion.finish_reason);
    answer_.finish_reason = parser_ ? parser_->finish_reason(reason) : std::string(reason);
  }

 private:
  void write(int64_t num_settled_bytes, bool is_last) {
    text_.clear();
    events_.clear();
    const size_t count = size_t(num_settled_bytes) - num_written_;
    utf8_.push(std::string_view(bytes_).substr(0, count), text_);
    bytes_.erase(0, count);
    num_written_ += count;
    if (is_last) utf8_.finish(text_);
    answer_.text += text_;
    is_finished_ = is_last;
    if (!parser_) return;
    events_ = parser_->feed(text_);
    if (is_last) {
      for (ReplyEvent& event : parser_->finish()) events_.push_back(std::move(event));
    }
    for (const ReplyEvent& event : events_) answer_.reply.add(event);
  }

  const Tokenizer& tokenizer_;
  const bool skips_control_;
  const AnswerSink& sink_;
  Answer& answer_;
  std::optional<ReplyParser> parser_;
  Utf8Stream utf8_;
  std::string bytes_;  // of the output, from byte num_written_ on
  size_t num_written_ = 0;
  bool is_finished_ = false;
  std::string text_;                // of the current step
  std::vector<ReplyEvent> events_;  // of the current step
};

Result<Tokenizer> open_tokenizer(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxTokenizerJsonBytes));
  Result<Tokenizer> tokenizer = Tokenizer::parse(text);
  if (!tokenizer.has_value()) return in_file(path, tokenizer.error());
  const Status status = check_published_token_map(text, tokenizer.value());
  if (!status.ok()) return in_file(path, status.error());
  return tokenizer;
}

Result<std::unique_ptr<Llm>> Llm::open(const EngineOptions& options, const OpenProgress& progress) {
  const std::string& model_dir = options.load.model_dir;
  ASSIGN_OR_RETURN(Tokenizer tokenizer, open_tokenizer(model_dir));
  ASSIGN_OR_RETURN(GenerationConfig generation, open_generation_config(model_dir));
  TokenTable table = make_token_table(tokenizer, std::move(generation.eos_token_ids));
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::open(options, std::move(table), progress));
  return std::unique_ptr<Llm>(
      new Llm(std::move(tokenizer), std::move(generation.sampling), std::move(engine)));
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
    return Error{Code::kInvalidArgument,
                 format("messages: found ", encoded.images.size(), " images, expected text only")};
  }
  if (chat.thinking && chat.tool_choice == ToolChoice::kRequired) {
    return Error{Code::kInvalidArgument,
                 "tool_choice: a required call needs thinking to be off: nothing constrains yet "
                 "what follows the reasoning"};
  }
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

Result<Answer> Llm::generate(const Prompt& prompt, const SamplingParams& sampling,
                             const AnswerSink& on_event, int32_t choice_idx) {
  Request request;
  request.request_id = format(++num_requests_);
  request.prompt_token_ids = prompt.token_ids;
  request.sampling = sampling;
  request.choice_idx = choice_idx;
  if (!request.sampling.seed) request.sampling.seed = draw_seed();
  if (prompt.reply_start) {
    // Control tokens are markup that the reply parser reads.
    request.sampling.skip_special_tokens = false;
    request.stop_scope = stop_scope(tokenizer_, *prompt.reply_start);
    if (*prompt.reply_start == ReplyStart::kToolCalls) request.sampling.stop.clear();
  }
  Answer answer;
  answer.num_prompt_tokens = int64_t(prompt.token_ids.size());
  answer.seed = *request.sampling.seed;
  Writer writer(tokenizer_, request.sampling, prompt.reply_start, on_event, answer);
  ASSIGN_OR_RETURN(answer.completion,
                   engine_->generate(request, [&](const StreamEvent& step) { return writer.on_event(step); }));
  writer.finish(answer.completion);
  return answer;
}

}  // namespace millrace
