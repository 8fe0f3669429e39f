// Where a step of the model goes, as JSON lines: every operation of every layer, with what the
// products do against what this machine can (measured in the same run), and what follows from it
// for the whole release: a prediction. Medians of several steps, and the best tenth.
// A step is some sequences with as many rows each: one row is a decode step, many are a prompt.
//
// The model is a slice of the release, made by `millrace synth`. With one layer of each kind,
//   millrace synth kinds --shape v4.1 --layer-ids 0,1,2,3,14,20,21,24 --experts 16
//     --engram-rows 100000 --draft 0 --no-vision
// the release's 40 layers are predicted. docs/performance.md says how, and what was measured.
//
// usage: bench-step MODEL_DIR [--threads T] [--runs R] [--depth TOKENS[,TOKENS...]]
//                   [--history-mb MB] [SEQUENCESxROWS ...]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/distribution.h"
#include "base/format.h"
#include "bench/expert_times.h"
#include "bench/limits.h"
#include "bench/sequences.h"
#include "bench/step_model.h"
#include "bench/timed_kernels.h"
#include "engine/loaded_model.h"
#include "llm/llm.h"
#include "model_config/config_json.h"
#include "synth/shapes.h"
#include "sys/fp_environment.h"
#include "tokenizer/token_map.h"

namespace millrace {
namespace {

constexpr size_t kLimitBytes = size_t{256} << 20;
constexpr const char* kReleaseShape = "v4.1";

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "bench-step: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T take(Result<T> result) {
  if (!result.has_value()) stop(result.error().message);
  return std::move(result.value());
}

struct StepCase {
  int64_t sequences = 1, rows = 1;  // of each
  int64_t num_rows() const { return sequences * rows; }
};

struct Options {
  std::string model_dir;
  int threads = 0;  // 0: one for each core
  int64_t runs = 5;
  int64_t history_mb = 4096;  // of state, which sequences may have to share
  std::vector<int64_t> depths;
  std::vector<StepCase> cases;
};

// Of the tries.
struct Tries {
  double median = 0, p10 = 0;
};

Tries tries_of(std::vector<double> values) {
  const double median = distribution(values).p50;
  for (double& v : values) v = -v;
  return {median, -distribution(std::move(values)).p90};
}

struct Limits {
  double read_gbps, fma_gflops;

  double read_ns(double bytes) const { return bytes / read_gbps; }
  double fma_ns(double flops) const { return flops / fma_gflops; }
  double least_ns(double bytes, double flops) const {
    return std::max(read_ns(bytes), fma_ns(flops));
  }
  const char* binding(double bytes, double flops) const {
    return read_ns(bytes) > fma_ns(flops) ? "read" : "fma";
  }
};

std::vector<NamedWeight> named_weights(const ModelWeights& weights) {
  std::vector<NamedWeight> named;
  const auto fp8 = [&](const Fp8Matrix& w, const char* name) {
    named.push_back({w.codes, size_t(w.n * w.k), name});
  };
  const auto bf16 = [&](const Bf16Matrix& w, const char* name) {
    named.push_back({w.data, size_t(w.n * w.k) * sizeof(*w.data), name});
  };
  for (const BlockWeights& block : weights.layers) {
    const AttentionWeights& attention = block.attention;
    fp8(attention.wq_a, "attn.wq_a");
    fp8(attention.wq_b, "attn.wq_b");
    fp8(attention.wkv, "attn.wkv");
    fp8(attention.wo_a, "attn.wo_a");
    fp8(attention.wo_b, "attn.wo_b");
    if (attention.compressor) {
      bf16(attention.compressor->wkv, "compressor");
      if (attention.compressor->wgate) bf16(*attention.compressor->wgate, "compressor");
      bf16(attention.compressor->index_wk, "indexer.wk");
    }
    if (attention.indexer) {
      fp8(attention.indexer->wq_b, "indexer.wq_b");
      bf16(attention.indexer->weights_proj, "indexer.weights_proj");
    }
    bf16(block.moe.gate, "ffn.gate");
    for (const Fp8Matrix* w :
         {&block.moe.shared_w1, &block.moe.shared_w2, &block.moe.shared_w3}) {
      fp8(*w, "ffn.shared_experts");
    }
    if (block.engram) fp8(block.engram->wkv, "engram.wkv");
  }
  bf16(weights.head, "head");
  return named;
}

// Cuts the times of operations into layers, with the head as a part of its own.
class LayerTimes : public LayerMonitor {
 public:
  struct Part {
    std::string name, kind;
    std::vector<OperationTime> operations;
  };

