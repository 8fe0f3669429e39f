#include "engine/scripted_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "engine/open_checks.h"
#include "model_config/model_config.h"
#include "scheduler/scheduler.h"
#include "sys/file.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxConfigBytes = 1 << 20;
// Of one choice in a row, when all of them are due.
constexpr int kMaxEventsInTurn = 64;

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

Clock::time_point time_point(int64_t ns) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(ns)));
}

template <class Parse>
auto read_and_parse(const std::string& path, size_t max_bytes, Parse parse)
    -> decltype(parse(std::string())) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path, max_bytes));
  auto parsed = parse(text);
  if (parsed.has_value()) return parsed;
  return Error{parsed.error().code, format(path, ": ", parsed.error().message)};
}

}  // namespace

Result<std::unique_ptr<Engine>> ScriptedEngine::open(const EngineOptions& options,
                                                     TokenTable tokens) {
  RETURN_IF_ERROR(validate(options));
  if (!options.record_file.empty()) {
    return Error{Code::kInvalidArgument, format("record_file: found ", options.record_file,
                                                ", expected none: a script is not recorded")};
  }
  if (options.max_waiting < 1) {
    return Error{Code::kInvalidArgument,
                 format("max_waiting: found ", options.max_waiting, ", expected at least 1")};
  }
  ASSIGN_OR_RETURN(const ModelConfig config,
                   read_and_parse(options.load.model_dir + "/config.json", kMaxConfigBytes,
                                  [](const std::string& text) { return parse_model_config(text); }));
  RETURN_IF_ERROR(check_max_model_len(options, config));
  RETURN_IF_ERROR(complete(config, tokens));
  ASSIGN_OR_RETURN(
      Script script,
      read_and_parse(options.script_file, kMaxScriptBytes,
                     [&](const std::string& text) { return Script::parse(text, tokens); }));
  return std::unique_ptr<Engine>(new ScriptedEngine(
      std::move(tokens), std::move(script),
      options.max_model_len.value_or(config.max_position_embeddings), options));
}

ScriptedEngine::ScriptedEngine(TokenTable tokens, Script script, int64_t max_model_len,
                               const EngineOptions& options)
    : tokens_(std::move(tokens)),
      output_tokens_{tokens_.bytes, tokens_.is_control, tokens_.eos_token_ids},
      script_(std::move(script)),
      max_model_len_(max_model_len),
      max_num_seqs_(options.max_num_seqs),
      max_waiting_(options.max_waiting) {
  info_.numerics_id = info_.isa = "scripted";
  info_.num_threads = 1;
  info_.max_num_seqs = max_num_seqs_;
  thread_ = std::thread([this] { loop(); });
}

ScriptedEngine::~ScriptedEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

// ---- Any thread.

Result<std::unique_ptr<RequestStream>> ScriptedEngine::submit(Request request,
                                                              std::function<void()> on_event) {
  const int64_t arrival_ns = now_ns();
  RETURN_IF_ERROR(check_request(request, vocab_size(), max_model_len_));
  if (request.sampling.prompt_logprobs) {
    return Error{Code::kInvalidArgument, "prompt_logprobs: a script has none"};
  }
  std::string prompt;
  if (script_.has_keys()) {
    for (int32_t id : request.prompt_token_ids) prompt += tokens_.bytes[size_t(id)];
  }
  ASSIGN_OR_RETURN(Script::Group* const lines,
                   script_.find(prompt, request.choice_idx, request.num_choices));

  const auto buffer = std::make_shared<StreamBuffer>(request.num_choices, std::move(on_event));
  OpenRequest open;
  open.buffer = buffer;
  open.num_open_choices = request.num_choices;
  open.num_prompt_tokens = int64_t(request.prompt_token_ids.size());
  if (request.timeout_ms) {
    const double timeout_ns = std::min(*request.timeout_ms * 1e6, double(ScriptPlayer::kMaxDueNs));
    open.deadline_ns = arrival_ns + int64_t(timeout_ns);
  }
  RequestHandle handle;
  {
    const std::lock_guard lock(mutex_);
    const int64_t num_waiting = int64_t(waiting_.size());
    const bool may_start = num_waiting == 0 && has_room_for(request.num_choices);
    if (!may_start && num_waiting >= max_waiting_) {
      return Error{Code::kExhausted, format("queue: found ", num_waiting,
                                            " requests waiting, expected fewer than ", max_waiting_)};
    }
    for (const ScriptReply* reply :
         script_.choose(*lines, request.choice_idx, request.num_choices)) {
      open.choices.push_back(
          {std::make_unique<ScriptPlayer>(*reply, request, output_tokens_, max_model_len_)});
    }
    handle = next_handle_++;
    OpenRequest& kept = requests_[handle] = std::move(open);
    if (kept.deadline_ns != 0) due_.insert({kept.deadline_ns, handle, kDeadline});
    if (may_start) {
      start(handle, kept, arrival_ns);
    } else {
      waiting_.push_back(handle);
    }
  }
  wake_.notify_one();
  RequestControl& control = *this;
  return std::make_unique<RequestStream>(control, handle, buffer);
}

