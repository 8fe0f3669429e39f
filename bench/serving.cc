// The engine's speed with many requests at once, as JSON lines: for each batch, short sequences
// that all decode, and prompts in steps of as many rows. Rates are those of the engine's own
// counters: rows over the time of its steps. "outside" is the share of that time in which the
// engine's thread works outside the regions of its thread pool, and what it does then. Medians of
// several runs, the batches taking turns, with the lowest and the highest. Last, what of the
// process's memory is in huge pages.
//
// usage: bench-serving MODEL_DIR [THREADS [RUNS [BATCH...]]]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "llm/llm.h"
#include "sys/memory.h"

namespace millrace {
namespace {

constexpr int64_t kPromptTokens = 32;    // of sequences that decode
constexpr int64_t kDecodeSteps = 64;     // that are measured, with all sequences in them
constexpr int64_t kWarmUpSteps = 8;      // before and after
// Of each prompt that is measured: as long as the others get.
constexpr int64_t kPrefillTokens = 128;
constexpr int64_t kPrefillSteps = 16;

struct Measured {
  double rows_per_s, step_ms, outside, plan, commit;  // the last three as shares of the step
};

Measured between(const EngineCounters& a, const EngineCounters& b) {
  const double ns = double(b.step_ns - a.step_ns);
  return {double(b.num_rows - a.num_rows) / ns * 1e9, ns / 1e6 / double(b.num_steps - a.num_steps),
          double(b.outside_ns() - a.outside_ns()) / ns, double(b.plan_ns - a.plan_ns) / ns,
          double(b.commit_ns - a.commit_ns) / ns};
}

Request request(int64_t num_tokens, int64_t seed, int64_t vocab_size, int64_t max_tokens) {
  Request request;
  for (int64_t i = 0; i < num_tokens; ++i) {
    request.prompt_token_ids.push_back(int32_t((i * 37 + seed * 101 + 11) % (vocab_size - 100)));
  }
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

std::unique_ptr<RequestStream> submit(Engine& engine, Request request) {
  Result<std::unique_ptr<RequestStream>> stream = engine.submit(std::move(request));
  if (!stream.has_value()) {
    std::fprintf(stderr, "%s\n", stream.error().message.c_str());
    std::exit(1);
  }
  return std::move(stream.value());
}

// Reads so many tokens of every stream.
void read(std::vector<std::unique_ptr<RequestStream>>& streams, int64_t num_tokens) {
  for (const std::unique_ptr<RequestStream>& stream : streams) {
    for (int64_t left = num_tokens; left > 0;) {
      const auto next = stream->next();
      if (!next) break;
      left -= next->event.token_id.has_value();
    }
  }
}

Measured decode(Engine& engine, int64_t batch) {
  std::vector<std::unique_ptr<RequestStream>> streams;
  // Admission and prompts take some steps, in which those that are first decode already.
  const int64_t most = kWarmUpSteps + batch + kDecodeSteps + kWarmUpSteps;
  for (int64_t i = 0; i < batch; ++i) {
    streams.push_back(submit(engine, request(kPromptTokens, i, engine.vocab_size(), most)));
  }
  read(streams, kWarmUpSteps);
  const EngineCounters begin = engine.counters();
  read(streams, kDecodeSteps);
  return between(begin, engine.counters());
}

Measured prefill(Engine& engine, int64_t batch) {
  const int64_t num_prompts =
      std::max<int64_t>(1, batch * kPrefillSteps / kPrefillTokens);
  const EngineCounters begin = engine.counters();
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int64_t i = 0; i < num_prompts; ++i) {
    streams.push_back(submit(engine, request(kPrefillTokens, i, engine.vocab_size(), 0)));
  }
  for (const auto& stream : streams) {
    while (stream->next()) {
    }
  }
  return between(begin, engine.counters());
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

template <class Get>
std::vector<double> each(const std::vector<Measured>& runs, Get get) {
  std::vector<double> values;
  for (const Measured& run : runs) values.push_back(get(run));
  return values;
}

// Returns the rate.
double print(const char* what, int64_t batch, const EngineInfo& info,
             const std::vector<Measured>& runs) {
  const auto of = [&](auto get) { return median(each(runs, get)); };
  const std::vector<double> rates = each(runs, [](const Measured& m) { return m.rows_per_s; });
  const double rate = median(rates);
  std::printf(
      "{\"bench\": \"serving\", \"what\": \"%s\", \"rows\": %lld, \"isa\": \"%s\", "
      "\"threads\": %d, "
      "\"value\": %.0f, \"unit\": \"tokens/s\", \"lowest\": %.0f, \"highest\": %.0f, \"step_ms\": "
      "%.3f, \"outside\": %.4f, \"outside_planning\": %.4f, \"outside_committing\": %.4f}\n",
      what, static_cast<long long>(batch), info.isa.c_str(), info.num_threads, rate,
      *std::min_element(rates.begin(), rates.end()), *std::max_element(rates.begin(), rates.end()),
      of([](const Measured& m) { return m.step_ms; }),
      of([](const Measured& m) { return m.outside; }), of([](const Measured& m) { return m.plan; }),
      of([](const Measured& m) { return m.commit; }));
  return rate;
}

std::unique_ptr<Llm> open(const EngineOptions& options) {
  Result<std::unique_ptr<Llm>> llm = Llm::open(options);
  if (!llm.has_value()) {
    std::fprintf(stderr, "%s\n", llm.error().message.c_str());
    std::exit(1);
  }
  return std::move(llm.value());
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench-serving MODEL_DIR [THREADS [RUNS [BATCH...]]]\n");
    return 2;
  }
  EngineOptions options;
  options.load.model_dir = argv[1];
  if (argc > 2) options.load.num_threads = std::atoi(argv[2]);
  const int num_runs = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  std::vector<int64_t> batches;
  for (int i = 4; i < argc; ++i) batches.push_back(std::max(1, std::atoi(argv[i])));
  if (batches.empty()) batches = {1, 4, 16, 64, 256};
  options.max_num_seqs = *std::max_element(batches.begin(), batches.end());
  options.max_step_ms = 1e6;  // prompts in few steps
  const std::unique_ptr<Llm> decoding = open(options);

  std::map<int64_t, std::vector<Measured>> decoded, prefilled;
  for (int r = 0; r < num_runs; ++r) {
    for (const int64_t batch : batches) {
      decoded[batch].push_back(decode(decoding->engine(), batch));
      EngineOptions chunked = options;
      chunked.prefill_chunk = chunked.max_num_batched_tokens = batch;
      const std::unique_ptr<Llm> prefilling = open(chunked);
      (void)prefill(prefilling->engine(), batch);  // memory is touched for the first time
      prefilled[batch].push_back(prefill(prefilling->engine(), batch));
    }
  }
  for (const int64_t batch : batches) {
    const EngineInfo& info = decoding->engine().info();
    const double decode_rate = print("decode", batch, info, decoded[batch]);
    const double prefill_rate = print("prefill", batch, info, prefilled[batch]);
    std::printf("{\"bench\": \"serving\", \"what\": \"decode over prefill\", \"rows\": %lld, "
                "\"value\": %.3f}\n",
                static_cast<long long>(batch), decode_rate / prefill_rate);
  }
  const HugePageUse huge = read_huge_page_use();
  std::printf(
      "{\"bench\": \"serving\", \"what\": \"memory\", \"private_bytes\": %lld, "
      "\"private_huge_bytes\": %lld, \"file_huge_bytes\": %lld}\n",
      static_cast<long long>(anonymous_bytes()), static_cast<long long>(huge.anonymous_bytes),
      static_cast<long long>(huge.file_bytes));
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::run(argc, argv); }
