#pragma once

// What the server counts, under the names that dashboards, autoscalers and routers know from vLLM.
// docs/metrics.md lists them. Every series is there from the start, with 0.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "engine/engine.h"

namespace millrace {

struct MetricsOptions {
  std::string prefix = "vllm:";
  std::string model_name;
  int64_t max_model_len = 0;
};

// What became of one request, for its histograms.
struct RequestTimes {
  double queue_s = 0;    // until the engine took it up
  double prefill_s = 0;  // from there to the first token
  double decode_s = 0;   // from the first token to the last
  double e2e_s = 0;
};

class Metrics {
 public:
  explicit Metrics(const MetricsOptions& options);

  // From the network's thread.
  void on_first_token(double seconds);
  void on_token_gap(double seconds);  // between two tokens of a choice
  void on_token() { generation_tokens_->Increment(); }
  struct Ended {
    std::string_view finished_reason;  // of one choice: stop, length, abort, error, repetition
    bool is_chat_with_tools = false, has_tool_calls = false, is_streamed = false;
    bool is_empty = false;  // a chat's that stopped with neither answer nor call
  };
  void on_choice(const Ended& ended);
  struct Served {
    RequestTimes times;
    int64_t num_prompt_tokens = 0, num_output_tokens = 0, max_tokens = 0, num_choices = 1;
    int64_t longest_output = 0;  // of a choice
  };
  void on_request(const Served& served);
  void on_rejection(std::string_view reason);  // overloaded, draining, key_limit
  void on_http(const std::string& handler, std::string_view method, int status, double seconds,
               size_t request_bytes, size_t response_bytes);
  void on_slow_reader() { slow_readers_->Increment(); }
  void on_unread_answer() { unread_answers_->Increment(); }
  void on_start(double engine_s, double total_s);  // what opening it took, and all of it

  // As GET /metrics answers. `open_metrics`: in that format, as its scrapers ask for.
  //   oldest_waiting_s  how long a request has waited that the engine has not taken up; 0: none
  std::string text(const Engine& engine, double oldest_waiting_s, bool open_metrics);

  // Of the last requests that were served.
  struct Recent {
    std::deque<double> ttft_s, itl_s, e2e_s;
  };
  const Recent& recent() const { return recent_; }

 private:
  using Labels = std::map<std::string, std::string>;

  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }
  Labels with_common(Labels labels) const;
  prometheus::Counter& counter(const std::string& name, const std::string& help,
                               Labels labels = {});
  prometheus::Gauge& gauge(const std::string& name, const std::string& help, Labels labels = {});
  prometheus::Histogram& histogram(const std::string& name, const std::string& help,
                                   const std::vector<double>& buckets, Labels labels = {});
  void set(const SchedulerStats& stats, const EngineCounters& counters, const EngineInfo& info);
  void set_process();
  void add_http_series();
  void add_series_of_parts_to_come();

  const std::string prefix_;
  const Labels common_;
  prometheus::Registry registry_;

  // As the engine says when it is asked.
  prometheus::Gauge *running_, *waiting_, *waiting_for_room_, *kv_usage_, *paused_, *blocks_used_,
      *in_place_, *oldest_waiting_, *start_engine_, *start_total_, *expert_cache_;
  prometheus::Counter *preemptions_, *computed_tokens_, *steps_, *prefill_rows_, *decode_rows_,
      *recomputed_rows_, *step_seconds_, *region_seconds_, *plan_seconds_, *run_seconds_,
      *commit_seconds_, *engram_reads_, *engram_bytes_, *expert_hits_, *expert_misses_,
      *expert_bytes_, *expert_wait_;
  // As they happen.
  prometheus::Counter *prompt_tokens_, *generation_tokens_, *slow_readers_, *empty_answers_,
      *unread_answers_;
  std::map<std::string, prometheus::Counter*, std::less<>> finished_, rejections_;
  std::map<std::pair<bool, bool>, prometheus::Counter*> tool_calls_;  // streamed, with calls
  prometheus::Histogram *ttft_, *itl_, *time_per_token_, *e2e_, *queue_, *prefill_, *decode_,
      *inference_, *num_prompt_, *num_generated_, *longest_generated_, *max_tokens_, *num_choices_,
      *num_computed_, *step_rows_;
  EngineCounters observed_;  // what of them step_rows_ has
  prometheus::Gauge *cache_config_ = nullptr, *resident_bytes_, *virtual_bytes_, *open_fds_;
  prometheus::Counter* cpu_seconds_;
  prometheus::Family<prometheus::Counter>* http_requests_;
  prometheus::Family<prometheus::Histogram>*http_seconds_, *http_request_bytes_,
      *http_response_bytes_;
  Recent recent_;
};

}  // namespace millrace
