// The C interface (include/millrace.h) over the text front door.

#include <millrace.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/format.h"
#include "capi/versioned_struct.h"
#include "chat/json.h"
#include "chat/request_parser.h"
#include "chat/wire_text.h"
#include "llm/llm.h"
#include "openai/sampling_fields.h"
#include "sys/fp_environment.h"

namespace millrace {
namespace {

// What an engine's handle and those of its requests hold together: the last one ends it.
struct Loaded {
  std::unique_ptr<Llm> llm;
  pid_t process_id = getpid();  // threads and locks are of no use in a child of fork()
};

// Two pieces of state of a thread, both of the kind that C has for them: the text of its last
// error, like errno, and whether it is inside a callback of ours.
thread_local std::string last_error_text;
thread_local bool is_in_callback = false;

// The engine's thread outlives the request whose callback it calls.
class Listener {
 public:
  Listener(void (*on_event)(void*), void* data) : on_event_(on_event), data_(data) {}

  void call() {
    const std::lock_guard lock(mutex_);
    if (on_event_ == nullptr) return;
    is_in_callback = true;
    on_event_(data_);
    is_in_callback = false;
  }

  // Waits for a call that has begun.
  void close() {
    const std::lock_guard lock(mutex_);
    on_event_ = nullptr;
  }

 private:
  std::mutex mutex_;
  void (*on_event_)(void*);
  void* data_;
};

// The first member of every handle, so that one in the place of another is noticed.
enum class HandleKind : uint64_t { kEngine = 0x6d72656e67696e65, kRequest = 0x6d72726571756573 };

}  // namespace
}  // namespace millrace

struct millrace_engine {
  millrace::HandleKind kind = millrace::HandleKind::kEngine;
  std::shared_ptr<millrace::Loaded> loaded;
};

struct millrace_request {
  millrace::HandleKind kind = millrace::HandleKind::kRequest;
  std::shared_ptr<millrace::Loaded> loaded;      // before the stream, which must not outlive it
  std::shared_ptr<millrace::Listener> listener;  // with the engine's thread; null: nobody listens
  std::unique_ptr<millrace::AnswerStream> stream;
  millrace_request_info info = {};
  std::atomic<bool> is_being_read{false};
  // What the last event points to, besides the stream's own.
  std::vector<millrace_reply_part> parts;
  millrace_token_logprobs logprobs = {};
  std::vector<millrace_token_logprobs> prompt_logprobs;
  std::vector<millrace_logprob> top;
};

namespace millrace {
namespace {

// ---- Errors.

millrace_status fail(millrace_status status, std::string_view text) noexcept {
  try {
    last_error_text = text;
  } catch (...) {
    last_error_text.clear();  // no memory for the text
  }
  return status;
}

millrace_status status_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kUnimplemented:
      return MILLRACE_INVALID_ARGUMENT;
    case Code::kNotFound:
      return MILLRACE_NOT_FOUND;
    case Code::kCorrupt:
      return MILLRACE_CORRUPT;
    case Code::kExhausted:
      return MILLRACE_EXHAUSTED;
    case Code::kUnavailable:
      return MILLRACE_UNAVAILABLE;
    case Code::kCancelled:
      return MILLRACE_CANCELLED;
  }
  return MILLRACE_INTERNAL;
}

// Every entry of the library runs in here: no exception gets out, and the caller's floating-point
// state stays what it is. `fn` returns a Result<millrace_status>.
template <class Fn>
millrace_status entry(Fn&& fn) noexcept {
  const ScopedFpEnvironment fp_environment;
  try {
    if (is_in_callback) {
      return fail(MILLRACE_INVALID_ARGUMENT,
                  "on_event: found a call of the library inside, expected none");
    }
    const Result<millrace_status> result = fn();
    if (result.has_value()) return result.value();
    return fail(status_of(result.error().code), result.error().message);
  } catch (const std::bad_alloc&) {
    return fail(MILLRACE_UNAVAILABLE, "memory: there is no more");
  } catch (const std::length_error&) {
    return fail(MILLRACE_UNAVAILABLE, "memory: there is not so much");
  } catch (const std::system_error& error) {  // no more threads
    return fail(MILLRACE_UNAVAILABLE, error.what());
  } catch (const std::exception& error) {
    return fail(MILLRACE_INTERNAL, error.what());
  } catch (...) {
    return fail(MILLRACE_INTERNAL, "unknown exception");
  }
}

