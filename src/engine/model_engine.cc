#include "engine/model_engine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/format.h"
#include "engine/memory_plan.h"
#include "engine/open_checks.h"
#include "sys/fp_environment.h"
#include "sys/memory.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now_ns() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}
double to_ms(int64_t ns) { return double(ns) / 1e6; }
double now_ms() { return to_ms(now_ns()); }

int64_t mapped_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const MappedFile& shard : checkpoint.shards()) bytes += int64_t(shard.bytes().size());
  return bytes;
}

std::string numerics_id_of(LoadedModel& model) {
  const ScopedFpEnvironment fp_environment;
  return numerics_id(numerics_digest(model.kernels(), model.kernel_context()),
                     model.model().numerics);
}

Result<Recorder> make_recorder(const EngineOptions& options, LoadedModel& model,
                               const TokenTable& tokens, const SchedulerOptions& scheduling,
                               Recorder::Warning on_warning) {
  if (options.record_file.empty()) return Recorder();
  RecordingHeader header;
  header.numerics = numerics_name(model.model().numerics);
  header.numerics_id = numerics_id_of(model);
  header.isa = model.kernels().name;
  header.num_threads = model.pool().num_threads();
  ASSIGN_OR_RETURN(header.model, identify_model(options.load.model_dir, model.checkpoint()));
  header.vocab_size = model.config().vocab_size;
  header.eos_token_ids = tokens.eos_token_ids;
  header.scheduler = scheduling;
  return Recorder::create(options.record_file, header, std::move(on_warning));
}

}  // namespace

// Looks for cancelled requests between layers: work that helps nobody is given up.
class ModelEngine::Monitor : public LayerMonitor {
 public:
  explicit Monitor(ModelEngine& engine) : engine_(engine) {}
  bool before_layer(int64_t layer) override {
    const int64_t now = now_ns();
    engine_.enter(layer, now);
    if (engine_.has_commands_.load(std::memory_order_relaxed)) engine_.take_commands();
    return !engine_.scheduler_->is_moot(to_ms(now));
  }

 private:
  ModelEngine& engine_;
};

Result<std::unique_ptr<Engine>> ModelEngine::open(const EngineOptions& options, TokenTable tokens,
                                                  const OpenProgress& progress) {
  const int64_t begin_ns = now_ns();
  RETURN_IF_ERROR(validate(options));
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model,
                   LoadedModel::open(options.load, std::move(tokens.compressed_ids), progress,
                                     options.kv_bytes));
  const ModelConfig& config = model->config();
  RETURN_IF_ERROR(check_max_model_len(options, config));
  RETURN_IF_ERROR(complete(config, tokens));

  const KvLayout layout = kv_layout(config, kv_format_of(model->model().numerics),
                                    options.block_size.value_or(kDefaultBlockSize));
  const MachineMemory machine{
      memory_limit_bytes(), mapped_bytes(model->checkpoint()) - model->cached_file_bytes(),
      anonymous_bytes() + model->experts().reads().cache_bytes};
  const MemoryWish wish{options.kv_bytes, options.num_blocks, options.max_model_len,
                        options.max_num_seqs,
                        options.prefix_caching ? options.max_num_snapshots : 0};
  ASSIGN_OR_RETURN(const MemoryPlan plan,
                   plan_memory(layout, machine, wish, config.max_position_embeddings));
  ASSIGN_OR_RETURN(KvStore store, KvStore::create(layout, plan.num_blocks,
                                                  plan.num_slots + plan.num_snapshots));

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
  scheduling.prefix_caching = options.prefix_caching;
  scheduling.max_num_snapshots = plan.num_snapshots;
  scheduling.exact_replay = options.exact_replay;
  scheduling.layer_reach = model->model().reach;
  RETURN_IF_ERROR(validate(scheduling));

  std::function<void(const std::string&)> on_warning = options.on_warning;
  if (!on_warning) {
    on_warning = [](const std::string& what) {
      std::fprintf(stderr, "millrace: %s\n", what.c_str());
    };
  }
  for (const std::string& warning : model->warnings()) on_warning(warning);
  if (const Status spread = store.spread_over(model->memory_nodes()); !spread.ok()) {
    on_warning(format("cache: ", spread.error().message));
  }
  ASSIGN_OR_RETURN(Recorder recorder,
                   make_recorder(options, *model, tokens, scheduling, on_warning));
  std::unique_ptr<ModelEngine> engine(new ModelEngine(
      std::move(model), std::move(tokens), std::move(store), scheduling, std::move(recorder)));
  if (options.watchdog_seconds) {
    engine->watchdog_.emplace(
        *options.watchdog_seconds * 1000, [&engine = *engine] { return engine.health(); },
        on_warning);
  }
  engine->info_.open_s = to_ms(now_ns() - begin_ns) / 1000;
  return std::unique_ptr<Engine>(std::move(engine));
}

