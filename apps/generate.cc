#include <iostream>
#include <optional>
#include <variant>

#include "base/format.h"
#include "chat/json.h"
#include "chat/json_writer.h"
#include "chat/request_parser.h"
#include "commands.h"
#include "console.h"
#include "llm/llm.h"
#include "model_flags.h"
#include "named_files.h"
#include "openai/sampling_fields.h"
#include "stats.h"
#include "tokenizer/detokenizer.h"

namespace millrace {
namespace {

Error in_file(const std::string& file, const Error& error) {
  return {error.code, format(file, ": ", error.message)};
}

// A shell's echo and most editors end text with a newline that nobody means.
void remove_final_newline(std::string& text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (!text.empty() && text.back() == '\r') text.pop_back();
}

// A chat request and what it says about sampling, which is read over the model's defaults.
struct ChatInput {
  JsonValue body;
  ChatRequest chat;
};

// What is to be continued, before a model is there to encode it: text, tokens or a chat.
using Input = std::variant<std::string, std::vector<int32_t>, ChatInput>;

// What parse_chat_request() reads.
constexpr std::string_view kPromptFields[] = {"messages",
                                              "tools",
                                              "tool_choice",
                                              "response_format",
                                              "thinking",
                                              "reasoning_effort",
                                              "drop_thinking",
                                              "add_generation_prompt",
                                              "continue_final_message"};

// The fields that nobody reads. Errors: of those that say how to sample. Requires: an object.
Result<std::vector<std::string>> find_ignored(const JsonValue& body) {
  openai::Fields fields(body);
  openai::SamplingFields sampling;
  RETURN_IF_ERROR(openai::read_chat_sampling(fields, sampling));
  for (std::string_view name : kPromptFields) fields.at(name);
  return fields.rest();
}

void warn_of_fields(const GenerateOptions& options, const JsonValue& body,
                    const std::vector<std::string>& ignored) {
  std::string names;
  for (const std::string& name : ignored) names += (names.empty() ? "" : ", ") + name;
  if (!names.empty()) warn(format(options.chat_file, ": ignored: ", names));
  const JsonNode response_format{body.find("response_format"), ""};
  if (response_format.given() && !response_format.at("type").is_text("text")) {
    warn(format(options.chat_file,
                ": response_format: the prompt asks for it, nothing enforces it"));
  }
}

Result<ChatInput> parse_chat(std::string_view json, const GenerateOptions& options) {
  ChatInput input;
  ASSIGN_OR_RETURN(input.body, parse_json(json));
  ASSIGN_OR_RETURN(input.chat, parse_chat_request(input.body));
  ASSIGN_OR_RETURN(const std::vector<std::string> ignored, find_ignored(input.body));
  warn_of_fields(options, input.body, ignored);
  RETURN_IF_ERROR(apply(options.thinking, input.chat));
  return input;
}

Result<Input> read_prompt(const GenerateOptions& options) {
  if (!options.token_ids.empty()) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, parse_token_ids(options.token_ids));
    return Input(std::move(ids));
  }
  if (options.prompt) return Input(*options.prompt);
  const bool is_chat = !options.chat_file.empty();
  const std::string file = is_chat ? options.chat_file : options.file.empty() ? "-" : options.file;
  ASSIGN_OR_RETURN(std::string text, read_input(file));
  if (is_chat) {
    Result<ChatInput> chat = parse_chat(text, options);
    if (!chat.has_value()) return in_file(file, chat.error());
    return Input(std::move(chat.value()));
  }
  RETURN_IF_ERROR(check_utf8(file == "-" ? "stdin" : file, text));
  remove_final_newline(text);
  return Input(std::move(text));
}

Result<Prompt> encode(const Input& input, const GenerateOptions& options, const Llm& llm) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&input))
    return Prompt{*ids, std::nullopt};
  if (const auto* chat = std::get_if<ChatInput>(&input)) return llm.encode_chat(chat->chat);
  const auto mode = options.no_special ? SpecialTokens::kPlainText : SpecialTokens::kRecognise;
  return llm.encode_text(std::get<std::string>(input), mode, !options.no_bos);
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return id < tokenizer.vocab_size() ? tokenizer.decode({&id, 1}) : "";
}

void write_logprob(const Tokenizer& tokenizer, const TokenLogprob& logprob, JsonWriter& json) {
  json.member("token_id", logprob.token_id);
  json.member("token", token_text(tokenizer, logprob.token_id));
  json.key("bytes").begin_array();
  if (logprob.token_id < tokenizer.vocab_size()) {
    for (char byte : tokenizer.token_bytes(logprob.token_id)) json.value(int(uint8_t(byte)));
  }
  json.end_array().member("logprob", logprob.logprob).member("rank", logprob.rank);
}