template <class T>
millrace_status init_struct(std::string_view name, const T& defaults, T* out, size_t size) {
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_pointer(name, out));
    RETURN_IF_ERROR(check_size(name, size));
    copy_struct(defaults, out, size);
    return MILLRACE_OK;
  });
}

// ---- Defaults.

millrace_engine_options default_engine_options() {
  const EngineOptions defaults;
  millrace_engine_options options = {};
  options.numerics = MILLRACE_NUMERICS_REFERENCE;
  options.prefill_chunk = defaults.prefill_chunk;
  options.max_num_seqs = defaults.max_num_seqs;
  options.max_num_batched_tokens = defaults.max_num_batched_tokens;
  options.max_waiting = defaults.max_waiting;
  options.max_step_ms = defaults.max_step_ms;
  options.expert_cache_bytes = -1;
  return options;
}

millrace_sampling_params sampling_params_of(const SamplingParams& from) {
  millrace_sampling_params params = {};
  params.include_stop_str_in_output = from.include_stop_str_in_output;
  params.skip_special_tokens = from.skip_special_tokens;
  params.ignore_eos = from.ignore_eos;
  params.temperature = from.temperature;
  params.top_p = from.top_p;
  params.min_p = from.min_p;
  params.top_k = from.top_k;
  params.presence_penalty = from.presence_penalty;
  params.frequency_penalty = from.frequency_penalty;
  params.repetition_penalty = from.repetition_penalty;
  params.min_tokens = from.min_tokens;
  return params;
}

millrace_request_options default_request_options() {
  millrace_request_options options = {};
  options.text_flags = MILLRACE_ADD_BOS;
  options.num_choices = 1;
  return options;
}

// ---- Handles.

template <class Handle>
Status check_handle(std::string_view name, HandleKind kind, const Handle* handle) {
  RETURN_IF_ERROR(check_pointer(name, handle));
  HandleKind found;
  std::memcpy(&found, handle, sizeof found);  // it may be a struct of another type
  if (found != kind) {
    return invalid(format(name, ": found another kind of handle, expected an open ", name));
  }
  return {};
}

Status check_process(std::string_view name, const Loaded& loaded) {
  if (loaded.process_id == getpid()) return {};
  return Error{Code::kUnavailable,
               format(name, ": found in process ", getpid(), ", expected in ", loaded.process_id,
                      ", which created it: after fork() a child needs an engine of its own")};
}

Result<Llm*> llm_of(const millrace_engine* engine) {
  RETURN_IF_ERROR(check_handle("engine", HandleKind::kEngine, engine));
  RETURN_IF_ERROR(check_process("engine", *engine->loaded));
  return engine->loaded->llm.get();
}

Status check_request(const millrace_request* request) {
  RETURN_IF_ERROR(check_handle("request", HandleKind::kRequest, request));
  return check_process("request", *request->loaded);
}

// ---- From C to C++.

template <class T>
Status check_list(std::string_view name, const T* data, size_t size) {
  if (size > size_t(std::numeric_limits<ptrdiff_t>::max()) / sizeof(T)) {
    return invalid(format(name, ": found size ", size, ", expected one that fits into memory"));
  }
  if (data == nullptr && size > 0) {
    return invalid(format(name, ": found NULL with size ", size, ", expected a pointer"));
  }
  return {};
}

Result<std::string_view> read_text(std::string_view name, const millrace_text& text) {
  RETURN_IF_ERROR(check_list(name, text.data, text.size));
  return std::string_view(text.data, text.size);
}

Result<std::vector<int32_t>> read_ids(std::string_view name, const millrace_token_ids& ids) {
  RETURN_IF_ERROR(check_list(name, ids.data, ids.size));
  return std::vector<int32_t>(ids.data, ids.data + ids.size);
}

Result<std::vector<std::string>> read_texts(std::string_view name, const millrace_text* texts,
                                            size_t size) {
  RETURN_IF_ERROR(check_list(name, texts, size));
  std::vector<std::string> strings;
  for (size_t i = 0; i < size; ++i) {
    ASSIGN_OR_RETURN(const std::string_view text, read_text(format(name, "[", i, "]"), texts[i]));
    strings.emplace_back(text);
  }
  return strings;
}

