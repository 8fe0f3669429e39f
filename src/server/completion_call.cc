#include "server/completion_call.h"

#include <charconv>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/format.h"
#include "chat/json.h"
#include "chat/json_writer.h"
#include "server/context.h"

namespace millrace {
namespace {

constexpr size_t kMaxUnsentBytes = size_t(256) << 10;  // beyond, the engine rests
constexpr int64_t kMaxAnswers = 4096;                  // of one request
constexpr size_t kBytesPerToken = 4;                   // about, to estimate a body's tokens

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double now_s() { return seconds(std::chrono::steady_clock::now().time_since_epoch()); }

// Milliseconds of the header that clients may send; none: no limit.
Result<std::optional<double>> read_timeout(const net::HttpRequest& request) {
  const std::string* text = request.header("x-request-timeout-ms");
  if (text == nullptr) return std::optional<double>();
  double timeout_ms = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), timeout_ms);
  if (error != std::errc() || end != text->data() + text->size() || !(timeout_ms > 0)) {
    return Error{Code::kInvalidArgument,
                 "X-Request-Timeout-Ms: expected a number of milliseconds above 0"};
  }
  return std::optional(timeout_ms);
}

bool is_served(const std::vector<std::string>& names, const std::string& model) {
  return model.empty() || std::find(names.begin(), names.end(), model) != names.end();
}

}  // namespace

void CompletionCall::start(std::unique_ptr<Call> call, openai::Endpoint endpoint) {
  ServerContext& context = call->context();
  Result<Admission::Ticket> ticket =
      context.admission.enter(int64_t(call->request().body.size() / kBytesPerToken));
  if (!ticket.has_value()) {
    context.metrics.on_rejection("overloaded");
    openai::ApiError error = openai::api_error(ticket.error());
    if (context.options.overload_status == 429) {
      error.status = 429, error.type = "rate_limit_error", error.code = "queue_full";
    }
    call->respond_error(error);
    return;
  }
  if (call->key_idx) {
    const Status status = context.keys.enter(*call->key_idx, now_s());
    if (!status.ok()) {
      context.metrics.on_rejection("key_limit");
      openai::ApiError error = openai::api_error(status.error());
      error.status = 429, error.type = "rate_limit_error", error.code = "rate_limit_exceeded";
      error.retry_after_s = int(std::ceil(context.keys.retry_after_s(*call->key_idx, now_s())));
      call->respond_error(error);
      return;
    }
  }
  const auto self =
      std::make_shared<CompletionCall>(std::move(call), endpoint, std::move(ticket.value()));
  context.open_calls.emplace(self->call_->id(), self.get());
  self->ready_id_ = context.ready->add(self);
  net::HttpExchange& exchange = self->call_->exchange();
  // The exchange keeps the call: it lives for as long as somebody waits for its answer.
  exchange.on_close([self] { self->on_client_gone(); });
  context.workers.post([self, body = exchange.take_body()]() mutable {
    self->prepare(std::move(body));
  });
}

CompletionCall::CompletionCall(std::unique_ptr<Call> call, openai::Endpoint endpoint,
                               Admission::Ticket ticket)
    : call_(std::move(call)),
      context_(call_->context()),
      endpoint_(endpoint),
      ticket_(std::move(ticket)) {}

CompletionCall::~CompletionCall() = default;

// ---- On a worker.

void CompletionCall::prepare(std::string body) {
  std::optional<openai::ApiError> error;
  if (!is_cancelled_) error = read_request(body);
  body = {};
  if (!error && !is_cancelled_) error = submit();
  context_.loop.post([self = shared_from_this(), error] {
    if (self->state_ == State::kEnded) {
      self->streams_.clear();  // the client went meanwhile
      return;
    }
    if (error) {
      self->fail(*error);
    } else {
      self->begin();
    }
  });
}