void write_logprobs(const Tokenizer& tokenizer, const TokenLogprobs& logprobs, JsonWriter& json) {
  json.begin_object();
  write_logprob(tokenizer, logprobs.token, json);
  json.key("top").begin_array();
  for (const TokenLogprob& logprob : logprobs.top) {
    json.begin_object();
    write_logprob(tokenizer, logprob, json);
    json.end_object();
  }
  json.end_array().end_object();
}

void write_stop_reason(const StopReason& reason, JsonWriter& json) {
  json.key("stop_reason");
  if (const auto* id = std::get_if<int32_t>(&reason)) {
    json.value(*id);
  } else if (const auto* bytes = std::get_if<std::string>(&reason)) {
    json.value(to_utf8(*bytes));  // a stop string may be any bytes
  } else {
    json.null();
  }
}

std::string answer_json(const Llm& llm, const Prompt& prompt, const Answer& answer, int index) {
  const Completion& completion = answer.completion;
  const int64_t num_output_tokens = int64_t(completion.token_ids.size());
  JsonWriter json;
  json.begin_object().member("index", index).member("text", answer.text);
  if (prompt.reply_start) {
    json.member("reasoning_content", answer.reply.reasoning);
    json.member("content", answer.reply.content);
    json.key("tool_calls").begin_array();
    for (const Reply::Call& call : answer.reply.tool_calls) {
      json.begin_object()
          .member("name", call.name)
          .member("arguments", call.arguments)
          .end_object();
    }
    json.end_array();
  }
  json.member("token_ids", completion.token_ids).member("finish_reason", answer.finish_reason);
  write_stop_reason(completion.stop_reason, json);
  json.member("seed", answer.seed);
  json.key("usage").begin_object();
  json.member("prompt_tokens", answer.num_prompt_tokens);
  json.member("completion_tokens", num_output_tokens);
  json.member("total_tokens", answer.num_prompt_tokens + num_output_tokens).end_object();
  const Timings& timings = completion.timings;
  json.key("timings").begin_object();
  json.member("prefill_s", timings.prefill_s);
  json.member("prefill_tokens_per_s", prefill_tokens_per_s(answer));
  json.member("ttft_s", timings.time_to_first_token_s);
  json.member("decode_s", timings.decode_s);
  json.member("decode_tokens_per_s", decode_tokens_per_s(answer)).end_object();
  const EngineInfo& info = llm.engine().info();
  json.key("engine").begin_object();
  json.member("numerics_id", info.numerics_id).member("isa", info.isa);
  json.member("threads", info.num_threads).member("mapped_bytes", info.mapped_bytes);
  json.member("copied_bytes", info.copied_bytes).member("expert_reads", info.expert_reads);
  const ExpertReads reads = llm.engine().counters().expert_reads;  // of all choices
  if (reads.cache_bytes > 0) {
    json.key("expert_cache").begin_object().member("bytes", reads.cache_bytes);
    json.member("hits", reads.num_hits).member("misses", reads.num_misses);
    json.member("hit_rate", hit_rate(reads)).member("bytes_read", reads.num_bytes);
    json.member("wait_s", double(reads.wait_ns) * 1e-9).end_object();
  }
  json.end_object();
  if (!completion.logprobs.empty()) {
    json.key("logprobs").begin_array();
    for (const TokenLogprobs& logprobs : completion.logprobs) {
      write_logprobs(llm.tokenizer(), logprobs, json);
    }
    json.end_array();
  }
  if (!completion.prompt_logprobs.empty()) {
    json.key("prompt_token_ids").value(prompt.token_ids);
    json.key("prompt_logprobs").begin_array();
    for (const std::optional<TokenLogprobs>& logprobs : completion.prompt_logprobs) {
      if (logprobs) {
        write_logprobs(llm.tokenizer(), *logprobs, json);
      } else {
        json.null();
      }
    }
    json.end_array();
  }
  return json.end_object().text();
}

// Shows the choices one after the other, each as it comes once the one before has ended.
class ChoicePrinter {
 public:
  ChoicePrinter(int32_t num_choices, bool is_chat)
      : choices_(size_t(num_choices)), is_chat_(is_chat) {
    begin();
  }

  void take(const AnswerEvent& event) {
    Choice& choice = choices_[size_t(event.choice_idx)];
    choice.text += event.text;
    choice.reply.insert(choice.reply.end(), event.reply.begin(), event.reply.end());
    choice.has_ended = event.step.finish_reason.has_value();
    show();
  }

