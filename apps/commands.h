#pragma once

// The commands of the program: what each is told (filled from flags in millrace.cc, which alone
// knows the flags), and the functions that carry them out. Each returns the exit status.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "loadgen/http_target.h"
#include "loadgen/workload.h"
#include "request/sampling_params.h"
#include "server/options.h"
#include "synth/synth.h"

namespace millrace {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;  // the world was difficult: a file, a model, a request
inline constexpr int kExitUsage = 2;  // the command line makes no sense
inline constexpr int kExitInterrupted = 130;  // Ctrl-C, as a shell reports it

struct ModelFlags {
  std::string model_dir;  // empty: the one that comes with the program
  std::string numerics = "reference";
  int num_threads = 0;
  std::string isa;
  int64_t chunk = 256;
  std::optional<int64_t> expert_cache_bytes;  // 0: mapped; none: mapped if they fit
  std::optional<int64_t> max_model_len;  // none: what fits
  std::string record_file;  // empty: the run is not recorded
  std::string script_file;  // answers come from there; empty: from the model
};

// Of an engine that answers many at once; as in engine/engine.h.
struct EngineFlags {
  int64_t max_num_seqs = 256, max_num_batched_tokens = 2048, max_waiting = 1024;
  double max_step_ms = 250;
  std::optional<int64_t> kv_bytes;
};

// What a flag leaves out comes from the chat request, then from the model's generation_config.json.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<int64_t> top_k;
  std::vector<std::string> logit_bias;  // ID=BIAS
  std::string allowed_token_ids, stop_token_ids;
  std::vector<std::string> bad_words;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool include_stop = false;
  bool ignore_eos = false;
  bool keep_special = false;
  std::optional<int64_t> min_tokens, max_tokens, logprobs, prompt_logprobs;
};

struct ThinkingFlags {
  bool no_think = false;
  std::string effort;  // empty: the request's, or the default
};

struct ChatOptions {
  ModelFlags model;
  SamplingFlags sampling;
  ThinkingFlags thinking;
  std::string system;
  std::string tools_file;
  bool fold = false;   // show that the model thinks, not what
  bool stats = false;
};
int run_chat(const ChatOptions& options);

struct GenerateOptions {
  ModelFlags model;
  SamplingFlags sampling;
  ThinkingFlags thinking;
  std::optional<std::string> prompt;
  std::string file, chat_file, token_ids;
  bool no_special = false;  // the prompt's text stands for itself
  bool no_bos = false;
  std::optional<int64_t> num_choices;
  bool json = false;
  bool stats = false;
};
int run_generate(const GenerateOptions& options);

struct ReplayOptions {
  std::string file;
  std::string model_dir;  // empty: the one that comes with the program
  int num_threads = 0;
  std::string isa;
  bool plans_only = false;
};
int run_replay(const ReplayOptions& options);

struct BatchCommandOptions {
  ModelFlags model;
  EngineFlags engine;
  std::string input, output;
  bool overwrite = false;  // an output that is there, instead of going on behind it
  uint64_t seed = 0;
  std::string served_model_name;
  int64_t max_logprobs = 20;
};
int run_batch(const BatchCommandOptions& options);

struct ServeCommandOptions {
  ModelFlags model;
  EngineFlags engine;
  ServerOptions server;
  std::vector<std::string> api_keys;  // beside those of the file and the environment
  std::string api_key_file, admin_key;
  std::string certificate_file, key_file, ca_file, ciphers;
  bool requires_client_certificate = false;
  std::vector<std::string> config_files;  // that flags came from
};
int run_serve(const ServeCommandOptions& options);

struct BenchCommandOptions {
  ModelFlags model;  // in process
  EngineFlags engine;
  bool in_process = false;
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;  // empty: that of the environment
  std::string model_name, tokenizer_dir;  // empty: what the server says
  double ready_timeout_s = 60;

  bool is_open_loop = false;
  int64_t num_requests = 100, concurrency = 8;
  std::optional<double> duration_s;
  RequestMix mix;  // its seed, too
  std::string lengths_file;
  RequestRate rate;
  double burstiness = 1;
  std::optional<int64_t> max_concurrency, num_warmup;
  std::string corpus_file;
  bool random_tokens = false;

  RequestFields fields;
  std::string extra_body;  // JSON
  std::string summary_file, requests_file;
  bool json = false, quiet = false;
  std::optional<int64_t> num_gpus;
  double min_duration_s = 0;
};
int run_bench(const BenchCommandOptions& options);

struct EvalCommandOptions {
  ModelFlags model;  // but for its numerics
  std::vector<std::string> numerics{"reference"};
  std::vector<std::string> tasks;  // empty: nll if there is a file, needle and copy
  uint64_t seed = 0;
  std::string file;
  bool special = false;         // control tokens spelled in the file
  std::optional<int64_t> limit;  // tokens of the file
  int64_t window = 1024;
  std::optional<int64_t> stride;  // none: half a window
  std::vector<std::string> forms{"chat"};
  int64_t num_cases = 4;  // of each length and depth
  std::vector<int64_t> lengths{256, 1024}, depths{0, 25, 50, 75, 100};
  std::vector<int64_t> copy_lengths{4, 16, 64};
  std::string summary_file, cases_file;
  bool json = false;
};
int run_eval(const EvalCommandOptions& options);

struct ForwardCommandOptions {
  ModelFlags model;
  std::string token_ids;
  std::string logits_file, trace_file, draft_file;
};
int run_forward(const ForwardCommandOptions& options);

struct InspectOptions {
  std::string path;  // a model directory or a config.json; empty: the default model
  bool machine = false;  // this computer too; alone if there is no path
  std::optional<int64_t> kv_bytes;
  bool json = false;
};
int run_inspect(const InspectOptions& options);

struct SynthCommandOptions {
  std::string folder;
  std::string shape = "mini";
  std::string config_file;  // instead of a shape
  SizeChanges sizes;
  SynthOptions write;
};
int run_synth(const SynthCommandOptions& options);

struct TokenizeOptions {
  std::string model_dir;
  std::optional<std::string> text;
  std::string file;
  bool special = false;
  bool json = false;
};
int run_tokenize(const TokenizeOptions& options);

struct DetokenizeOptions {
  std::string model_dir;
  std::vector<std::string> token_ids;
  bool json = false;
};
int run_detokenize(const DetokenizeOptions& options);

// One line of JSON in, one out (chat/json_lines.h). An error when a line is no JSON.
int run_chat_encode(const std::string& file);
int run_chat_parse(const std::string& file);

std::string version_text();

}  // namespace millrace