std::optional<openai::ApiError> CompletionCall::read_request(const std::string& body) {
  const Result<JsonValue> json = parse_json(body);
  if (!json.has_value()) return openai::invalid_json(json.error());
  // Also for what is refused. Told before the engine has the request: who sees that it runs can
  // give it up by this id.
  const JsonValue* id = json.value().find("request_id");
  if (id != nullptr && id->is(JsonValue::Kind::kString) && is_request_id(id->text)) {
    response_.id = id->text;
    context_.loop.post([self = shared_from_this(), id = id->text] { self->take_id(id); });
  }
  openai::RequestLimits limits;
  limits.max_logprobs = context_.options.max_logprobs;
  Result<openai::CompletionRequest> request = openai::parse_completion_request(
      endpoint_, json.value(), context_.llm.default_sampling(), limits);
  if (!request.has_value()) return openai::api_error(request.error());
  request_ = std::move(request.value());
  if (!request_.request_id.empty() && !is_request_id(request_.request_id)) {
    return openai::api_error({Code::kInvalidArgument,
                              "request_id: expected 1 to 128 visible ASCII characters"});
  }
  const std::vector<std::string>& names = context_.options.served_model_names;
  if (!is_served(names, request_.model)) {
    return openai::model_not_found(request_.model, names.front());
  }
  Result<std::vector<Prompt>> prompts = openai::encode_prompts(request_, context_.llm);
  if (!prompts.has_value()) return openai::api_error(prompts.error());
  prompts_ = std::move(prompts.value());
  return std::nullopt;
}

std::optional<openai::ApiError> CompletionCall::submit() {
  const Result<std::optional<double>> timeout_ms = read_timeout(call_->request());
  if (!timeout_ms.has_value()) return openai::api_error(timeout_ms.error());
  if (response_.id.empty()) response_.id = call_->id();
  response_.created = std::time(nullptr);
  response_.model =
      request_.model.empty() ? context_.options.served_model_names.front() : request_.model;
  response_.system_fingerprint = context_.system_fingerprint;
  response_.tokenizer = &context_.llm.tokenizer();
  const std::optional<int64_t>& most = context_.options.max_open_requests;
  if (most && int64_t(prompts_.size()) > *most) {
    return openai::api_error(
        {Code::kInvalidArgument,
         format("prompt: found ", prompts_.size(), " prompts, expected at most ", *most,
                ", as many as the server takes at a time")});
  }
  const int64_t num_choices = request_.sampling.num_choices;
  if (int64_t(prompts_.size()) * num_choices > kMaxAnswers) {
    return openai::api_error({Code::kInvalidArgument,
                              format("n: found ", num_choices, " answers to each of ",
                                     prompts_.size(), " prompts, expected at most ", kMaxAnswers,
                                     " answers of one request")});
  }
  for (const Prompt& prompt : prompts_) {
    AnswerRequest answer = openai::make_answer_request(request_, prompt, context_.llm);
    answer.request_id = response_.id;
    answer.timeout_ms = timeout_ms.value();
    if (call_->key_idx) {
      const ApiKey& key = context_.keys.key(*call_->key_idx);
      answer.fairness_key = key.name;
      answer.priority += key.priority;
    }
    if (context_.options.clamps_max_tokens && answer.sampling.max_tokens) {
      const int64_t remaining =
          context_.llm.engine().max_model_len() - int64_t(prompt.token_ids.size());
      answer.sampling.max_tokens = std::max<int64_t>(1, std::min(*answer.sampling.max_tokens,
                                                                 remaining));
    }
    Result<std::unique_ptr<AnswerStream>> stream = context_.llm.submit(
        std::move(answer), [id = ready_id_, ready = context_.ready] { ready->push(id); });
    if (!stream.has_value()) {
      streams_.clear();
      return openai::api_error(stream.error());
    }
    streams_.push_back(std::move(stream.value()));
  }
  return std::nullopt;
}

void CompletionCall::write_body() {
  std::vector<std::vector<Answer>> answers;
  for (const auto& stream : streams_) answers.push_back(stream->take_answers());
  std::string body = openai::completion_body(request_, prompts_, answers, response_);
  context_.loop.post([self = shared_from_this(), body = std::move(body)]() mutable {
    self->streams_.clear();
    if (self->state_ == State::kEnded) return;
    self->call_->respond_json(std::move(body));
    self->end(/*is_served=*/true);
  });
}

// ---- On the network's thread.

// The one of the body.
void CompletionCall::take_id(const std::string& id) {
  if (state_ == State::kEnded || id == call_->id()) return;
  forget();
  call_->set_id(id);
  context_.open_calls.emplace(id, this);
}

void CompletionCall::begin() {
  state_ = State::kReading;
  choices_.resize(prompts_.size() * size_t(request_.sampling.num_choices));
  has_event_.resize(prompts_.size());
  ticket_.correct(openai::num_tokens(prompts_));
  if (is_aborted_) {
    for (const auto& stream : streams_) stream->cancel();
  }
  if (request_.stream) {
    writer_.emplace(request_, prompts_, response_);
    keep_alive();
  }
  read_events();
}