void ScriptedEngine::cancel(RequestHandle handle) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(handle);
  }
  wake_.notify_one();
}

void ScriptedEngine::resume(RequestHandle handle) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(handle);
    if (found == requests_.end() || !found->second.is_paused) return;
    found->second.is_paused = false;
    // What follows keeps its distance from what comes now.
    const int64_t now = now_ns();
    for (Choice& choice : found->second.choices) {
      if (choice.player) choice.start_ns += std::max<int64_t>(now - choice.due_ns(), 0);
    }
    schedule(handle, found->second);
  }
  wake_.notify_one();
}

EngineHealth ScriptedEngine::health() const {
  const std::lock_guard lock(mutex_);
  EngineHealth health;
  health.num_steps = totals_.num_steps;
  return health;
}

SchedulerStats ScriptedEngine::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = totals_;
  for (const auto& [handle, request] : requests_) {
    ++(request.is_running ? stats.num_running_requests : stats.num_waiting_requests);
    stats.num_paused_requests += request.is_paused;
    for (const Choice& choice : request.choices) {
      if (!choice.player) continue;
      ++(!request.is_running                ? stats.num_waiting_sequences
         : choice.player->num_tokens() == 0 ? stats.num_prefilling_sequences
                                            : stats.num_decoding_sequences);
    }
  }
  return stats;
}

// ---- With mutex_ held.

// One that has more choices than there are places runs alone.
bool ScriptedEngine::has_room_for(int32_t num_choices) const {
  return num_running_sequences_ == 0 || num_running_sequences_ + num_choices <= max_num_seqs_;
}

void ScriptedEngine::start(RequestHandle handle, OpenRequest& request, int64_t now_ns) {
  request.is_running = true;
  num_running_sequences_ += request.num_open_choices;
  for (Choice& choice : request.choices) choice.start_ns = now_ns;
  schedule(handle, request);
}

void ScriptedEngine::schedule(RequestHandle handle, const OpenRequest& request) {
  for (size_t c = 0; c < request.choices.size(); ++c) {
    const Choice& choice = request.choices[c];
    if (choice.player) due_.insert({choice.due_ns(), handle, int32_t(c)});
  }
}

void ScriptedEngine::unschedule(RequestHandle handle, const OpenRequest& request) {
  for (size_t c = 0; c < request.choices.size(); ++c) {
    const Choice& choice = request.choices[c];
    if (choice.player) due_.erase({choice.due_ns(), handle, int32_t(c)});
  }
}

