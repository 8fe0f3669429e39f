#pragma once

// POST /v1/chat/completions and /v1/completions: from the body to the last byte of the answer.
//
//   network's thread   admission, then
//   a worker           JSON, the fields, the prompt's tokens, Engine::submit
//   network's thread   events as the engine brings them, written to the client
//   a worker           the body of an answer that is not streamed
//
// The client's leaving ends the request in the engine, wherever it is.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/llm.h"
#include "net/event_loop.h"
#include "openai/completion_request.h"
#include "openai/completion_stream.h"
#include "server/admission.h"
#include "server/call.h"
#include "server/metrics.h"
#include "server/ready_queue.h"

namespace millrace {

class CompletionCall : public std::enable_shared_from_this<CompletionCall> {
 public:
  // Answers the call, now or later.
  static void start(std::unique_ptr<Call> call, openai::Endpoint endpoint);

  CompletionCall(std::unique_ptr<Call> call, openai::Endpoint endpoint, Admission::Ticket ticket);
  ~CompletionCall();

  // Takes what the engine has brought. Network's thread.
  void read_events();
  // How long, if the engine has not taken it up; else 0.
  double waiting_s() const;
  const std::optional<size_t>& key_idx() const { return call_->key_idx; }
  // Every choice ends with finish reason "abort", and so does the answer.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;

  // Whose the request, its prompts and its streams are.
  enum class State {
    kPreparing,  // a worker's
    kReading,    // the network's thread's
    kWriting,    // a worker's again: the body of an answer that is not streamed
    kEnded,      // nobody's; a worker that comes back to it lets go
  };

  struct ChoiceTimes {
    std::optional<Clock::time_point> last_token;
    int64_t num_tokens = 0;
    bool is_finished = false;  // and counted
  };

  // On a worker.
  void prepare(std::string body);
  std::optional<openai::ApiError> read_request(const std::string& body);
  std::optional<openai::ApiError> submit();
  void write_body();

  // On the network's thread.
  void begin();
  void take_id(const std::string& id);
  void forget();  // no longer to be found by its id
  void take(size_t prompt_idx, const AnswerEvent& event, std::string& out);
  void send(const std::string& out);
  void finish();
  openai::ApiError engine_error(const Error& error);
  void fail(const openai::ApiError& error);
  void on_client_gone();
  void count_unfinished(std::string_view finished_reason);
  void end(bool is_served);  // once, however it ends
  void keep_alive();
  RequestTimes times() const;

  std::unique_ptr<Call> call_;
  ServerContext& context_;
  const openai::Endpoint endpoint_;
  Admission::Ticket ticket_;
  ReadyQueue::Id ready_id_ = 0;
  const Clock::time_point arrival_ = Clock::now();

  // See State.
  openai::CompletionRequest request_;
  std::vector<Prompt> prompts_;
  openai::ResponseContext response_;
  std::vector<std::unique_ptr<AnswerStream>> streams_;  // of each prompt
  std::optional<openai::CompletionStream> writer_;      // of a streamed answer

  std::atomic<bool> is_cancelled_{false};  // told to the worker
  State state_ = State::kPreparing;
  bool is_aborted_ = false;  // before there was anything to abort
  bool has_headers_ = false;  // of a streamed answer
  bool is_held_up_ = false;   // by a reader who does not read
  std::vector<bool> has_event_;  // of each prompt: the engine has taken it up
  std::optional<Clock::time_point> first_event_, first_token_, last_token_;
  std::vector<ChoiceTimes> choices_;
  net::EventLoop::Timer keep_alive_;
};

}  // namespace millrace