ModelEngine::ModelEngine(std::unique_ptr<LoadedModel> model, TokenTable tokens, KvStore store,
                         const SchedulerOptions& options, Recorder recorder)
    : model_(std::move(model)),
      tokens_(std::move(tokens)),
      store_(std::move(store)),
      scheduler_(std::make_unique<Scheduler>(options, output_tokens())),
      expert_counts_(model_->config().num_hidden_layers, model_->config().n_routed_experts),
      executor_(*model_, store_, tokens_.eos_token_ids, &expert_counts_),
      max_open_requests_(options.max_num_seqs + options.max_waiting),
      stats_(scheduler_->stats()),
      recorder_(std::move(recorder)) {
  info_.numerics_id = numerics_id_of(*model_);
  info_.isa = model_->kernels().name;
  info_.num_threads = model_->pool().num_threads();
  info_.mapped_bytes = mapped_bytes(model_->checkpoint());
  info_.copied_bytes = model_->checkpoint().copied_bytes();
  info_.kv_bytes = int64_t(store_.reserved_bytes());
  info_.expert_reads = model_->expert_reads();
  counters_.expert_reads = model_->experts().reads();
  info_.max_num_seqs = options.max_num_seqs;
  const ModelConfig& config = model_->config();
  info_.engram_reads_per_row =
      int64_t(config.engram_layer_ids.size()) * config.engram_num_columns();
  info_.engram_bytes_per_row =
      info_.engram_reads_per_row * (config.engram_head_dim + config.engram_head_dim / 32);
  thread_ = std::thread([this] { loop(); });
}

ModelEngine::~ModelEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    has_commands_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

OutputTokens ModelEngine::output_tokens() const {
  return {tokens_.bytes, tokens_.is_control, tokens_.eos_token_ids};
}

// ---- Any thread.

Result<std::unique_ptr<RequestStream>> ModelEngine::submit(Request request,
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
  RequestControl& control = *this;
  return std::make_unique<RequestStream>(control, handle, std::move(buffer));
}

void ModelEngine::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    has_commands_.store(true, std::memory_order_relaxed);
  }
  wake_.notify_one();
}

void ModelEngine::cancel(RequestHandle handle) { post({Command::Kind::kCancel, handle, {}, {}}); }
void ModelEngine::resume(RequestHandle handle) { post({Command::Kind::kResume, handle, {}, {}}); }

EngineHealth ModelEngine::health() const {
  // Since when is read first: what moves on meanwhile only makes the place a newer one.
  const int64_t since_ns = in_place_since_ns_.load(std::memory_order_acquire);
  const int64_t layer = layer_.load(std::memory_order_relaxed);
  EngineHealth health;
  health.num_steps = num_steps_.load(std::memory_order_relaxed);
  if (since_ns == 0) return health;
  if (layer >= 0) health.layer = layer;
  health.num_rows = num_rows_.load(std::memory_order_relaxed);
  health.in_place_ms = std::max(0.0, to_ms(now_ns() - since_ns));
  return health;
}

SchedulerStats ModelEngine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

EngineCounters ModelEngine::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

ExpertLoad ModelEngine::expert_load() const {
  return {expert_counts_.num_layers(), expert_counts_.num_experts(), expert_counts_.read()};
}

// ---- The engine's thread.

void ModelEngine::loop() {
  const ScopedFpEnvironment fp_environment;
  model_->pool().bind_owner();
  Monitor monitor(*this);
  StepResult result;
  while (wait_for_work()) run_step(monitor, result);
  recorder_.end();
}

void ModelEngine::run_step(Monitor& monitor, StepResult& result) {
  const int64_t begin_ns = now_ns(), begin_region_ns = model_->pool().region_ns();
  enter(-1, begin_ns);
  take_commands();
  const double plan_ms = now_ms();
  const StepPlan& plan = scheduler_->plan(plan_ms);
  const int64_t num_rows = plan.num_rows;
  num_rows_.store(num_rows, std::memory_order_relaxed);
  recorder_.plan(plan, plan_ms);

  const int64_t planned_ns = now_ns();
  executor_.run(plan, &monitor, result);
  const int64_t computed_ns = now_ns();
  num_steps_.fetch_add(1, std::memory_order_relaxed);
  enter(-1, computed_ns);

  recorder_.result(plan, result, output_tokens());
  scheduler_->commit(result, [&](RequestHandle handle, int32_t choice_idx, StreamEvent& event) {
    committed_.push_back({handle, choice_idx, std::move(event)});
  });
  // Who has the last event of a request finds its steps counted, and all of them, also who asks for
  // events without being told: what handing them out takes is in the next step's account.
  const int64_t end_ns = now_ns();
  EngineCounters step;
  step.num_rows = num_rows;
  step.step_ns = end_ns - begin_ns + hand_out_ns_;
  step.region_ns = model_->pool().region_ns() - begin_region_ns;
  step.plan_ns = planned_ns - begin_ns;
  step.commit_ns = end_ns - computed_ns + hand_out_ns_;
  count_step(step);
  for (Committed& each : committed_) {
    publish(each.handle, each.choice_idx, std::move(each.event));
  }
  committed_.clear();
  if (!behind_.empty()) pause_behind();
  announce();
  if (num_rows > 0) hand_out_ns_ = now_ns() - end_ns;
}

