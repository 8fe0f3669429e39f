#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/expert_source.h"
#include "checkpoint/open_progress.h"
#include "engine/completion.h"
#include "engine/load_options.h"
#include "engine/request_stream.h"
#include "engine/watchdog.h"
#include "request/request.h"
#include "scheduler/stats.h"

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
  // Tokens, rounded up to whole compressed rows; none: kDefaultBlockSize.
  std::optional<int64_t> block_size;
  std::optional<int64_t> num_blocks;      // of the cache, whatever the bytes; none: what fits
  // What has been computed is found again by requests that begin alike (docs/prefix-cache.md).
  bool prefix_caching = false;
  std::optional<int64_t> max_num_snapshots;  // none: MemoryWish
  // Layers leave out the rows of a prompt that nothing depends on. The answers are the same.
  bool exact_replay = true;

  // Answers come from this file (docs/scripted-engine.md) instead of from a model: of the directory
  // only config.json is read. Empty: they come from the model.
  std::string script_file;
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
  std::vector<uint8_t> is_added;        // stands for itself in a text, as </think> does
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
  std::string expert_reads = "mapped";  // or by what they are read into a cache: io_uring, pread
  int64_t max_num_seqs = 0;
  double open_s = 0;  // that opening it has taken
  int64_t engram_reads_per_row = 0;  // of the Engram tables' rows, for each row of a step
  int64_t engram_bytes_per_row = 0;
};

// Sizes by which steps are counted.
inline constexpr std::array<int64_t, 13> kStepRows{1,   8,   16,   32,   64,   128,  256,
                                                   512, 1024, 2048, 4096, 8192, 16384};

// What steps with rows have cost the engine's thread since the start.
struct EngineCounters {
  int64_t num_steps = 0;
  int64_t num_rows = 0;
  // The steps of at most kStepRows[i] rows that are in none before; the last: of more rows.
  std::array<int64_t, kStepRows.size() + 1> num_steps_by_rows{};
  int64_t step_ns = 0;     // from taking requests in to handing events out
  int64_t region_ns = 0;   // of that, in regions of the thread pool: all threads work
  int64_t plan_ns = 0;     // of the rest: taking requests in, and planning
  int64_t commit_ns = 0;   // of the rest: results, events and what readers are told
  ExpertReads expert_reads;
  // The engine's thread works and the others wait.
  int64_t outside_ns() const { return step_ns - region_ns; }
};

// How many tokens each routed expert has been given since the start.
struct ExpertLoad {
  int64_t num_layers = 0, num_experts = 0;  // 0: no experts run here
  std::vector<int64_t> num_tokens;          // [num_layers, num_experts]
};

// What answers requests: a model (engine/model_engine.h), or a script (engine/scripted_engine.h).
//
// Threading: any thread may call everything. Streams must be gone before it is.
class Engine {
 public:
  // Sees every step of a request in order, on the caller's thread; false ends it with kAbort and
  // is the last call.
  using EventSink = std::function<bool(const StreamEvent&)>;

  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, TokenTable tokens,
                                              const OpenProgress& progress = {});
  virtual ~Engine() = default;  // ends what is running
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Begins to answer. What comes out is a function of the request alone. Refuses at once a request
  // that makes no sense or does not fit (kInvalidArgument), or that would be one too many
  // (kExhausted). Requires of a request with temperature: a seed.
  //   on_event  called by the engine's thread when there is something to read; must not block
  virtual Result<std::unique_ptr<RequestStream>> submit(Request request,
                                                        std::function<void()> on_event = {}) = 0;

  // Answers a request of one choice while the caller waits. Errors: of submit(), and that of
  // kError.
  Result<Completion> generate(const Request& request, const EventSink& on_event = {});

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_model_len() const = 0;
  virtual const EngineInfo& info() const = 0;
  virtual EngineHealth health() const = 0;
  virtual SchedulerStats stats() const = 0;     // as of the last step
  virtual EngineCounters counters() const = 0;  // as of the last step
  virtual ExpertLoad expert_load() const = 0;   // up to the layer that runs

 protected:
  Engine() = default;
};

}  // namespace millrace