  explicit LayerTimes(const std::vector<LayerInfo>& layers) : layers_(layers) {}

  bool before_layer(int64_t layer) override {
    end_part();
    parts_.push_back({format("layer ", layer), layer_kind(layers_[size_t(layer)]), {}});
    return true;
  }
  void begin() {
    (void)take_operation_times();
    parts_.clear();
    parts_.push_back({"embedding", "embedding", {}});
  }
  // Of the step. What comes behind the last layer belongs to it, but for the product of the head.
  std::vector<Part> end() {
    end_part();
    std::vector<OperationTime>& last = parts_.back().operations;
    const auto head = std::ranges::find(last, "head", &OperationTime::weight);
    MR_CHECK(head != last.end());
    const OperationTime product = *head;
    last.erase(head);
    parts_.push_back({"head", "head", {product}});
    return std::move(parts_);
  }

 private:
  void end_part() { parts_.back().operations = take_operation_times(); }

  const std::vector<LayerInfo>& layers_;
  std::vector<Part> parts_;
};

// One part of the step in every run.
struct PartRuns {
  std::string name, kind;
  std::vector<OperationTime> operations;               // of the first run
  std::map<std::string, std::vector<double>> ns;       // of each, by its name
  std::vector<double> total_ns, products_ns;
  std::array<std::vector<double>, kNumStepParts> split_ns;
  // The same without what depends on the number of experts.
  std::array<std::vector<double>, kNumStepParts> kept_ns;

  void add(const std::vector<OperationTime>& run) {
    StepTime split, kept;
    double total = 0, products = 0;
    for (const OperationTime& time : run) {
      const double own = double(time.ns), after = double(time.after_ns);
      const StepPart part = part_of(time.kernel, time.weight);
      // The selection of rows is no kernel: it is what follows their scores.
      const StepPart after_part = kind == "embedding"             ? StepPart::kEmbedding
                                  : kind == "head"                ? StepPart::kHead
                                  : time.kernel == "index_scores" ? StepPart::kIndexing
                                                                  : StepPart::kRest;
      ns[time.name()].push_back(own);
      if (time.is_product()) products += own;
      split.of(part) += own;
      if (!depends_on_expert_count(time.kernel, time.weight)) kept.of(part) += own;
      for (StepTime* t : {&split, &kept}) t->of(after_part) += after;
      total += own + after;
    }
    total_ns.push_back(total);
    products_ns.push_back(products);
    for (size_t i = 0; i < split.ns.size(); ++i) {
      split_ns[i].push_back(split.ns[i]);
      kept_ns[i].push_back(kept.ns[i]);
    }
  }
};

// Medians of each part of the split, or the best tenths.
StepTime step_time(const std::array<std::vector<double>, kNumStepParts>& split,
                   double Tries::* which) {
  StepTime time;
  for (size_t i = 0; i < split.size(); ++i) time.ns[i] = tries_of(split[i]).*which;
  return time;
}

std::string case_json(const StepCase& c, int64_t depth) {
  return format("\"sequences\": ", c.sequences, ", \"rows\": ", c.rows, ", \"depth\": ", depth);
}

std::string split_json(const StepTime& time) {
  std::string json = "{";
  for (size_t i = 0; i < time.ns.size(); ++i) {
    char number[32];
    std::snprintf(number, sizeof number, "%.3f", time.ns[i] / 1e6);
    json += format(i == 0 ? "" : ", ", "\"", step_part_name(StepPart(i)), "\": ", number);
  }
  return json + "}";
}

class StepBench {
 public:
  StepBench(LoadedModel& model, const Options& options)
      : model_(model),
        options_(options),
        memory_(kLimitBytes, std::byte{1}),
        release_(named_shape(kReleaseShape)) {
    // A slice may differ from the release in these sizes; else its layers are not the release's.
    ModelConfig wanted = release_;
    wanted.num_nextn_predict_layers = 0;
    wanted.compress_ratios.resize(size_t(wanted.num_hidden_layers));
    wanted.vision_config.reset();
    ModelConfig same = model.config();
    same.num_hidden_layers = wanted.num_hidden_layers;
    same.compress_ratios = wanted.compress_ratios;
    same.kv_source_layer_ids = wanted.kv_source_layer_ids;
    same.index_source_layer_ids = wanted.index_source_layer_ids;
    same.candidate_source_layer_id = wanted.candidate_source_layer_id;
    same.engram_layer_ids = wanted.engram_layer_ids;
    same.engram_num_embeddings = wanted.engram_num_embeddings;
    same.engram_vocab_size = wanted.engram_vocab_size;
    same.n_routed_experts = wanted.n_routed_experts;
    same.num_nextn_predict_layers = 0;
    same.vision_config.reset();
    has_widths_of_release_ = config_json(same) == config_json(wanted);
  }

