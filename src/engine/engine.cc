#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "engine/memory_plan.h"
#include "sys/fp_environment.h"
#include "sys/memory.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxBlockSize = 65536;

Error out_of_range(const char* what, int64_t found, const std::string& expected) {
  return {Code::kInvalidArgument, format(what, ": found ", found, ", expected ", expected)};
}

Status check(const EngineOptions& options) {
  if (options.prefill_chunk < 1) return out_of_range("chunk", options.prefill_chunk, "at least 1");
  if (options.max_num_seqs < 1 || options.max_num_seqs > kMaxNumSeqs) {
    return out_of_range("max_num_seqs", options.max_num_seqs, format("1 to ", kMaxNumSeqs));
  }
  if (options.block_size < 1 || options.block_size > kMaxBlockSize) {
    return out_of_range("block_size", options.block_size, format("1 to ", kMaxBlockSize));
  }
  if (options.num_blocks && *options.num_blocks < 1) {
    return out_of_range("num_blocks", *options.num_blocks, "at least 1");
  }
  if (options.kv_bytes && *options.kv_bytes < 0) {
    return out_of_range("kv_bytes", *options.kv_bytes, "at least 0");
  }
  return {};
}

// Every id of the vocabulary gets an entry, also those that the tokenizer does not know.
Status complete(const ModelConfig& config, TokenTable& tokens) {
  if (int64_t(tokens.bytes.size()) > config.vocab_size) {
    return Error{Code::kInvalidArgument, format("tokenizer: found ", tokens.bytes.size(),
                                                " tokens, expected at most vocab_size, ",
                                                config.vocab_size)};
  }
  tokens.bytes.resize(size_t(config.vocab_size));
  tokens.is_control.resize(size_t(config.vocab_size), 0);
  if (tokens.eos_token_ids.empty()) tokens.eos_token_ids = {int32_t(config.eos_token_id)};
  for (int32_t id : tokens.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return out_of_range("eos_token_id", id, format("0 to ", config.vocab_size - 1));
    }
  }
  return {};
}

int64_t mapped_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const MappedFile& shard : checkpoint.shards()) bytes += int64_t(shard.bytes().size());
  return bytes;
}

}  // namespace

// Looks for cancelled requests between layers: work that helps nobody is given up.
class Engine::Monitor : public LayerMonitor {
 public:
  explicit Monitor(Engine& engine) : engine_(engine) {}
  bool before_layer(int64_t layer) override {
    engine_.layer_.store(layer, std::memory_order_relaxed);
    if (engine_.has_commands_.load(std::memory_order_relaxed)) engine_.take_commands();
    return !engine_.scheduler_->is_moot(engine_.now_ms());
  }

 private:
  Engine& engine_;
};

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options, TokenTable tokens,
                                             const OpenProgress& progress) {
  RETURN_IF_ERROR(check(options));
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model,
                   LoadedModel::open(options.load, std::move(tokens.compressed_ids), progress));
  const ModelConfig& config = model->config();
  const int64_t longest = options.max_model_len.value_or(config.max_position_embeddings);
  if (longest < 1 || longest > config.max_position_embeddings) {
    return out_of_range("max_model_len", longest,
                        format("1 to ", config.max_position_embeddings,
                               ", the checkpoint's max_position_embeddings"));
  }
  RETURN_IF_ERROR(complete(config, tokens));

  const KvLayout layout = kv_layout(config, kv_format_of(model->model().numerics), options.block_size);
  const MachineMemory machine{memory_limit_bytes(), mapped_bytes(model->checkpoint()),
                              anonymous_bytes()};
  const MemoryWish wish{options.kv_bytes, options.num_blocks, options.max_model_len,
                        options.max_num_seqs};
  ASSIGN_OR_RETURN(const MemoryPlan plan,
                   plan_memory(layout, machine, wish, config.max_position_embeddings));
  ASSIGN_OR_RETURN(KvStore store, KvStore::create(layout, plan.num_blocks, plan.num_slots));

  SchedulerOptions scheduling;
  scheduling.max_num_seqs = plan.num_slots;
  scheduling.max_num_batched_tokens = options.max_num_batched_tokens;
  scheduling.max_prefill_chunk = options.prefill_chunk;
  scheduling.min_prefill_rows = std::min(scheduling.min_prefill_rows, options.prefill_chunk);
  scheduling.max_step_ms = options.max_step_ms;
  scheduling.max_waiting = options.max_waiting;
  scheduling.max_model_len = plan.max_model_len;
  scheduling.num_blocks = plan.num_blocks;
  scheduling.block_size = layout.block_size;
  RETURN_IF_ERROR(validate(scheduling));
  return std::unique_ptr<Engine>(
      new Engine(std::move(model), std::move(tokens), std::move(store), scheduling));
}