template <class T>
std::optional<T> read_optional(const T* number) {
  return number == nullptr ? std::nullopt : std::optional<T>(*number);
}

Status check_reserved(std::string_view name, int32_t value) {
  if (value == 0) return {};
  return invalid(format(name, ".reserved: found ", value, ", expected 0"));
}

Status check_flags(std::string_view name, uint32_t flags, uint32_t known) {
  if ((flags & ~known) == 0) return {};
  return invalid(format(name, ": found ", flags, ", expected flags of ", known));
}

Result<EngineOptions> read_engine_options(const millrace_engine_options& given) {
  EngineOptions options;
  RETURN_IF_ERROR(check_reserved("options", given.reserved));
  if (given.model_dir == nullptr) return invalid("model_dir: found NULL, expected a directory");
  options.load.model_dir = given.model_dir;
  if (given.numerics == MILLRACE_NUMERICS_FP32) {
    options.load.numerics = Numerics::kFp32;
  } else if (given.numerics != MILLRACE_NUMERICS_REFERENCE) {
    return invalid(
        format("numerics: found ", given.numerics, ", expected 0, reference, or 1, fp32"));
  }
  options.load.num_threads = given.num_threads;
  if (given.isa != nullptr) options.load.isa = given.isa;
  options.prefill_chunk = given.prefill_chunk;
  if (given.max_model_len != 0) options.max_model_len = given.max_model_len;
  options.max_num_seqs = given.max_num_seqs;
  options.max_num_batched_tokens = given.max_num_batched_tokens;
  options.max_waiting = given.max_waiting;
  if (given.kv_bytes != 0) options.kv_bytes = given.kv_bytes;
  options.max_step_ms = given.max_step_ms;
  if (given.expert_cache_bytes != -1) options.load.expert_cache_bytes = given.expert_cache_bytes;
  return options;
}

Result<SamplingParams> read_sampling(const Llm& llm, const millrace_sampling_params& given) {
  SamplingParams params;
  params.include_stop_str_in_output = given.include_stop_str_in_output != 0;
  params.skip_special_tokens = given.skip_special_tokens != 0;
  params.ignore_eos = given.ignore_eos != 0;
  params.temperature = given.temperature;
  params.top_p = given.top_p;
  params.min_p = given.min_p;
  params.top_k = given.top_k;
  params.presence_penalty = given.presence_penalty;
  params.frequency_penalty = given.frequency_penalty;
  params.repetition_penalty = given.repetition_penalty;
  params.seed = read_optional(given.seed);
  params.max_tokens = read_optional(given.max_tokens);
  params.logprobs = read_optional(given.logprobs);
  params.prompt_logprobs = read_optional(given.prompt_logprobs);
  params.min_tokens = given.min_tokens;
  ASSIGN_OR_RETURN(params.stop, read_texts("stop", given.stop, given.num_stop));
  ASSIGN_OR_RETURN(const std::vector<std::string> bad_words,
                   read_texts("bad_words", given.bad_words, given.num_bad_words));
  for (const std::string& word : bad_words) {
    if (word.empty())
      return invalid("bad_words: found an empty string, expected at least one byte");
    add_bad_word(llm.tokenizer(), word, params);
  }
  RETURN_IF_ERROR(
      check_list("bad_words_token_ids", given.bad_words_token_ids, given.num_bad_words_token_ids));
  for (size_t i = 0; i < given.num_bad_words_token_ids; ++i) {
    ASSIGN_OR_RETURN(std::vector<int32_t> word,
                     read_ids("bad_words_token_ids", given.bad_words_token_ids[i]));
    params.bad_words_token_ids.push_back(std::move(word));
  }
  RETURN_IF_ERROR(check_list("logit_bias", given.logit_bias, given.num_logit_bias));
  for (size_t i = 0; i < given.num_logit_bias; ++i) {
    params.logit_bias.emplace_back(given.logit_bias[i].token_id, given.logit_bias[i].bias);
  }
  ASSIGN_OR_RETURN(params.stop_token_ids, read_ids("stop_token_ids", given.stop_token_ids));
  ASSIGN_OR_RETURN(params.allowed_token_ids,
                   read_ids("allowed_token_ids", given.allowed_token_ids));
  return params;
}

