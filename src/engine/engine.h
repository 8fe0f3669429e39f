#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/completion.h"
#include "engine/executor.h"
#include "engine/loaded_model.h"
#include "engine/recorder.h"
#include "engine/request_stream.h"
#include "engine/watchdog.h"
#include "kvstore/kv_store.h"
#include "request/request.h"
#include "scheduler/scheduler.h"

namespace millrace {

struct EngineOptions {
  LoadOptions load;
  int64_t prefill_chunk = 256;  // tokens of one prompt that are computed at once
  // Tokens of prompt and output; none: as many as memory has room for, up to the checkpoint's.
  std::optional<int64_t> max_model_len;
  int64_t max_num_seqs = 256;             // sequences that hold state at a time
  int64_t max_num_batched_tokens = 2048;  // rows of a step
  double max_step_ms = 250;               // of a step while anything decodes
  int64_t max_waiting = 1024;             // requests beyond those that run
  std::optional<int64_t> kv_bytes;        // for the cache; none: what memory leaves
  int64_t block_size = kDefaultBlockSize;  // tokens, rounded up to whole compressed rows
  std::optional<int64_t> num_blocks;      // of the cache, whatever the bytes; none: what fits

  // Where the run is recorded, prompts included, so that it can be replayed. Empty: it is not.
  std::string record_file;
  // A step that stays in one layer for longer is warned of, once. None: nobody looks.
  std::optional<double> watchdog_seconds = 300;
  // Takes what whoever runs the engine should know, on any thread of the engine's. None: stderr.
  std::function<void(const std::string&)> on_warning;
};

// What the engine knows of the tokenizer, as data by token id.
struct TokenTable {
  std::vector<std::string> bytes;       // of each token; a control token's literal
  std::vector<uint8_t> is_control;      // left out of the output where a request skips them
  std::vector<int32_t> compressed_ids;  // tokenizer/token_map.h
  std::vector<int32_t> eos_token_ids;   // empty: the one of config.json
};

struct EngineInfo {
  std::string numerics_id;
  std::string isa;
  int num_threads = 0;
  int64_t mapped_bytes = 0;  // checkpoint files, read as they are needed
  int64_t copied_bytes = 0;  // of them, those that had to be copied to memory
  int64_t kv_bytes = 0;      // reserved for the cache; memory is used as it fills
  int64_t max_num_seqs = 0;
};

// What steps with rows have cost the engine's thread since the start.
struct EngineCounters {
  int64_t num_steps = 0;
  int64_t num_rows = 0;
  int64_t step_ns = 0;     // from taking requests in to handing events out
  int64_t region_ns = 0;   // of that, in regions of the thread pool: all threads work
  int64_t plan_ns = 0;     // of the rest: taking requests in, and planning
  int64_t commit_ns = 0;   // of the rest: results, events and what readers are told
  // The engine's thread works and the others wait.
  int64_t outside_ns() const { return step_ns - region_ns; }
};

// One model and the sequences it is answering.
//
// Threading: submit(), generate(), health() and what only reads may be called from any thread. One
// thread of the engine's own owns scheduler, executor and cache.
class Engine {
 public:
  // Sees every step of a request in order, on the caller's thread; false ends it with kAbort and
  // is the last call.
  using EventSink = std::function<bool(const StreamEvent&)>;

  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, TokenTable tokens,
                                              const OpenProgress& progress = {});
  // Ends what is running. Streams must be gone.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Begins to answer. What comes out is a function of the request alone. Refuses at once a request
  // that makes no sense or does not fit (kInvalidArgument), or that would be one too many
  // (kExhausted). Requires of a request with temperature: a seed.
  //   on_event  called by the engine's thread when there is something to read; must not block
  Result<std::unique_ptr<RequestStream>> submit(Request request,
                                                std::function<void()> on_event = {});

  // Answers a request of one choice while the caller waits. Errors: of submit(), and that of kError.
  Result<Completion> generate(const Request& request, const EventSink& on_event = {});

  int64_t vocab_size() const { return model_->config().vocab_size; }
  int64_t max_model_len() const { return scheduler_->max_model_len(); }
  const EngineInfo& info() const { return info_; }
  EngineHealth health() const;
  SchedulerStats stats() const;     // as of the last step
  EngineCounters counters() const;  // as of the last step

 private:
  friend class RequestStream;
  class Monitor;
  struct Command {
    enum class Kind { kArrive, kCancel, kResume } kind;
    RequestHandle handle;
    Request request;
    std::shared_ptr<StreamBuffer> buffer;
  };

  Engine(std::unique_ptr<LoadedModel> model, TokenTable tokens, KvStore store,
         const SchedulerOptions& options, Recorder recorder);
  void cancel(RequestHandle handle);
  void resume(RequestHandle handle);
  void post(Command command);

  // On the engine's thread.
  void loop();
  bool wait_for_work();  // false: the engine ends
  void run_step(Monitor& monitor, StepResult& result);
  void take_commands();
  void arrive(Command& command);
  void set_paused(RequestHandle handle, bool is_paused);
  void enter(int64_t layer, int64_t now_ns);  // -1: none
  void publish(RequestHandle handle, int32_t choice_idx, StreamEvent event);
  void announce();
  OutputTokens output_tokens() const;

  std::unique_ptr<LoadedModel> model_;
  TokenTable tokens_;
  KvStore store_;
  std::unique_ptr<Scheduler> scheduler_;
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
  std::unordered_map<RequestHandle, OpenRequest> open_requests_;
  std::vector<Command> taken_;
  std::vector<RequestHandle> behind_;  // whose readers fell behind in this step
  std::vector<std::shared_ptr<StreamBuffer>> unannounced_;  // with events of this step
  Recorder recorder_;

  // Last: they use everything else.
  std::thread thread_;
  std::optional<Watchdog> watchdog_;
};

}  // namespace millrace