Engine::Engine(std::unique_ptr<LoadedModel> model, TokenTable tokens, KvStore store,
               const SchedulerOptions& options)
    : model_(std::move(model)),
      tokens_(std::move(tokens)),
      store_(std::move(store)),
      scheduler_(std::make_unique<Scheduler>(
          options,
          OutputTokens{tokens_.bytes, tokens_.is_control, tokens_.eos_token_ids})),
      executor_(*model_, store_, tokens_.eos_token_ids),
      max_open_requests_(options.max_num_seqs + options.max_waiting) {
  const ScopedFpEnvironment fp_environment;
  info_.numerics_id = numerics_id(numerics_digest(model_->kernels(), model_->kernel_context()),
                                  model_->model().numerics);
  info_.isa = model_->kernels().name;
  info_.num_threads = model_->pool().num_threads();
  info_.mapped_bytes = mapped_bytes(model_->checkpoint());
  info_.copied_bytes = model_->checkpoint().copied_bytes();
  info_.kv_bytes = int64_t(store_.reserved_bytes());
  info_.max_num_seqs = options.max_num_seqs;
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    has_commands_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

double Engine::now_ms() const {
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

// ---- Any thread.

Result<std::unique_ptr<RequestStream>> Engine::submit(Request request,
                                                      std::function<void()> on_event) {
  RETURN_IF_ERROR(scheduler_->check(request));
  if (num_open_requests_.fetch_add(1) >= max_open_requests_) {
    --num_open_requests_;
    return Error{Code::kExhausted, format("queue: found ", max_open_requests_,
                                          " requests open, expected fewer")};
  }
  auto buffer = std::make_shared<StreamBuffer>(request.num_choices, std::move(on_event));
  RequestHandle handle;
  {
    const std::lock_guard lock(mutex_);
    handle = next_handle_++;
  }
  post({Command::Kind::kArrive, handle, std::move(request), buffer});
  return std::make_unique<RequestStream>(*this, handle, std::move(buffer));
}

void Engine::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    has_commands_.store(true, std::memory_order_relaxed);
  }
  wake_.notify_one();
}

void Engine::cancel(RequestHandle handle) { post({Command::Kind::kCancel, handle, {}, {}}); }
void Engine::resume(RequestHandle handle) { post({Command::Kind::kResume, handle, {}, {}}); }

EngineHealth Engine::health() const {
  const int64_t layer = layer_.load(std::memory_order_relaxed);
  return {num_steps_.load(std::memory_order_relaxed),
          layer < 0 ? std::nullopt : std::optional(layer)};
}

SchedulerStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Result<Completion> Engine::generate(const Request& request, const EventSink& on_event) {
  MR_CHECK_OP(request.num_choices, ==, 1);
  CompletionBuilder builder(request.sampling.prompt_logprobs.has_value());
  ASSIGN_OR_RETURN(const std::unique_ptr<RequestStream> stream, submit(request));
  while (const std::optional<RequestStream::Event> next = stream->next()) {
    builder.add(next->event);
    if (next->event.error) return *next->event.error;
    if (on_event && !on_event(next->event)) break;  // the end of the stream ends the request
  }
  return builder.take();
}

// ---- The engine's thread.

void Engine::loop() {
  const ScopedFpEnvironment fp_environment;
  Monitor monitor(*this);
  StepResult result;
  while (wait_for_work()) {
    take_commands();
    const StepPlan& plan = scheduler_->plan(now_ms());
    executor_.run(plan, &monitor, result);
    layer_.store(-1, std::memory_order_relaxed);
    num_steps_.fetch_add(1, std::memory_order_relaxed);
    scheduler_->commit(result, [&](RequestHandle handle, int32_t choice_idx, StreamEvent& event) {
      publish(handle, choice_idx, std::move(event));
    });
    for (RequestHandle handle : behind_) {
      if (open_requests_.contains(handle)) scheduler_->set_paused(handle, true, now_ms());
    }
    behind_.clear();
    const SchedulerStats stats = scheduler_->stats();
    const std::lock_guard lock(mutex_);
    stats_ = stats;
  }
}

bool Engine::wait_for_work() {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return stop_ || !commands_.empty(); };
  if (!scheduler_->has_work()) {
    if (const std::optional<double> deadline = scheduler_->next_deadline_ms()) {
      const std::chrono::duration<double, std::milli> left(*deadline - now_ms());
      wake_.wait_for(lock, left, ready);
    } else {
      wake_.wait(lock, ready);
    }
  }
  return !stop_;
}

void Engine::take_commands() {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(commands_);
    has_commands_.store(false, std::memory_order_relaxed);
  }
  for (Command& command : taken_) {
    switch (command.kind) {
      case Command::Kind::kArrive: {
        open_requests_[command.handle] = {command.buffer, command.request.num_choices};
        const int32_t num_choices = command.request.num_choices;
        const Status status =
            scheduler_->on_arrival(command.handle, std::move(command.request), now_ms());
        for (int32_t c = 0; c < num_choices && !status.ok(); ++c) {
          StreamEvent event;
          event.finish_reason = FinishReason::kError;
          event.error = status.error();
          publish(command.handle, c, std::move(event));
        }
        break;
      }
      case Command::Kind::kCancel:
        scheduler_->on_cancel(command.handle);
        break;
      case Command::Kind::kResume:
        if (open_requests_.contains(command.handle)) {
          scheduler_->set_paused(command.handle, false, now_ms());
        }
        break;
    }
  }
  taken_.clear();
}

void Engine::publish(RequestHandle handle, int32_t choice_idx, StreamEvent event) {
  const auto found = open_requests_.find(handle);
  MR_CHECK(found != open_requests_.end());
  const bool is_last = event.finish_reason && --found->second.num_open_choices == 0;
  // Before the reader can know: when it has seen the end, there is room for another request.
  if (is_last) --num_open_requests_;
  const bool is_behind = found->second.buffer->push(choice_idx, std::move(event));
  if (is_last) {
    open_requests_.erase(found);
  } else if (is_behind) {
    behind_.push_back(handle);
  }
}

}  // namespace millrace