void ModelEngine::count_step(const EngineCounters& step) {
  const SchedulerStats stats = scheduler_->stats();
  const std::lock_guard lock(mutex_);
  stats_ = stats;
  if (step.num_rows == 0) return;
  counters_.expert_reads = model_->experts().reads();
  ++counters_.num_steps;
  counters_.num_rows += step.num_rows;
  const auto size = std::lower_bound(kStepRows.begin(), kStepRows.end(), step.num_rows);
  ++counters_.num_steps_by_rows[size_t(size - kStepRows.begin())];
  counters_.step_ns += step.step_ns;
  counters_.region_ns += step.region_ns;
  counters_.plan_ns += step.plan_ns;
  counters_.commit_ns += step.commit_ns;
}

void ModelEngine::enter(int64_t layer, int64_t now_ns) {
  layer_.store(layer, std::memory_order_relaxed);
  in_place_since_ns_.store(now_ns, std::memory_order_release);
}

bool ModelEngine::wait_for_work() {
  const bool has_work = scheduler_->has_work();
  if (!has_work) {
    recorder_.flush();
    enter(-1, 0);
  }
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return stop_ || !commands_.empty(); };
  if (!has_work) {
    if (const std::optional<double> deadline = scheduler_->next_deadline_ms()) {
      const std::chrono::duration<double, std::milli> left(*deadline - now_ms());
      wake_.wait_for(lock, left, ready);
    } else {
      wake_.wait(lock, ready);
    }
  }
  return !stop_;
}

void ModelEngine::take_commands() {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(commands_);
    has_commands_.store(false, std::memory_order_relaxed);
  }
  for (Command& command : taken_) {
    switch (command.kind) {
      case Command::Kind::kArrive:
        arrive(command);
        break;
      case Command::Kind::kCancel:
        recorder_.cancel(command.handle);
        scheduler_->on_cancel(command.handle);
        break;
      case Command::Kind::kResume:
        set_paused(command.handle, false);
        break;
    }
  }
  taken_.clear();
}

void ModelEngine::arrive(Command& command) {
  const RequestHandle handle = command.handle;
  const int32_t num_choices = command.request.num_choices;
  const double time_ms = now_ms();
  open_requests_[handle] = {std::move(command.buffer), num_choices};
  recorder_.arrival(handle, command.request, time_ms);
  const Status status = scheduler_->on_arrival(handle, std::move(command.request), time_ms);
  for (int32_t c = 0; c < num_choices && !status.ok(); ++c) {
    StreamEvent event;
    event.finish_reason = FinishReason::kError;
    event.error = status.error();
    publish(handle, c, std::move(event));
  }
  if (!status.ok()) announce();
}

void ModelEngine::set_paused(RequestHandle handle, bool is_paused) {
  if (!open_requests_.contains(handle)) return;  // has ended meanwhile
  const double time_ms = now_ms();
  recorder_.pause(handle, is_paused, time_ms);
  scheduler_->set_paused(handle, is_paused, time_ms);
}

void ModelEngine::pause_behind() {
  for (RequestHandle handle : behind_) set_paused(handle, true);
  behind_.clear();
  const SchedulerStats stats = scheduler_->stats();  // there may be no further step to show it
  const std::lock_guard lock(mutex_);
  stats_ = stats;
}

void ModelEngine::publish(RequestHandle handle, int32_t choice_idx, StreamEvent event) {
  const auto found = open_requests_.find(handle);
  MR_CHECK(found != open_requests_.end());
  const bool is_last = event.finish_reason && --found->second.num_open_choices == 0;
  // Before the reader can know: when it has seen the end, there is room for another request.
  if (is_last) --num_open_requests_;
  const std::shared_ptr<StreamBuffer>& buffer = found->second.buffer;
  if (unannounced_.empty() || unannounced_.back() != buffer) unannounced_.push_back(buffer);
  const bool is_behind = buffer->push(choice_idx, std::move(event));
  if (is_last) {
    open_requests_.erase(found);
  } else if (is_behind) {
    behind_.push_back(handle);
  }
}

void ModelEngine::announce() {
  for (const std::shared_ptr<StreamBuffer>& buffer : unannounced_) buffer->announce();
  unannounced_.clear();
}

}  // namespace millrace
