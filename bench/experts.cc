// Experts that are read from the disk into a cache, as JSON lines: that the bits are those of
// mapped ones, how fast misses are read against what the disk gives (measured in turns), and what
// steps find in the cache and wait for.
//
// The model is larger than the cache, for example a slice of the release by `millrace synth`:
//   millrace synth slice --shape v4.1 --layers 3 --experts 64 --engram-rows 100000 --draft 0
//     --no-vision
//
// usage: bench-experts MODEL_DIR [--cache-bytes N] [--threads T] [--runs R] [--steps S]
//                      [--prompt ROWS]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/distribution.h"
#include "base/format.h"
#include "bench/disk.h"
#include "bench/sequences.h"
#include "checkpoint/disk_expert_source.h"
#include "engine/loaded_model.h"
#include "llm/llm.h"
#include "sys/fp_environment.h"
#include "tokenizer/token_map.h"

namespace millrace {
namespace {

// Of one measurement. Disks, and what is below those of virtual machines, are fast and slow by
// turns and by places: many short measurements in turns, both of experts at random.
constexpr size_t kDiskBytes = size_t{256} << 20;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "bench-experts: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T take(Result<T> result) {
  if (!result.has_value()) stop(result.error().message);
  return std::move(result.value());
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) { return distribution(std::move(values)).p50; }

struct Options {
  std::string model_dir;
  int64_t cache_bytes = 1'000'000'000;
  int threads = 0;  // 0: all there are
  int64_t runs = 16, steps = 40, prompt = 256;
};

std::unique_ptr<LoadedModel> open_model(const Options& options, int64_t cache_bytes) {
  LoadOptions load;
  load.model_dir = options.model_dir;
  load.num_threads = options.threads;
  load.expert_cache_bytes = cache_bytes;
  const Tokenizer tokenizer = take(open_tokenizer(options.model_dir));
  return take(LoadedModel::open(load, make_token_map(tokenizer).compressed_ids));
}

std::unique_ptr<DiskExpertSource> open_source(const Checkpoint& checkpoint, int64_t cache_bytes) {
  return take(DiskExpertSource::open(take(ExpertFiles::open(checkpoint)), cache_bytes,
                                     take(open_uring_queue(DiskExpertSource::kReadsInFlight))));
}

ExpertReads difference(const ExpertReads& a, const ExpertReads& b) {
  return {b.cache_bytes, b.num_hits - a.num_hits, b.num_misses - a.num_misses,
          b.num_bytes - a.num_bytes, b.wait_ns - a.wait_ns};
}

double hit_rate(const ExpertReads& reads) {
  return double(reads.num_hits) / double(std::max<int64_t>(reads.num_hits + reads.num_misses, 1));
}

template <class T>
void shuffle(std::vector<T>& values, uint64_t& state) {
  for (size_t i = 0; i < values.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(values[i], values[i + (state >> 33) % (values.size() - i)]);
  }
}

// Where all experts find room nothing is read any more, and there is nothing to measure.
void refuse_cache_of_all(const Checkpoint& checkpoint, int64_t cache_bytes) {
  const ExpertFiles files = take(ExpertFiles::open(checkpoint));
  const std::vector<int64_t> counts = files.num_experts();
  const int64_t all_bytes =
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) * int64_t(files.slot_bytes());
  if (cache_bytes < all_bytes) return;
  stop(format("--cache-bytes: found ", cache_bytes, ", expected less than ", all_bytes,
              ", which hold all experts"));
}

// Leases of `per_lease` experts of each layer, which take turns from one call to the next, until
// kDiskBytes are read, and nothing done with them. Requires: the cache does not hold all experts.
void lease(DiskExpertSource& source, int64_t per_lease, size_t& turn, uint64_t& state) {
  const std::vector<int64_t> counts = source.files().num_experts();
  const int64_t begin = source.reads().num_bytes;
  for (; source.reads().num_bytes < begin + int64_t(kDiskBytes); ++turn) {
    const size_t layer = turn % counts.size();
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < counts[layer]; ++id) ids.push_back(id);
    shuffle(ids, state);
    ids.resize(std::min(ids.size(), size_t(per_lease)));
    std::sort(ids.begin(), ids.end());
    ExpertLease lease = source.acquire(int64_t(layer), ids);
    while (!take(lease.next()).empty()) {
    }
  }
}

// The experts' bytes in the order in which they lie.
std::vector<DiskRange> expert_ranges(const Checkpoint& checkpoint) {
  const ExpertFiles files = take(ExpertFiles::open(checkpoint));
  const std::vector<int64_t> counts = files.num_experts();
  std::vector<DiskRange> ranges;
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    for (int32_t id = 0; id < counts[layer]; ++id) {
      const ExpertFiles::Extents extents = files.extents(int64_t(layer), id);
      for (size_t i = 0; i < extents.count; ++i) {
        const ExpertFiles::Extent& extent = extents.list[i];
        ranges.push_back({files.path(extent.file), extent.begin, extent.end});
      }
    }
  }
  return ranges;
}