  void run() {
    measure_expert_products();
    for (const int64_t depth : options_.depths) {
      for (const StepCase& c : options_.cases) run_case(c, depth);
    }
    for (size_t i = 0; i + 1 < predictions_.size(); ++i) {
      // The next depth of the same case.
      const auto next = std::find_if(
          predictions_.begin() + int64_t(i) + 1, predictions_.end(),
          [&](const Prediction& p) { return p.number == predictions_[i].number; });
      if (next != predictions_.end()) print_growth(predictions_[i], *next);
    }
  }

 private:
  struct Prediction {
    size_t number;  // of the case
    StepCase step;
    int64_t depth;
    StepTime time, p10;
  };

  Limits measure_limits() {
    const Limits limits{measure_read(model_.pool(), memory_), measure_fma(model_.pool())};
    std::printf("{\"bench\": \"limits\", \"threads\": %d, \"read_gbps\": %.1f, "
                "\"fma_gflops\": %.1f}\n",
                model_.pool().num_threads(), limits.read_gbps, limits.fma_gflops);
    return limits;
  }

  void measure_expert_products();
  void run_case(const StepCase& c, int64_t depth);
  std::vector<PartRuns> measure(const StepCase& c, int64_t depth);
  void print_part(const StepCase& c, int64_t depth, const PartRuns& part, const Limits& limits);
  void print_step(const StepCase& c, int64_t depth, const std::vector<PartRuns>& parts,
                  const Limits& limits);
  void predict(const StepCase& c, int64_t depth, const std::vector<PartRuns>& parts,
               const Limits& limits);
  void print_growth(const Prediction& from, const Prediction& to);