  // Nothing more comes.
  void finish() {
    if (shown_ < choices_.size()) end();
  }

 private:
  struct Choice {
    std::string text;               // not shown yet
    std::vector<ReplyEvent> reply;  // not shown yet
    bool has_ended = false;
  };

  void begin() {
    if (choices_.size() > 1) print(format("--- ", shown_ + 1, " of ", choices_.size(), " ---\n"));
    if (is_chat_) printer_.emplace(/*fold=*/false);
  }

  void show() {
    while (shown_ < choices_.size()) {
      Choice& choice = choices_[shown_];
      if (printer_) {
        printer_->print_events(choice.reply);
      } else if (!choice.text.empty()) {
        print(choice.text);
      }
      choice.text.clear();
      choice.reply.clear();
      if (!choice.has_ended) return;
      end();
      if (++shown_ < choices_.size()) begin();
    }
  }

  void end() {
    if (printer_) {
      printer_->finish();
    } else {
      print("\n");
    }
  }

  std::vector<Choice> choices_;
  const bool is_chat_;
  size_t shown_ = 0;  // the choice that is being shown
  std::optional<ReplyPrinter> printer_;
};

// What a chat request says over what the model recommends. Leaves `num_choices` if it says nothing.
Result<SamplingParams> request_sampling(const Input& input, const Llm& llm, int32_t& num_choices) {
  const auto* chat = std::get_if<ChatInput>(&input);
  if (chat == nullptr) return llm.default_sampling();
  ASSIGN_OR_RETURN(openai::ChatSampling asked, openai::read_chat_sampling(chat->body, llm));
  num_choices = asked.num_choices;
  RETURN_IF_ERROR(validate(asked.params, llm.engine().vocab_size()));
  return std::move(asked.params);
}

void print_expert_stats(const Engine& engine) {
  const std::string line = expert_stats_line(engine.info(), engine.counters().expert_reads);
  if (!line.empty()) std::cerr << line << "\n";
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  const Status apart = check_apart({{"--file", options.file}, {"--chat", options.chat_file}},
                                   {{"--record", options.model.record_file}});
  if (!apart.ok()) return fail_usage(apart.error());
  const Result<Input> input = read_prompt(options);
  if (!input.has_value()) return fail(input.error());
  const auto* text = std::get_if<std::string>(&input.value());
  if (text != nullptr && text->empty() && !options.prompt && options.file.empty()) {
    return fail_usage({Code::kInvalidArgument,
                       "stdin: found nothing, expected a prompt there or one of PROMPT, --file, "
                       "--chat, --token-ids"});
  }
  Result<std::unique_ptr<Llm>> llm = open_llm(options.model);
  if (!llm.has_value()) return fail(llm.error());
  int32_t num_choices = 1;
  const Result<SamplingParams> requested =
      request_sampling(input.value(), *llm.value(), num_choices);
  if (!requested.has_value()) return fail(in_file(options.chat_file, requested.error()));
  if (options.num_choices) num_choices = int32_t(*options.num_choices);
  const Result<SamplingParams> sampling =
      make_sampling(options.sampling, requested.value(), *llm.value());
  if (!sampling.has_value()) return fail_usage(sampling.error());
  const Result<Prompt> prompt = encode(input.value(), options, *llm.value());
  if (!prompt.has_value()) return fail(prompt.error());

  const Interrupts interrupts;
  AnswerRequest request{prompt.value(), sampling.value()};
  request.num_choices = num_choices;
  const Result<std::unique_ptr<AnswerStream>> stream = llm.value()->submit(std::move(request));
  if (!stream.has_value()) return fail(stream.error());
  std::optional<ChoicePrinter> printer;
  if (!options.json)
    printer.emplace(stream.value()->num_choices(), prompt.value().reply_start.has_value());
  bool is_interrupted = false;
  while (!is_interrupted) {
    const AnswerEvent* event = stream.value()->next();
    if (event == nullptr) break;
    if (event->step.error) return fail(*event->step.error);
    if (printer) printer->take(*event);
    is_interrupted = Interrupts::take();
  }
  if (printer) printer->finish();
  int index = 0;
  for (const Answer& answer : stream.value()->take_answers()) {
    if (options.json) print(answer_json(*llm.value(), prompt.value(), answer, index) + "\n");
    if (options.stats) std::cerr << stats_line(answer) << "\n";
    ++index;
  }
  if (options.stats) print_expert_stats(llm.value()->engine());
  return is_interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace millrace