void print_misses(const Checkpoint& checkpoint, const Options& options, int64_t per_lease,
                  const char* what) {
  std::vector<DiskRange> ranges = expert_ranges(checkpoint);
  const auto source = open_source(checkpoint, options.cache_bytes);
  uint64_t state = 1;
  size_t turn = 0;
  while (source->reads().num_misses < source->num_slots()) lease(*source, per_lease, turn, state);
  const ExpertReads begin = source->reads();
  std::vector<double> disk, misses;
  for (int64_t run = 0; run < 2 * options.runs; ++run) {
    if ((run + 1) / 2 % 2 == 0) {  // disk, misses, misses, disk, ...
      shuffle(ranges, state);
      disk.push_back(take(measure_disk(ranges, DiskExpertSource::kPieceBytes,
                                       DiskExpertSource::kReadsInFlight, kDiskBytes)));
    } else {
      const int64_t begin_bytes = source->reads().num_bytes;
      const double begin_s = now_s();
      lease(*source, per_lease, turn, state);
      const double bytes = double(source->reads().num_bytes - begin_bytes);
      misses.push_back(bytes / (now_s() - begin_s) / 1e9);
    }
  }
  const ExpertReads reads = difference(begin, source->reads());
  const auto print_rates = [](const char* name, const std::vector<double>& rates) {
    std::printf(", \"%s\": %.3f, \"%s_least\": %.3f, \"%s_most\": %.3f", name, median(rates), name,
                *std::min_element(rates.begin(), rates.end()), name,
                *std::max_element(rates.begin(), rates.end()));
  };
  std::printf("{\"bench\": \"experts\", \"what\": \"misses\", \"leases\": \"%s\", "
              "\"cache_bytes\": %lld, \"slots\": %lld, \"hit_rate\": %.3f, \"bytes_read\": %lld",
              what, (long long)reads.cache_bytes, (long long)source->num_slots(), hit_rate(reads),
              (long long)reads.num_bytes);
  print_rates("gbps", misses);
  print_rates("disk_gbps", disk);
  std::printf(", \"of_disk\": %.3f}\n", median(misses) / median(disk));
  std::fflush(stdout);
}

// The logits of a prompt and of some tokens behind it. Prints what it took.
std::vector<float> run_steps(LoadedModel& model, const Options& options) {
  Sequences sequences = take(Sequences::create(
      model.config(), kv_format_of(model.model().numerics), /*count=*/1, /*depth=*/0,
      options.prompt + options.steps, /*max_history_bytes=*/0));
  Runner runner = model.make_runner(sequences.store());
  std::vector<float> all, logits;
  const auto run = [&](const char* what, int64_t rows, int64_t steps) {
    const ExpertReads begin = model.experts().reads();
    const double begin_s = now_s();
    for (int64_t i = 0; i < steps; ++i) {
      const Status status = runner.forward(sequences.grow(rows), {}, logits);
      if (!status.ok()) stop(status.error().message);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    const double seconds = now_s() - begin_s;
    const ExpertReads reads = difference(begin, model.experts().reads());
    std::printf("{\"bench\": \"experts\", \"what\": \"%s\", \"experts\": \"%s\", "
                "\"cache_bytes\": %lld, \"rows\": %lld, \"steps\": %lld, \"ms\": %.2f, "
                "\"hit_rate\": %.3f, \"bytes_read\": %lld, \"gbps\": %.3f, \"waited\": %.3f}\n",
                what, model.expert_reads().c_str(), (long long)reads.cache_bytes, (long long)rows,
                (long long)steps, seconds * 1e3 / double(steps), hit_rate(reads),
                (long long)reads.num_bytes, double(reads.num_bytes) / seconds / 1e9,
                double(reads.wait_ns) / 1e9 / seconds);
    std::fflush(stdout);
  };
  run("prompt", options.prompt, 1);
  run("decode", 1, options.steps);
  return all;
}

int run(const Options& options) {
  const ScopedFpEnvironment fp_environment;
  std::vector<float> logits[2];
  {
    const std::unique_ptr<LoadedModel> cached = open_model(options, options.cache_bytes);
    refuse_cache_of_all(cached->checkpoint(), options.cache_bytes);
    logits[0] = run_steps(*cached, options);
    const ModelConfig& config = cached->config();
    print_misses(cached->checkpoint(), options, config.num_experts_per_tok, "of one token");
    print_misses(cached->checkpoint(), options, config.n_routed_experts, "of a prompt");
  }
  logits[1] = run_steps(*open_model(options, 0), options);
  const bool is_same =
      logits[0].size() == logits[1].size() &&
      std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * sizeof(float)) == 0;
  std::printf("{\"bench\": \"experts\", \"what\": \"bits\", \"logits\": %zu, \"identical\": %s}\n",
              logits[0].size(), is_same ? "true" : "false");
  return is_same ? 0 : 1;
}

Options parse(int argc, char** argv) {
  const char* usage = "usage: bench-experts MODEL_DIR [--cache-bytes N] [--threads T] [--runs R] "
                      "[--steps S] [--prompt ROWS]";
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--")) {
      options.model_dir = argument;
      continue;
    }
    if (++i == argc) stop(usage);
    const int64_t value = std::max<int64_t>(std::atoll(argv[i]), 1);
    if (argument == "--cache-bytes") options.cache_bytes = value;
    else if (argument == "--threads") options.threads = int(value);
    else if (argument == "--runs") options.runs = value;
    else if (argument == "--steps") options.steps = value;
    else if (argument == "--prompt") options.prompt = value;
    else stop(usage);
  }
  if (options.model_dir.empty()) stop(usage);
  return options;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::run(millrace::parse(argc, argv)); }