  LoadedModel& model_;
  const Options& options_;
  const std::vector<std::byte> memory_;
  const ModelConfig release_;
  bool has_widths_of_release_ = false;
  std::vector<ExpertTries> experts_;
  std::vector<Prediction> predictions_;
};

void StepBench::measure_expert_products() {
  const ModelConfig& config = model_.config();
  int64_t most = 2;
  for (const StepCase& c : options_.cases) {
    most = std::max(most, c.num_rows() * config.num_experts_per_tok / config.n_routed_experts);
  }
  const Limits limits = measure_limits();
  experts_ = take(measure_experts(model_, most, options_.runs));
  const double weights = 3.0 * double(config.hidden_size * config.moe_intermediate_size);
  const double bytes = weights * (0.5 + 1.0 / 32);
  for (const ExpertTries& measured : experts_) {
    const double flops = 2 * weights * double(measured.rows);
    const Tries ns = tries_of(measured.ns);
    std::printf("{\"bench\": \"expert\", \"rows\": %lld, \"experts\": %lld, \"ms\": %.4f, "
                "\"p10_ms\": %.4f, \"gbps\": %.2f, \"gflops\": %.1f, \"of_read\": %.3f, "
                "\"of_fma\": %.3f, \"limit\": \"%s\", \"of_limit\": %.3f}\n",
                (long long)measured.rows, (long long)measured.num_experts, ns.median / 1e6,
                ns.p10 / 1e6, bytes / ns.median, flops / ns.median,
                limits.read_ns(bytes) / ns.median, limits.fma_ns(flops) / ns.median,
                limits.binding(bytes, flops), limits.least_ns(bytes, flops) / ns.median);
  }
  std::fflush(stdout);
}

std::vector<PartRuns> StepBench::measure(const StepCase& c, int64_t depth) {
  Sequences sequences = take(Sequences::create(
      model_.config(), kv_format_of(model_.model().numerics), c.sequences, depth,
      (options_.runs + 1) * c.rows, options_.history_mb << 20));
  std::printf("{\"bench\": \"state\", %s, \"histories\": %lld, \"resident_mb\": %.0f}\n",
              case_json(c, depth).c_str(), (long long)sequences.num_histories(),
              double(sequences.store().resident_bytes()) / 1e6);
  Runner runner = model_.make_runner(
      sequences.store(), timed_kernels(model_.kernels(), named_weights(model_.model().weights)));
  std::vector<float> logits;
  LayerTimes times(model_.model().layers);
  ForwardOptions forward;
  forward.monitor = &times;
  std::vector<PartRuns> parts;
  for (int64_t i = -1; i < options_.runs; ++i) {  // one to warm up
    const std::vector<BatchSegment> segments = sequences.grow(c.rows);
    times.begin();
    const Status status = runner.forward(segments, forward, logits);
    if (!status.ok()) stop(status.error().message);
    const std::vector<LayerTimes::Part> run = times.end();
    if (i < 0) continue;
    parts.resize(run.size());
    for (size_t p = 0; p < run.size(); ++p) {
      if (i == 0) parts[p].name = run[p].name, parts[p].kind = run[p].kind;
      if (i == 0) parts[p].operations = run[p].operations;
      parts[p].add(run[p].operations);
    }
  }
  return parts;
}

void StepBench::print_part(const StepCase& c, int64_t depth, const PartRuns& part,
                           const Limits& limits) {
  const Tries total = tries_of(part.total_ns);
  const double products_ns = tries_of(part.products_ns).median;
  double flops = 0, bytes = 0;
  for (const OperationTime& time : part.operations) {
    const double ns = tries_of(part.ns.at(time.name())).median;
    std::printf("{\"bench\": \"step\", %s, \"part\": \"%s\", \"operation\": \"%s\", "
                "\"calls\": %lld, \"ms\": %.4f, \"share\": %.3f",
                case_json(c, depth).c_str(), part.name.c_str(), time.name().c_str(),
                (long long)time.num_calls, ns / 1e6, ns / total.median);
    if (time.is_product()) {
      flops += time.flops;
      bytes += time.bytes;
      std::printf(", \"gbps\": %.2f, \"gflops\": %.1f, \"limit\": \"%s\", \"of_limit\": %.3f",
                  time.bytes / ns, time.flops / ns, limits.binding(time.bytes, time.flops),
                  limits.least_ns(time.bytes, time.flops) / ns);
    }
    std::printf("}\n");
  }
  std::printf("{\"bench\": \"step\", %s, \"part\": \"%s\", \"kind\": \"%s\", "
              "\"operation\": \"all\", \"ms\": %.4f, \"p10_ms\": %.4f, \"products\": %.3f, "
              "\"gflops\": %.1f, \"of_fma\": %.3f, \"limit\": \"%s\", \"of_limit\": %.3f, "
              "\"split_ms\": %s}\n",
              case_json(c, depth).c_str(), part.name.c_str(), part.kind.c_str(),
              total.median / 1e6, total.p10 / 1e6, products_ns / total.median,
              flops / total.median, limits.fma_ns(flops) / total.median,
              limits.binding(bytes, flops), limits.least_ns(bytes, flops) / total.median,
              split_json(step_time(part.split_ns, &Tries::median)).c_str());
}

void StepBench::print_step(const StepCase& c, int64_t depth, const std::vector<PartRuns>& parts,
                           const Limits& limits) {
  std::vector<double> total_ns(size_t(options_.runs), 0.0);
  StepTime split;
  double flops = 0, bytes = 0;
  for (const PartRuns& part : parts) {
    for (size_t i = 0; i < total_ns.size(); ++i) total_ns[i] += part.total_ns[i];
    split.add(step_time(part.split_ns, &Tries::median));
    for (const OperationTime& time : part.operations) {
      flops += time.flops;
      bytes += time.bytes;
    }
  }
  const Tries total = tries_of(total_ns);
  std::printf("{\"bench\": \"step\", %s, \"part\": \"step\", \"operation\": \"all\", \"ms\": %.4f, "
              "\"p10_ms\": %.4f, \"rows_per_s\": %.2f, \"gflops\": %.1f, \"of_fma\": %.3f, "
              "\"limit\": \"%s\", \"of_limit\": %.3f, \"split_ms\": %s}\n",
              case_json(c, depth).c_str(), total.median / 1e6, total.p10 / 1e6,
              double(c.num_rows()) / total.median * 1e9, flops / total.median,
              limits.fma_ns(flops) / total.median, limits.binding(bytes, flops),
              limits.least_ns(bytes, flops) / total.median, split_json(split).c_str());
  std::fflush(stdout);
}

void StepBench::predict(const StepCase& c, int64_t depth, const std::vector<PartRuns>& parts,
                        const Limits& limits) {
  const auto measured_as = [&](double Tries::* which) {
    MeasuredStep measured;
    measured.num_rows = c.num_rows();
    std::map<std::string, double> layers_of_kind;
    for (const PartRuns& part : parts) ++layers_of_kind[part.kind];
    for (const PartRuns& part : parts) {
      const StepTime kept = step_time(part.kept_ns, which);
      if (part.kind == "embedding") measured.embedding_ns = kept.total_ns();
      else if (part.kind == "head") measured.head_ns = kept.total_ns();
      else measured.layers[part.kind].add(kept, 1 / layers_of_kind[part.kind]);
    }
    for (const ExpertTries& expert : experts_) {
      measured.experts.push_back({expert.rows, tries_of(expert.ns).*which});
    }
    return measured;
  };
  const MeasuredStep median = measured_as(&Tries::median), p10 = measured_as(&Tries::p10);
  // The slice itself as well: how far the composition is from what was measured.
  for (const ModelConfig* config : {&model_.config(), &release_}) {
    const bool is_release = config == &release_;
    if (is_release && !has_widths_of_release_) {
      std::fprintf(stderr, "bench-step: no prediction: the widths are not those of the release\n");
      return;
    }
    const std::vector<LayerInfo> layers = layer_map(*config);
    const Tries router = tries_of(
        measure_router(model_, config->n_routed_experts, c.num_rows(), options_.runs));
    const auto predicted = [&](const MeasuredStep& measured, double router_ns) {
      return predict_step(measured, {.layers = layers,
                                     .num_experts = config->n_routed_experts,
                                     .experts_per_token = config->num_experts_per_tok,
                                     .router_ns = router_ns});
    };
    const Result<StepTime> step = predicted(median, router.median);
    if (!step.has_value()) {
      std::fprintf(stderr, "bench-step: no prediction: %s\n", step.error().message.c_str());
      return;
    }
    const double ns = step.value().total_ns();
    const StepTime p10_step = predicted(p10, router.p10).value();
    const StepWork work = step_work(*config, c.sequences, c.rows, depth);
    std::printf("{\"bench\": \"prediction\", \"note\": \"composed of measured layers, not "
                "measured\", \"of\": \"%s\", \"layers\": %lld, \"experts\": %lld, %s, "
                "\"ms\": %.3f, \"p10_ms\": %.3f, \"tokens_per_s\": %.3f, \"gbytes\": %.3f, "
                "\"gflop\": %.3f, \"read_ms\": %.3f, \"fma_ms\": %.3f, \"limit\": \"%s\", "
                "\"of_limit\": %.3f, ",
                is_release ? "release" : "slice", (long long)config->num_hidden_layers,
                (long long)config->n_routed_experts, case_json(c, depth).c_str(), ns / 1e6,
                p10_step.total_ns() / 1e6, double(c.num_rows()) / ns * 1e9, work.bytes / 1e9,
                work.flops / 1e9,
                limits.read_ns(work.bytes) / 1e6, limits.fma_ns(work.flops) / 1e6,
                limits.binding(work.bytes, work.flops),
                limits.least_ns(work.bytes, work.flops) / ns);
    if (is_release) {
      predictions_.push_back({size_t(&c - options_.cases.data()), c, depth, step.value(),
                              p10_step});
    } else {
      std::vector<double> total_ns(size_t(options_.runs), 0.0);
      for (const PartRuns& part : parts) {
        for (size_t i = 0; i < total_ns.size(); ++i) total_ns[i] += part.total_ns[i];
      }
      const double measured_ns = tries_of(std::move(total_ns)).median;
      std::printf("\"measured_ms\": %.3f, \"of_measured\": %.3f, ", measured_ns / 1e6,
                  ns / measured_ns);
    }
    std::printf("\"split_ms\": %s}\n", split_json(step.value()).c_str());
  }
  std::fflush(stdout);
}

void StepBench::run_case(const StepCase& c, int64_t depth) {
  const Limits limits = measure_limits();
  const std::vector<PartRuns> parts = measure(c, depth);
  for (const PartRuns& part : parts) print_part(c, depth, part, limits);
  print_step(c, depth, parts, limits);
  predict(c, depth, parts, limits);
}

void StepBench::print_growth(const Prediction& from, const Prediction& to) {
  StepTime added = to.time;
  added.add(from.time, -1);
  std::printf("{\"bench\": \"depth\", \"note\": \"of predictions\", \"sequences\": %lld, "
              "\"rows\": %lld, \"from\": %lld, \"to\": %lld, \"from_ms\": %.3f, \"to_ms\": %.3f, "
              "\"adds\": %.4f, \"p10_adds\": %.4f, \"added_ms\": %s}\n",
              (long long)from.step.sequences, (long long)from.step.rows, (long long)from.depth,
              (long long)to.depth, from.time.total_ns() / 1e6, to.time.total_ns() / 1e6,
              added.total_ns() / from.time.total_ns(),
              to.p10.total_ns() / from.p10.total_ns() - 1, split_json(added).c_str());
}

int run(const Options& options) {
  LoadOptions load;
  load.model_dir = options.model_dir;
  load.num_threads = options.threads;
  load.expert_cache_bytes = 0;  // what is measured is memory, not a disk
  const Tokenizer tokenizer = take(open_tokenizer(options.model_dir));
  const std::unique_ptr<LoadedModel> model =
      take(LoadedModel::open(load, make_token_map(tokenizer).compressed_ids));
  const ScopedFpEnvironment fp_environment;
  StepBench(*model, options).run();
  return 0;
}

constexpr const char* kUsage =
    "usage: bench-step MODEL_DIR [--threads T] [--runs R] [--depth TOKENS[,TOKENS...]] "
    "[--history-mb MB] [SEQUENCESxROWS ...]";

std::vector<int64_t> parse_depths(const std::string& list) {
  std::vector<int64_t> depths;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    char* stopped = nullptr;
    depths.push_back(std::strtoll(list.c_str() + at, &stopped, 10));
    if (stopped != list.c_str() + end || end == at || depths.back() < 0) stop(kUsage);
    at = end + 1;
  }
  return depths;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--")) {
      if (++i == argc) stop(kUsage);
      const int64_t value = std::atoll(argv[i]);
      if (argument == "--threads") options.threads = int(value);
      else if (argument == "--runs") options.runs = std::max<int64_t>(value, 1);
      else if (argument == "--history-mb") options.history_mb = std::max<int64_t>(value, 1);
      else if (argument == "--depth") options.depths = parse_depths(argv[i]);
      else stop(kUsage);
    } else if (options.model_dir.empty()) {
      options.model_dir = argument;
    } else {
      StepCase c;
      char x = 0;
      if (std::sscanf(argument.c_str(), "%ld%c%ld", &c.sequences, &x, &c.rows) != 3 || x != 'x' ||
          c.sequences < 1 || c.rows < 1) {
        stop(kUsage);
      }
      options.cases.push_back(c);
    }
  }
  if (options.model_dir.empty()) stop(kUsage);
  if (options.cases.empty()) options.cases = {{1, 1}, {4, 1}, {16, 1}, {1, 512}, {1, 2048}};
  if (options.depths.empty()) options.depths = {8192};
  return options;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::run(millrace::parse(argc, argv)); }