// A client's idle timer may be shorter than the wait for the first token.
void CompletionCall::keep_alive() {
  const double interval_s = context_.options.early_stream_start_s;
  if (interval_s <= 0) return;
  keep_alive_ = context_.loop.after(
      std::chrono::nanoseconds(int64_t(interval_s * 1e9)), [this] {
        if (state_ != State::kReading || first_token_) return;
        send(": keep-alive\n\n");
        keep_alive();
      });
}

void CompletionCall::read_events() {
  if (state_ != State::kReading) return;
  net::HttpExchange& exchange = call_->exchange();
  std::string out;
  bool is_finished = true;
  for (size_t i = 0; i < streams_.size(); ++i) {
    while (true) {
      if (out.size() + exchange.num_pending_bytes() > kMaxUnsentBytes) {
        // Nobody reads: what the engine makes meanwhile waits there, and then it rests.
        if (!std::exchange(is_held_up_, true)) context_.metrics.on_slow_reader();
        exchange.on_drained([weak = weak_from_this()] {
          const auto self = weak.lock();
          if (!self) return;
          self->is_held_up_ = false;
          self->call_->exchange().on_drained(nullptr);  // until it is slow again
          self->read_events();
        });
        send(out);
        return;
      }
      const AnswerEvent* event = streams_[i]->next(std::chrono::milliseconds(0));
      if (event == nullptr) break;
      if (event->step.error) {
        if (!out.empty()) send(out);
        fail(engine_error(*event->step.error));
        return;
      }
      take(i, *event, out);
    }
    is_finished = is_finished && streams_[i]->is_finished();
  }
  if (!out.empty()) send(out);
  if (is_finished) {
    finish();
  } else {
    exchange.flush();  // others come behind it in this turn
  }
}

void CompletionCall::take(size_t prompt_idx, const AnswerEvent& event, std::string& out) {
  const Clock::time_point now = Clock::now();
  if (!first_event_) first_event_ = now;
  has_event_[prompt_idx] = true;
  const StreamEvent& step = event.step;
  const size_t index =
      prompt_idx * size_t(request_.sampling.num_choices) + size_t(event.choice_idx);
  ChoiceTimes& choice = choices_[index];
  Metrics& metrics = context_.metrics;
  if (step.token_id) {
    if (!first_token_) {
      first_token_ = now;
      ticket_.begin();
      metrics.on_first_token(seconds(now - arrival_));
    }
    if (choice.last_token) metrics.on_token_gap(seconds(now - *choice.last_token));
    metrics.on_token();
    choice.last_token = last_token_ = now;
    ++choice.num_tokens;
  }
  const Answer& answer = streams_[prompt_idx]->answer(event.choice_idx);
  if (step.finish_reason) {
    choice.is_finished = true;
    const std::string& reason = answer.finish_reason;
    metrics.on_choice({.finished_reason = reason == "tool_calls" ? "stop"
                                          : reason == "timeout"  ? "abort"
                                                                 : std::string_view(reason),
                       .is_chat_with_tools = !request_.chat.tools.empty(),
                       .has_tool_calls = !answer.reply.tool_calls.empty(),
                       .is_streamed = request_.stream,
                       .is_empty = endpoint_ == openai::Endpoint::kChatCompletions &&
                                   reason == "stop" && answer.reply.content.empty() &&
                                   answer.reply.tool_calls.empty()});
  }
  if (writer_) writer_->add(prompt_idx, event, answer, out);
}

void CompletionCall::send(const std::string& out) {
  if (!std::exchange(has_headers_, true)) call_->begin_event_stream();
  call_->exchange().write(out);
}

void CompletionCall::finish() {
  if (writer_) {
    std::string out;
    writer_->finish(out);
    send(out);
    call_->exchange().end_stream();
    streams_.clear();
    end(/*is_served=*/true);
    return;
  }
  const auto ran_out_of_time = [](const std::unique_ptr<AnswerStream>& stream) {
    for (int32_t c = 0; c < stream->num_choices(); ++c) {
      if (stream->answer(c).finish_reason == "timeout") return true;
    }
    return false;
  };
  if (std::any_of(streams_.begin(), streams_.end(), ran_out_of_time)) {
    openai::ApiError error;
    error.status = 408, error.type = "invalid_request_error";
    error.message = "the request's time was over before its answer was complete";
    fail(error);
    return;
  }
  state_ = State::kWriting;
  context_.workers.post([self = shared_from_this()] { self->write_body(); });
}