// By the numbers of MILLRACE_REPLY_..., of which 0 is none.
constexpr std::array kReplyStarts = {ReplyStart::kReasoning, ReplyStart::kContent,
                                     ReplyStart::kReasoningContinued, ReplyStart::kContentContinued,
                                     ReplyStart::kToolCalls};

Result<std::optional<ReplyStart>> read_reply_start(millrace_reply_start start) {
  if (start == MILLRACE_REPLY_NONE) return std::optional<ReplyStart>();
  if (start < 0 || start > int32_t(kReplyStarts.size())) {
    return invalid(format("reply_start: found ", start, ", expected 0 to ", kReplyStarts.size()));
  }
  return std::optional(kReplyStarts[size_t(start) - 1]);
}

millrace_reply_start reply_start_of(std::optional<ReplyStart> start) {
  if (!start) return MILLRACE_REPLY_NONE;
  const auto found = std::find(kReplyStarts.begin(), kReplyStarts.end(), *start);
  return int32_t(found - kReplyStarts.begin()) + 1;
}

Result<Prompt> encode_text(const Llm& llm, const millrace_text& given, uint32_t flags) {
  RETURN_IF_ERROR(check_flags("text_flags", flags, MILLRACE_ADD_BOS | MILLRACE_TRUSTED_TEXT));
  ASSIGN_OR_RETURN(const std::string_view text, read_text("text", given));
  const bool is_trusted = (flags & MILLRACE_TRUSTED_TEXT) != 0;
  return llm.encode_text(text, is_trusted ? SpecialTokens::kRecognise : SpecialTokens::kPlainText,
                         (flags & MILLRACE_ADD_BOS) != 0);
}

Result<Prompt> encode_chat(const Llm& llm, const millrace_text& given) {
  ASSIGN_OR_RETURN(const std::string_view json, read_text("chat_json", given));
  ASSIGN_OR_RETURN(const ChatRequest chat, parse_chat_request(json));
  return llm.encode_chat(chat);
}

Result<Prompt> read_prompt(const Llm& llm, const millrace_request_options& given) {
  const bool has_ids = given.token_ids.data != nullptr || given.token_ids.size > 0;
  const bool has_text = given.text.data != nullptr || given.text.size > 0;
  const bool has_chat = given.chat_json.data != nullptr || given.chat_json.size > 0;
  if (has_ids + has_text + has_chat != 1) {
    return invalid(format("prompt: found ", has_ids + has_text + has_chat,
                          " of text, chat_json and token_ids, expected one"));
  }
  if (!has_ids && given.reply_start != MILLRACE_REPLY_NONE) {
    return invalid(
        format("reply_start: found ", given.reply_start, ", expected 0 without token_ids"));
  }
  if (has_text) return encode_text(llm, given.text, given.text_flags);
  if (has_chat) return encode_chat(llm, given.chat_json);
  Prompt prompt;
  ASSIGN_OR_RETURN(prompt.token_ids, read_ids("token_ids", given.token_ids));
  ASSIGN_OR_RETURN(prompt.reply_start, read_reply_start(given.reply_start));
  return prompt;
}

// Requires: `given` is one that encode_chat() takes.
Result<openai::ChatSampling> read_chat_sampling(const Llm& llm, const millrace_text& given) {
  ASSIGN_OR_RETURN(const std::string_view json, read_text("chat_json", given));
  ASSIGN_OR_RETURN(const JsonValue body, parse_json(json));
  return openai::read_chat_sampling(body, llm);
}

