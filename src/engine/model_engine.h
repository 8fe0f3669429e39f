#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/loaded_model.h"
#include "engine/recorder.h"
#include "engine/request_stream.h"
#include "engine/watchdog.h"
#include "kvstore/kv_store.h"
#include "model/expert_counts.h"
#include "request/request.h"
#include "scheduler/scheduler.h"

namespace millrace {

// One model and the sequences it is answering.
//
// Threading: submit(), generate(), health() and what only reads may be called from any thread. One
// thread of the engine's own owns scheduler, executor and cache.
class ModelEngine : public Engine, private RequestControl {
 public:
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, TokenTable tokens,
                                              const OpenProgress& progress);
  ~ModelEngine() override;

  Result<std::unique_ptr<RequestStream>> submit(Request request,
                                                std::function<void()> on_event) override;

  int64_t vocab_size() const override { return model_->config().vocab_size; }
  int64_t max_model_len() const override { return scheduler_->max_model_len(); }
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override;
  SchedulerStats stats() const override;
  EngineCounters counters() const override;
  ExpertLoad expert_load() const override;

 private:
  class Monitor;
  struct Command {
    enum class Kind { kArrive, kCancel, kResume } kind;
    RequestHandle handle;
    Request request;
    std::shared_ptr<StreamBuffer> buffer;
  };

  ModelEngine(std::unique_ptr<LoadedModel> model, TokenTable tokens, KvStore store,
              const SchedulerOptions& options, Recorder recorder);
  void cancel(RequestHandle handle) override;
  void resume(RequestHandle handle) override;
  void post(Command command);

  // On the engine's thread.
  void loop();
  bool wait_for_work();  // false: the engine ends
  void run_step(Monitor& monitor, StepResult& result);
  void take_commands();
  void arrive(Command& command);
  void set_paused(RequestHandle handle, bool is_paused);
  void pause_behind();
  void count_step(const EngineCounters& step);
  void enter(int64_t layer, int64_t now_ns);  // -1: none
  void publish(RequestHandle handle, int32_t choice_idx, StreamEvent event);
  void announce();
  OutputTokens output_tokens() const;

  std::unique_ptr<LoadedModel> model_;
  TokenTable tokens_;
  KvStore store_;
  std::unique_ptr<Scheduler> scheduler_;
  ExpertCounts expert_counts_;
  Executor executor_;
  EngineInfo info_;
  int64_t max_open_requests_;

  // Between the threads.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Command> commands_;         // guarded by mutex_
  bool stop_ = false;                     // guarded by mutex_
  RequestHandle next_handle_ = 0;         // guarded by mutex_
  SchedulerStats stats_;                  // guarded by mutex_
  EngineCounters counters_;               // guarded by mutex_
  std::atomic<bool> has_commands_{false};  // so that a step can look without the lock
  std::atomic<int64_t> num_open_requests_{0};
  std::atomic<int64_t> num_steps_{0}, num_rows_{0}, layer_{-1};
  std::atomic<int64_t> in_place_since_ns_{0};  // 0: it waits for requests

  // The engine's thread's own.
  struct OpenRequest {
    std::shared_ptr<StreamBuffer> buffer;
    int32_t num_open_choices;
  };
  struct Committed {
    RequestHandle handle;
    int32_t choice_idx;
    StreamEvent event;
  };
  std::unordered_map<RequestHandle, OpenRequest> open_requests_;
  std::vector<Command> taken_;
  std::vector<Committed> committed_;   // events of this step that are not handed out yet
  std::vector<RequestHandle> behind_;  // whose readers fell behind in this step
  int64_t hand_out_ns_ = 0;            // of the last step with rows, not yet in counters_
  std::vector<std::shared_ptr<StreamBuffer>> unannounced_;  // with events of this step
  Recorder recorder_;

  // Last: they use everything else.
  std::thread thread_;
  std::optional<Watchdog> watchdog_;
};

}  // namespace millrace