// What is the request's own fault is told as it is. What else goes wrong names files of this host,
// so the log has it, and the client what to ask for there.
openai::ApiError CompletionCall::engine_error(const Error& error) {
  if (error.code == Code::kInvalidArgument || error.code == Code::kExhausted) {
    return openai::api_error(error);
  }
  context_.log.write(LogLevel::kError, "the engine failed at a request",
                     {{"request_id", call_->id()}, {"reason", error.message}});
  openai::ApiError api;
  api.status = 500, api.type = "server_error";
  api.message = format("the engine failed at this request (", code_name(error.code),
                       "); the server's log says more under request id ", call_->id());
  return api;
}

void CompletionCall::fail(const openai::ApiError& error) {
  if (error.status == 503) context_.metrics.on_rejection("overloaded");
  if (has_headers_) {
    std::string out;
    openai::CompletionStream::fail(error, out);
    call_->exchange().write(out);
    call_->exchange().end_stream();
  } else {
    call_->respond_error(error);
  }
  if (state_ == State::kReading) {
    count_unfinished("error");
    streams_.clear();
  }
  end(/*is_served=*/false);
}

void CompletionCall::abort() {
  if (state_ == State::kReading) {
    for (const auto& stream : streams_) stream->cancel();  // their last events end the answer
  } else if (state_ == State::kPreparing) {
    is_aborted_ = true;  // begin() will see it
  }
}

double CompletionCall::waiting_s() const {
  if (state_ != State::kPreparing && state_ != State::kReading) return 0;
  const bool has_begun = !has_event_.empty() &&
                         std::find(has_event_.begin(), has_event_.end(), false) == has_event_.end();
  return has_begun ? 0 : seconds(Clock::now() - arrival_);
}

void CompletionCall::on_client_gone() {
  if (state_ == State::kEnded) return;
  is_cancelled_ = true;
  if (state_ == State::kReading) {
    count_unfinished("abort");
    streams_.clear();  // ends them in the engine
  }
  end(/*is_served=*/false);
}

void CompletionCall::count_unfinished(std::string_view finished_reason) {
  for (const ChoiceTimes& choice : choices_) {
    if (!choice.is_finished) context_.metrics.on_choice({.finished_reason = finished_reason});
  }
}

RequestTimes CompletionCall::times() const {
  const Clock::time_point now = Clock::now();
  RequestTimes times;
  times.e2e_s = seconds(now - arrival_);
  if (!first_event_ || !first_token_) return times;
  times.queue_s = seconds(*first_event_ - arrival_);
  times.prefill_s = seconds(*first_token_ - *first_event_);
  times.decode_s = seconds(*last_token_ - *first_token_);
  return times;
}

void CompletionCall::forget() {
  auto [first, last] = context_.open_calls.equal_range(call_->id());
  while (first != last && first->second != this) ++first;
  if (first != last) context_.open_calls.erase(first);
}

void CompletionCall::end(bool is_served) {
  state_ = State::kEnded;
  keep_alive_ = {};
  forget();
  context_.ready->remove(ready_id_);
  ticket_.leave();
  const bool is_known = !choices_.empty();  // otherwise a worker may be writing it
  const int64_t num_prompt_tokens = is_known ? openai::num_tokens(prompts_) : 0;
  int64_t num_output_tokens = 0, longest = 0;
  for (const ChoiceTimes& choice : choices_) {
    num_output_tokens += choice.num_tokens;
    longest = std::max(longest, choice.num_tokens);
  }
  if (is_served) {
    const int64_t max_tokens = request_.sampling.params.max_tokens.value_or(
        context_.llm.engine().max_model_len() - num_prompt_tokens);
    context_.metrics.on_request({.times = times(),
                                 .num_prompt_tokens = num_prompt_tokens,
                                 .num_output_tokens = num_output_tokens,
                                 .max_tokens = max_tokens,
                                 .num_choices = request_.sampling.num_choices,
                                 .longest_output = longest});
  }
  std::string key_name;
  if (call_->key_idx) {
    context_.keys.leave(*call_->key_idx, num_prompt_tokens + num_output_tokens, now_s());
    key_name = context_.keys.key(*call_->key_idx).name;
  }
  if (!context_.write_usage) return;
  JsonWriter json;
  json.begin_object().member("time", int64_t(std::time(nullptr))).member("key", key_name);
  json.member("request_id", call_->id()).member("path", call_->path());
  json.member("model", is_known ? response_.model : "");
  json.member("user", is_known ? shortened(request_.user) : "");
  json.member("prompt_tokens", num_prompt_tokens).member("completion_tokens", num_output_tokens);
  json.member("served", is_served).member("seconds", seconds(Clock::now() - arrival_));
  context_.write_usage(json.end_object().text());
}

}  // namespace millrace