Result<AnswerRequest> read_request(const Llm& llm, const millrace_request_options& given) {
  AnswerRequest request;
  RETURN_IF_ERROR(check_reserved("options", given.reserved));
  ASSIGN_OR_RETURN(request.prompt, read_prompt(llm, given));
  request.num_choices = given.num_choices;
  if (given.sampling == nullptr && given.chat_json.data != nullptr) {
    ASSIGN_OR_RETURN(openai::ChatSampling asked, read_chat_sampling(llm, given.chat_json));
    request.sampling = std::move(asked.params);
    if (given.num_choices == 1) request.num_choices = asked.num_choices;
  } else if (given.sampling == nullptr) {
    request.sampling = llm.default_sampling();
  } else {
    ASSIGN_OR_RETURN(const millrace_sampling_params sampling,
                     read_struct("sampling", given.sampling, sampling_params_of({})));
    ASSIGN_OR_RETURN(request.sampling, read_sampling(llm, sampling));
  }
  request.priority = given.priority;
  ASSIGN_OR_RETURN(request.fairness_key, read_text("fairness_key", given.fairness_key));
  ASSIGN_OR_RETURN(request.request_id, read_text("request_id", given.request_id));
  if (given.timeout_ms != 0) request.timeout_ms = given.timeout_ms;
  return request;
}

// ---- From C++ to C.

millrace_text text_of(const std::string& text) { return {text.data(), text.size()}; }

template <class T>
Result<millrace_status> copy_out(std::string_view name, std::span<const T> from, T* to,
                                 size_t capacity, size_t* size) {
  *size = from.size();
  std::copy_n(from.begin(), std::min(capacity, from.size()), to);
  if (from.size() <= capacity) return MILLRACE_OK;
  return Error{Code::kExhausted,
               format(name, ": found capacity ", capacity, ", expected at least ", from.size())};
}

template <class T>
Status check_buffer(std::string_view name, const T* buffer, size_t capacity, size_t* size) {
  RETURN_IF_ERROR(check_pointer("size", size));
  *size = 0;
  return check_list(name, buffer, capacity);
}

constexpr std::pair<std::string_view, millrace_finish_reason> kFinishReasons[] = {
    {"stop", MILLRACE_FINISH_STOP},       {"length", MILLRACE_FINISH_LENGTH},
    {"abort", MILLRACE_FINISH_ABORT},     {"tool_calls", MILLRACE_FINISH_TOOL_CALLS},
    {"timeout", MILLRACE_FINISH_TIMEOUT}, {"error", MILLRACE_FINISH_ERROR}};

millrace_finish_reason finish_reason_of(std::string_view name) {
  for (const auto& [known, reason] : kFinishReasons) {
    if (name == known) return reason;
  }
  check_failed(__FILE__, __LINE__, "unknown finish reason");
}

int32_t part_kind(ReplyEvent::Kind kind) {
  switch (kind) {
    case ReplyEvent::Kind::kReasoning:
      return MILLRACE_PART_REASONING;
    case ReplyEvent::Kind::kContent:
      return MILLRACE_PART_CONTENT;
    case ReplyEvent::Kind::kToolCall:
      return MILLRACE_PART_TOOL_CALL;
    case ReplyEvent::Kind::kArguments:
      return MILLRACE_PART_ARGUMENTS;
  }
  check_failed(__FILE__, __LINE__, "unknown kind of ReplyEvent");
}

millrace_logprob logprob_of(const TokenLogprob& from) {
  return {from.token_id, from.logprob, from.rank};
}

// Appends to `top`, which must have room: what was returned before points into it.
millrace_token_logprobs logprobs_of(const TokenLogprobs& from, std::vector<millrace_logprob>& top) {
  const millrace_token_logprobs logprobs = {logprob_of(from.token), top.data() + top.size(),
                                            from.top.size()};
  for (const TokenLogprob& one : from.top) top.push_back(logprob_of(one));
  return logprobs;
}

