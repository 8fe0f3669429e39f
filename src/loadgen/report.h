#pragma once

// What is written about a run: for people, and for programs. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loadgen/metrics.h"
#include "loadgen/runner.h"

namespace millrace {

// What a server of this program says about itself, as of one moment (GET /v1/millrace/stats), or an
// engine in this process.
struct ServerCounters {
  std::string version, numerics_id, isa;
  int64_t num_threads = 0;
  double uptime_s = 0;
  int64_t num_steps = 0, output_tokens = 0, prompt_tokens = 0;
  int64_t step_ns = 0, region_ns = 0;
  int64_t engine_cpu_ns = 0, network_cpu_ns = 0, process_cpu_ns = 0;
};

// The setup, beside what was measured.
struct RunSetup {
  std::string version;     // of this program
  std::string start_time;  // ISO 8601, UTC
  std::string command_line;
  std::string target;  // a URL, or "in process"
  std::string model;
  std::string endpoint;               // "completions", "chat"
  std::string workload;               // "fixed", "open"
  std::string load;                   // in words: "closed loop, 8 at a time"
  std::string lengths;                // in words
  std::string prompts;                // "token ids", "text"
  std::string corpus, corpus_sha256;  // empty: none
  std::string tokenizer;              // its directory; empty: none
  std::string host;                   // this machine's processor, and how many cores
  uint64_t seed = 0;
  int64_t num_warmup = 0;
  std::optional<int64_t> num_gpus;
  std::optional<ServerCounters> before, after;  // the run
};

std::string report_text(const RunSetup& setup, const RunOutcome& run, const RunMetrics& metrics,
                        const std::vector<std::string>& invalid);

// One object; units are in the names.
std::string report_json(const RunSetup& setup, const RunOutcome& run, const RunMetrics& metrics,
                        const std::vector<std::string>& invalid);

// A line of JSON for each request, times in nanoseconds from the start of the run; those of the
// events each as the difference from the one before.
std::string requests_jsonl(const std::vector<RequestRecord>& records);

}  // namespace millrace
