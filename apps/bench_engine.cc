#include "bench_engine.h"

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kNoWait{0};

struct OpenRequest {
  Target::Clock clock;
  Target::OnDone on_done;
  RequestRecord record;
  std::unique_ptr<AnswerStream> stream;
  int64_t num_tokens = 0;
  int32_t num_untold = 0;  // of them, those that showed no text yet
};

Result<AnswerRequest> make_answer_request(const Llm& llm, const RequestFields& fields,
                                          const PlannedRequest& planned,
                                          std::vector<int32_t> tokens) {
  AnswerRequest request;
  if (fields.endpoint == BenchEndpoint::kChat) {
    ChatRequest chat;
    tokens.resize(std::max<size_t>(
        1, tokens.size() - std::min(tokens.size(), size_t(fields.num_template_tokens))));
    chat.messages.push_back(
        {.role = Role::kUser, .content = {{Part::Kind::kText, llm.tokenizer().decode(tokens)}}});
    ASSIGN_OR_RETURN(request.prompt, llm.encode_chat(chat));
  } else if (fields.sends_text) {
    request.prompt = llm.encode_text(llm.tokenizer().decode(tokens), SpecialTokens::kRecognise,
                                     /*add_bos=*/true);
  } else {
    request.prompt.token_ids = std::move(tokens);
  }
  request.sampling = llm.default_sampling();
  request.sampling.max_tokens = planned.num_output_tokens;
  request.sampling.ignore_eos = fields.ignores_eos;
  if (fields.temperature) request.sampling.temperature = *fields.temperature;
  if (fields.seed) request.sampling.seed = (*fields.seed + uint64_t(planned.id)) & INT64_MAX;
  return request;
}

bool shows_text(const AnswerEvent& event, bool& is_reasoning) {
  if (event.reply.empty()) return !event.text.empty();
  is_reasoning = true;
  for (const ReplyEvent& part : event.reply) {
    if (part.kind != ReplyEvent::Kind::kReasoning) is_reasoning = false;
  }
  return true;
}

}  // namespace

struct EngineTarget::Impl {
  Impl(net::EventLoop& loop, Llm& llm, RequestFields fields, const PromptSource& prompts)
      : loop(loop), llm(llm), fields(std::move(fields)), prompts(prompts) {}

  // On the engine's thread: one turn of the loop for all that a step tells.
  void note(int64_t id, const std::shared_ptr<Impl>& self) {
    bool was_empty;
    {
      const std::lock_guard lock(mutex);
      was_empty = ready.empty();
      ready.push_back(id);
    }
    if (was_empty) loop.post([self] { self->read_ready(); });
  }

  void read_ready() {
    std::vector<int64_t> ids;
    {
      const std::lock_guard lock(mutex);
      ids.swap(ready);
    }
    for (const int64_t id : ids) {
      const auto found = open.find(id);
      if (found != open.end()) read(found->second);
    }
  }

  void read(OpenRequest& request) {
    RequestRecord& record = request.record;
    const int64_t now_ns = request.clock();
    bool has_text = false;
    while (const AnswerEvent* event = request.stream->next(kNoWait)) {
      request.num_tokens += event->step.token_id.has_value();
      request.num_untold += event->step.token_id.has_value();
      bool is_reasoning = false;
      const bool is_only = record.chunks.empty() && event->step.finish_reason.has_value();
      if (!shows_text(*event, is_reasoning) && !is_only) continue;
      has_text = true;
      if (!is_reasoning && !record.visible_ns) record.visible_ns = now_ns;
    }
    if (has_text) record.chunks.push_back({now_ns, std::exchange(request.num_untold, 0)});
    if (request.stream->is_finished()) finish(record.id);
  }

  void finish(int64_t id) {
    auto node = open.extract(id);
    OpenRequest& request = node.mapped();
    RequestRecord& record = request.record;
    record.done_ns = request.clock();
    if (request.stream) {
      const Answer& answer = request.stream->answer(0);
      record.finish_reason = answer.finish_reason;
      record.prompt_tokens = answer.num_prompt_tokens;
      record.cached_tokens = 0;
      record.output_tokens = request.num_tokens;
      record.reasoning_tokens = answer.num_reasoning_tokens;
      if (answer.finish_reason == "error") record.error = "error of the engine";
    }
    if (record.error.empty() && !record.was_cancelled && record.chunks.empty()) {
      record.error = "no text";
    }
    request.stream.reset();
    request.on_done(std::move(record));
  }

  net::EventLoop& loop;
  Llm& llm;
  const RequestFields fields;
  const PromptSource& prompts;
  std::unordered_map<int64_t, OpenRequest> open;  // by the request's id
  std::mutex mutex;
  std::vector<int64_t> ready;  // guarded by mutex
};

EngineTarget::EngineTarget(net::EventLoop& loop, Llm& llm, RequestFields fields,
                           const PromptSource& prompts)
    : impl_(std::make_shared<Impl>(loop, llm, std::move(fields), prompts)) {}

EngineTarget::~EngineTarget() { impl_->open.clear(); }

void EngineTarget::send(const PlannedRequest& planned, const Clock& clock, OnDone on_done) {
  Impl& impl = *impl_;
  OpenRequest& request = impl.open[planned.id];
  request.clock = clock;
  request.on_done = std::move(on_done);
  RequestRecord& record = request.record;
  record.id = planned.id;
  record.planned_prompt_tokens = num_prompt_tokens(planned);
  record.planned_output_tokens = planned.num_output_tokens;
  Result<AnswerRequest> answer =
      make_answer_request(impl.llm, impl.fields, planned, impl.prompts.tokens(planned));
  record.send_ns = clock();
  std::optional<Error> error;
  if (!answer.has_value()) {
    error = answer.error();
  } else {
    // A weak reference: the stream keeps the callback, and the target the stream.
    auto on_event = [weak = std::weak_ptr(impl_), id = planned.id] {
      if (const std::shared_ptr<Impl> self = weak.lock()) self->note(id, self);
    };
    Result<std::unique_ptr<AnswerStream>> stream =
        impl.llm.submit(std::move(answer.value()), std::move(on_event));
    if (stream.has_value()) {
      request.stream = std::move(stream.value());
      return;
    }
    error = stream.error();
  }
  record.error = "refused";
  record.message = error->message;
  impl.loop.post([self = impl_, id = planned.id] {
    if (self->open.contains(id)) self->finish(id);
  });
}

void EngineTarget::cancel_all() {
  std::vector<int64_t> ids;
  for (const auto& [id, request] : impl_->open) ids.push_back(id);
  for (const int64_t id : ids) {
    impl_->open.at(id).record.was_cancelled = true;
    impl_->finish(id);
  }
}

}  // namespace millrace