// What `from` says, with pointers into it and into `request`.
millrace_event event_of(const AnswerEvent& from, millrace_request& request) {
  const StreamEvent& step = from.step;
  millrace_event event = {};
  event.choice_idx = from.choice_idx;
  event.token_id = step.token_id.value_or(-1);
  event.num_computed_tokens = step.num_computed_tokens;
  event.text = text_of(from.text);
  if (step.finish_reason) {
    event.finish_reason = finish_reason_of(request.stream->answer(from.choice_idx).finish_reason);
  }

  request.parts.clear();
  for (const ReplyEvent& part : from.reply) {
    request.parts.push_back({part_kind(part.kind), part.call_idx, text_of(part.text)});
  }
  event.parts = request.parts.data();
  event.num_parts = request.parts.size();

  size_t num_top = step.logprobs ? step.logprobs->top.size() : 0;
  for (const TokenLogprobs& logprobs : step.prompt_logprobs) num_top += logprobs.top.size();
  request.top.clear();
  request.top.reserve(num_top);
  if (step.logprobs) {
    request.logprobs = logprobs_of(*step.logprobs, request.top);
    event.logprobs = &request.logprobs;
  }
  request.prompt_logprobs.clear();
  for (const TokenLogprobs& logprobs : step.prompt_logprobs) {
    request.prompt_logprobs.push_back(logprobs_of(logprobs, request.top));
  }
  event.prompt_logprobs = request.prompt_logprobs.data();
  event.num_prompt_logprobs = request.prompt_logprobs.size();

  event.stop_token_id = -1;
  if (const auto* id = std::get_if<int32_t>(&step.stop_reason)) event.stop_token_id = *id;
  if (const auto* text = std::get_if<std::string>(&step.stop_reason)) {
    event.stop_string = text_of(*text);
  }
  if (step.error) {
    event.error_status = status_of(step.error->code);
    event.error = text_of(step.error->message);
  }
  return event;
}

// Waiting for longer is waiting for ever, which has no sum with the clock that could overflow.
constexpr int64_t kLongestTimeoutMs = int64_t{1} << 40;

Result<millrace_status> next_event(millrace_request& request, int64_t timeout_ms,
                                   millrace_event* out) {
  std::optional<std::chrono::milliseconds> timeout;
  if (timeout_ms >= 0 && timeout_ms < kLongestTimeoutMs) timeout.emplace(timeout_ms);
  const AnswerEvent* event = request.stream->next(timeout);
  if (event == nullptr) return request.stream->is_finished() ? MILLRACE_END : MILLRACE_TIMED_OUT;
  write_struct(event_of(*event, request), out);
  return MILLRACE_OK;
}

}  // namespace
}  // namespace millrace

// ---- The interface.

using namespace millrace;  // NOLINT: what follows is outside of every namespace

const char* millrace_last_error(void) { return last_error_text.c_str(); }

const char* millrace_status_name(millrace_status status) {
  switch (status) {
    case MILLRACE_OK:
      return "ok";
    case MILLRACE_TIMED_OUT:
      return "timed out";
    case MILLRACE_END:
      return "end";
    case MILLRACE_INVALID_ARGUMENT:
      return "invalid argument";
    case MILLRACE_NOT_FOUND:
      return "not found";
    case MILLRACE_CORRUPT:
      return "corrupt";
    case MILLRACE_EXHAUSTED:
      return "exhausted";
    case MILLRACE_UNAVAILABLE:
      return "unavailable";
    case MILLRACE_CANCELLED:
      return "cancelled";
    case MILLRACE_INTERNAL:
      return "internal";
    default:
      return "unknown status";
  }
}

const char* millrace_version(void) { return MILLRACE_VERSION; }

millrace_status millrace_engine_options_init(millrace_engine_options* options, size_t struct_size) {
  return init_struct("options", default_engine_options(), options, struct_size);
}

millrace_status millrace_engine_create(const millrace_engine_options* options,
                                       millrace_engine** engine) {
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_pointer("engine", engine));
    *engine = nullptr;
    ASSIGN_OR_RETURN(const millrace_engine_options given,
                     read_struct("options", options, default_engine_options()));
    ASSIGN_OR_RETURN(const EngineOptions engine_options, read_engine_options(given));
    auto handle = std::make_unique<millrace_engine>();
    handle->loaded = std::make_shared<Loaded>();
    ASSIGN_OR_RETURN(handle->loaded->llm,
                     Llm::open(engine_options, [&](int64_t num_done, int64_t num_files) {
                       if (given.on_progress)
                         given.on_progress(given.progress_data, num_done, num_files);
                     }));
    *engine = handle.release();
    return MILLRACE_OK;
  });
}

millrace_status millrace_engine_destroy(millrace_engine* engine) {
  if (engine == nullptr) return MILLRACE_OK;
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_handle("engine", HandleKind::kEngine, engine));
    // In a child the threads that should end are not there.
    if (check_process("engine", *engine->loaded).ok()) delete engine;
    return MILLRACE_OK;
  });
}

millrace_status millrace_engine_info_init(millrace_engine_info* info, size_t struct_size) {
  return init_struct("info", {}, info, struct_size);
}

