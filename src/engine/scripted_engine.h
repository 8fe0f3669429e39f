#pragma once

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/request_stream.h"
#include "engine/script.h"
#include "engine/script_player.h"
#include "request/request.h"
#include "request/step.h"
#include "scheduler/stop_rules.h"

namespace millrace {

// Answers from a script instead of a model, with known delays: for programs that speak with an
// engine, and for whoever measures one.
//
// Every event has a due time that is the start of its answer plus delays of the script, so that
// nothing adds up. What is due at the same time is published together and then announced.
//
// Threading: any thread may call everything; one of its own publishes.
class ScriptedEngine : public Engine, private RequestControl {
 public:
  // Reads options.script_file, and config.json in the model's directory.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, TokenTable tokens);
  ~ScriptedEngine() override;

  Result<std::unique_ptr<RequestStream>> submit(Request request,
                                                std::function<void()> on_event) override;

  int64_t vocab_size() const override { return output_tokens_.vocab_size(); }
  int64_t max_model_len() const override { return max_model_len_; }
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override;
  SchedulerStats stats() const override;
  EngineCounters counters() const override { return {}; }  // nothing is computed
  ExpertLoad expert_load() const override { return {}; }

 private:
  struct Choice {
    std::unique_ptr<ScriptPlayer> player;
    int64_t start_ns = 0;  // of the answer, later by what its request has rested
    int64_t due_ns() const { return start_ns + player->due_ns(); }
  };
  struct OpenRequest {
    std::shared_ptr<StreamBuffer> buffer;
    std::vector<Choice> choices;
    int32_t num_open_choices = 0;
    int64_t num_prompt_tokens = 0;
    int64_t deadline_ns = 0;  // 0: none
    bool is_running = false;
    bool is_paused = false;
  };
  // When there is something to do. Choice kDeadline: the request's time is over.
  struct Due {
    int64_t ns;
    RequestHandle handle;
    int32_t choice_idx;
    auto operator<=>(const Due&) const = default;
  };
  static constexpr int32_t kDeadline = -1;

  ScriptedEngine(TokenTable tokens, Script script, int64_t max_model_len,
                 const EngineOptions& options);
  void cancel(RequestHandle handle) override;
  void resume(RequestHandle handle) override;

  // All with mutex_ held.
  bool has_room_for(int32_t num_choices) const;
  void start(RequestHandle handle, OpenRequest& request, int64_t now_ns);
  void schedule(RequestHandle handle, const OpenRequest& request);
  void unschedule(RequestHandle handle, const OpenRequest& request);
  void publish_due(int64_t now_ns);
  void play(RequestHandle handle, int32_t choice_idx, int64_t now_ns);
  void end(RequestHandle handle, FinishReason reason);
  bool publish(RequestHandle handle, int32_t choice_idx, StreamEvent event);
  void admit(int64_t now_ns);

  // The engine's thread.
  void loop();

  const TokenTable tokens_;
  const OutputTokens output_tokens_;
  Script script_;
  const int64_t max_model_len_, max_num_seqs_, max_waiting_;
  EngineInfo info_;

  mutable std::mutex mutex_;  // guards what follows, and whose turn it is in script_
  std::condition_variable wake_;
  bool stop_ = false;
  RequestHandle next_handle_ = 0;
  std::map<RequestHandle, OpenRequest> requests_;
  std::deque<RequestHandle> waiting_;  // in the order of arrival; some have ended since
  std::set<Due> due_;                  // of requests that do not rest
  std::vector<RequestHandle> cancelled_;
  std::vector<Due> later_;  // due now, but after others have had their turn
  std::vector<std::shared_ptr<StreamBuffer>> unannounced_;
  int64_t num_running_sequences_ = 0;
  SchedulerStats totals_;  // the part that counts from the start

  std::thread thread_;  // last: it uses everything else
};

}  // namespace millrace