void ScriptedEngine::publish_due(int64_t now_ns) {
  for (RequestHandle handle : cancelled_) end(handle, FinishReason::kAbort);
  cancelled_.clear();
  while (!due_.empty() && due_.begin()->ns <= now_ns) {
    const Due due = *due_.begin();
    due_.erase(due_.begin());
    if (due.choice_idx == kDeadline) {
      end(due.handle, FinishReason::kTimeout);
    } else {
      play(due.handle, due.choice_idx, now_ns);
    }
  }
  for (const Due& due : later_) {
    const auto found = requests_.find(due.handle);
    const bool goes_on = found != requests_.end() && !found->second.is_paused &&
                         found->second.choices[size_t(due.choice_idx)].player;
    if (goes_on) due_.insert(due);
  }
  later_.clear();
  totals_.num_steps += !unannounced_.empty();
  admit(now_ns);
}

void ScriptedEngine::play(RequestHandle handle, int32_t choice_idx, int64_t now_ns) {
  OpenRequest& request = requests_.at(handle);
  Choice& choice = request.choices[size_t(choice_idx)];
  for (int i = 0; i < kMaxEventsInTurn; ++i) {
    if (choice.due_ns() > now_ns) {
      due_.insert({choice.due_ns(), handle, choice_idx});
      return;
    }
    const bool goes_on = publish(handle, choice_idx, choice.player->next());
    if (!goes_on) return;
  }
  later_.push_back({choice.due_ns(), handle, choice_idx});
}

// Every choice that has not ended does so now.
void ScriptedEngine::end(RequestHandle handle, FinishReason reason) {
  const auto found = requests_.find(handle);
  if (found == requests_.end()) return;
  unschedule(handle, found->second);
  const size_t num_choices = found->second.choices.size();
  for (size_t c = 0; c < num_choices; ++c) {
    // The last event takes the request away, and there is nothing behind it.
    const auto request = requests_.find(handle);
    if (request == requests_.end()) return;
    Choice& choice = request->second.choices[c];
    if (choice.player) publish(handle, int32_t(c), choice.player->end(reason));
  }
}

// Whether the choice has more to say, and the reader keeps up.
bool ScriptedEngine::publish(RequestHandle handle, int32_t choice_idx, StreamEvent event) {
  const auto found = requests_.find(handle);
  MR_CHECK(found != requests_.end());
  OpenRequest& request = found->second;
  const bool has_ended = event.finish_reason.has_value();
  totals_.num_output_tokens += event.token_id.has_value();
  if (event.num_computed_tokens > 0) {
    totals_.num_prompt_tokens += std::exchange(request.num_prompt_tokens, 0);
  }
  if (unannounced_.empty() || unannounced_.back() != request.buffer) {
    unannounced_.push_back(request.buffer);
  }
  const bool is_behind = request.buffer->push(choice_idx, std::move(event));
  if (has_ended) {
    request.choices[size_t(choice_idx)].player.reset();
    num_running_sequences_ -= request.is_running;
    if (--request.num_open_choices == 0) {
      if (request.deadline_ns != 0) due_.erase({request.deadline_ns, handle, kDeadline});
      if (!request.is_running) {
        waiting_.erase(std::find(waiting_.begin(), waiting_.end(), handle));
      }
      ++totals_.num_finished_requests;
      requests_.erase(found);
      return false;
    }
  }
  if (is_behind && !request.is_paused) {
    request.is_paused = true;
    unschedule(handle, request);
  }
  return !has_ended && !request.is_paused;
}

void ScriptedEngine::admit(int64_t now_ns) {
  while (!waiting_.empty()) {
    OpenRequest& request = requests_.at(waiting_.front());
    if (!has_room_for(request.num_open_choices)) return;
    start(waiting_.front(), request, now_ns);
    waiting_.pop_front();
  }
}

// ---- The engine's thread.

void ScriptedEngine::loop() {
  std::vector<std::shared_ptr<StreamBuffer>> buffers;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (cancelled_.empty() && due_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const int64_t now = now_ns();
    if (cancelled_.empty() && due_.begin()->ns > now) {
      wake_.wait_until(lock, time_point(due_.begin()->ns));
      continue;
    }
    publish_due(now);
    buffers.swap(unannounced_);
    lock.unlock();
    for (const std::shared_ptr<StreamBuffer>& buffer : buffers) buffer->announce();
    buffers.clear();
    lock.lock();
  }
}

}  // namespace millrace