millrace_status millrace_get_engine_info(const millrace_engine* engine,
                                         millrace_engine_info* info) {
  return entry([&]() -> Result<millrace_status> {
    ASSIGN_OR_RETURN(const Llm* llm, llm_of(engine));
    RETURN_IF_ERROR(check_output("info", info));
    const EngineInfo& from = llm->engine().info();
    millrace_engine_info to = {};
    to.num_threads = from.num_threads;
    to.numerics_id = text_of(from.numerics_id);
    to.isa = text_of(from.isa);
    to.vocab_size = llm->engine().vocab_size();
    to.max_model_len = llm->engine().max_model_len();
    to.max_num_seqs = from.max_num_seqs;
    to.kv_bytes = from.kv_bytes;
    to.mapped_bytes = from.mapped_bytes;
    to.copied_bytes = from.copied_bytes;
    to.bos_token_id = llm->tokenizer().token_id(wire::kBos).value_or(-1);
    write_struct(to, info);
    return MILLRACE_OK;
  });
}

millrace_status millrace_tokenize(const millrace_engine* engine, millrace_text text, uint32_t flags,
                                  int32_t* ids, size_t capacity, size_t* size) {
  return entry([&]() -> Result<millrace_status> {
    ASSIGN_OR_RETURN(const Llm* llm, llm_of(engine));
    RETURN_IF_ERROR(check_buffer("ids", ids, capacity, size));
    ASSIGN_OR_RETURN(const Prompt prompt, encode_text(*llm, text, flags));
    return copy_out<int32_t>("ids", prompt.token_ids, ids, capacity, size);
  });
}

millrace_status millrace_detokenize(const millrace_engine* engine, millrace_token_ids ids,
                                    uint32_t flags, char* text, size_t capacity, size_t* size) {
  return entry([&]() -> Result<millrace_status> {
    ASSIGN_OR_RETURN(const Llm* llm, llm_of(engine));
    RETURN_IF_ERROR(check_buffer("text", text, capacity, size));
    RETURN_IF_ERROR(check_flags("flags", flags, MILLRACE_SKIP_SPECIAL_TOKENS));
    ASSIGN_OR_RETURN(const std::vector<int32_t> given, read_ids("ids", ids));
    const Tokenizer& tokenizer = llm->tokenizer();
    const int64_t vocab_size = llm->engine().vocab_size();
    std::vector<int32_t> shown;
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i] < 0 || given[i] >= vocab_size) {
        return invalid(format("ids: found token id ", given[i], " at position ", i,
                              ", expected 0 to ", vocab_size - 1));
      }
      if (given[i] >= tokenizer.vocab_size()) continue;  // the model has more ids than it uses
      if ((flags & MILLRACE_SKIP_SPECIAL_TOKENS) && tokenizer.is_special(given[i])) continue;
      shown.push_back(given[i]);
    }
    return copy_out<char>("text", tokenizer.decode(shown), text, capacity, size);
  });
}

millrace_status millrace_token_bytes(const millrace_engine* engine, int32_t token_id,
                                     millrace_text* bytes) {
  return entry([&]() -> Result<millrace_status> {
    ASSIGN_OR_RETURN(const Llm* llm, llm_of(engine));
    RETURN_IF_ERROR(check_pointer("bytes", bytes));
    *bytes = millrace_string("");
    const int64_t vocab_size = llm->engine().vocab_size();
    if (token_id < 0 || token_id >= vocab_size) {
      return invalid(format("token_id: found ", token_id, ", expected 0 to ", vocab_size - 1));
    }
    if (token_id >= llm->tokenizer().vocab_size()) return MILLRACE_OK;
    const std::string_view found = llm->tokenizer().token_bytes(token_id);
    *bytes = {found.data(), found.size()};
    return MILLRACE_OK;
  });
}

millrace_status millrace_encode_chat(const millrace_engine* engine, millrace_text chat_json,
                                     int32_t* ids, size_t capacity, size_t* size,
                                     millrace_reply_start* reply_start) {
  return entry([&]() -> Result<millrace_status> {
    ASSIGN_OR_RETURN(const Llm* llm, llm_of(engine));
    RETURN_IF_ERROR(check_buffer("ids", ids, capacity, size));
    RETURN_IF_ERROR(check_pointer("reply_start", reply_start));
    ASSIGN_OR_RETURN(const Prompt prompt, encode_chat(*llm, chat_json));
    *reply_start = reply_start_of(prompt.reply_start);
    return copy_out<int32_t>("ids", prompt.token_ids, ids, capacity, size);
  });
}

millrace_status millrace_sampling_params_init(millrace_sampling_params* params,
                                              size_t struct_size) {
  return init_struct("params", sampling_params_of({}), params, struct_size);
}

millrace_status millrace_default_sampling_params(const millrace_engine* engine,
                                                 millrace_sampling_params* params) {
  return entry([&]() -> Result<millrace_status> {
    ASSIGN_OR_RETURN(const Llm* llm, llm_of(engine));
    RETURN_IF_ERROR(check_output("params", params));
    write_struct(sampling_params_of(llm->default_sampling()), params);
    return MILLRACE_OK;
  });
}

millrace_status millrace_request_options_init(millrace_request_options* options,
                                              size_t struct_size) {
  return init_struct("options", default_request_options(), options, struct_size);
}

millrace_status millrace_submit(millrace_engine* engine, const millrace_request_options* options,
                                millrace_request** request) {
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_pointer("request", request));
    *request = nullptr;
    ASSIGN_OR_RETURN(Llm * llm, llm_of(engine));
    ASSIGN_OR_RETURN(const millrace_request_options given,
                     read_struct("options", options, default_request_options()));
    ASSIGN_OR_RETURN(AnswerRequest answer_request, read_request(*llm, given));
    auto handle = std::make_unique<millrace_request>();
    handle->loaded = engine->loaded;
    handle->info.num_choices = answer_request.num_choices;
    handle->info.num_prompt_tokens = int64_t(answer_request.prompt.token_ids.size());
    handle->info.reply_start = reply_start_of(answer_request.prompt.reply_start);
    std::function<void()> on_event;
    if (given.on_event != nullptr) {
      handle->listener = std::make_shared<Listener>(given.on_event, given.event_data);
      on_event = [listener = handle->listener] { listener->call(); };
    }
    ASSIGN_OR_RETURN(handle->stream, llm->submit(std::move(answer_request), std::move(on_event)));
    handle->info.seed = handle->stream->answer(0).seed;
    *request = handle.release();
    return MILLRACE_OK;
  });
}

millrace_status millrace_cancel(millrace_request* request) {
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_request(request));
    request->stream->cancel();
    return MILLRACE_OK;
  });
}

millrace_status millrace_request_destroy(millrace_request* request) {
  if (request == nullptr) return MILLRACE_OK;
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_handle("request", HandleKind::kRequest, request));
    // In a child the locks may be held by threads that are not there.
    if (!check_process("request", *request->loaded).ok()) return MILLRACE_OK;
    if (request->listener) request->listener->close();
    delete request;
    return MILLRACE_OK;
  });
}

millrace_status millrace_request_info_init(millrace_request_info* info, size_t struct_size) {
  return init_struct("info", {}, info, struct_size);
}

millrace_status millrace_get_request_info(const millrace_request* request,
                                          millrace_request_info* info) {
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_request(request));
    RETURN_IF_ERROR(check_output("info", info));
    write_struct(request->info, info);
    return MILLRACE_OK;
  });
}

const char* millrace_finish_reason_name(millrace_finish_reason reason) {
  for (const auto& [name, known] : kFinishReasons) {
    if (reason == known) return name.data();
  }
  return "";
}

millrace_status millrace_event_init(millrace_event* event, size_t struct_size) {
  return init_struct("event", {}, event, struct_size);
}

millrace_status millrace_next_event(millrace_request* request, int64_t timeout_ms,
                                    millrace_event* event) {
  return entry([&]() -> Result<millrace_status> {
    RETURN_IF_ERROR(check_request(request));
    RETURN_IF_ERROR(check_output("event", event));
    if (request->is_being_read.exchange(true)) {
      return invalid("request: found two readers at a time, expected one");
    }
    struct Done {
      std::atomic<bool>& is_being_read;
      ~Done() { is_being_read = false; }
    } done{request->is_being_read};
    return next_event(*request, timeout_ms, event);
  });
}
