// How late the scripted engine's events are, as JSON lines: for each number of streams, requests
// submitted one after the other, of which every one has a token due each 10 ms. Lateness is from an
// event's due time, counted from just before its request was submitted, to when its reader is told.
//
// usage: bench-scripted MODEL_DIR [STREAMS...]     (of the directory config.json is read)

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/distribution.h"
#include "base/format.h"
#include "bench/temporary_file.h"
#include "engine/engine.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kDelayMs = 10;
constexpr int64_t kEvents = 200;  // of each stream

template <class T>
T take(Result<T> result) {
  if (result.has_value()) return std::move(result.value());
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}

// A token for every byte: the script needs no more.
TokenTable byte_table() {
  TokenTable table;
  for (int i = 0; i < 256; ++i) table.bytes.push_back(std::string(1, char(i)));
  return table;
}

struct Stream {
  Clock::time_point start;
  std::unique_ptr<RequestStream> owner;
  std::atomic<RequestStream*> events{nullptr};  // set when submit() has returned
  std::vector<double> late_us;                  // by event
};

void measure(const EngineOptions& options, int64_t num_streams) {
  const std::unique_ptr<Engine> engine = take(Engine::open(options, byte_table()));
  std::vector<Stream> streams(static_cast<size_t>(num_streams));
  std::atomic<int64_t> num_open = num_streams;
  // Reads at once what it is told of, and so knows which events these are.
  const auto read = [&num_open](Stream& stream) {
    RequestStream* const events = stream.events.load();
    if (events == nullptr) return;
    const double ms =
        std::chrono::duration<double, std::milli>(Clock::now() - stream.start).count();
    while (const auto next = events->next(std::chrono::milliseconds(0))) {
      stream.late_us.push_back((ms - kDelayMs * double(stream.late_us.size() + 1)) * 1e3);
      if (!next->event.finish_reason) continue;
      --num_open;
      num_open.notify_one();
      return;
    }
  };
  for (Stream& stream : streams) {
    stream.late_us.reserve(size_t(kEvents));
    Request request;
    request.prompt_token_ids = {65};
    request.sampling.temperature = 0;
    stream.start = Clock::now();
    stream.owner = take(engine->submit(request, [&read, &stream] { read(stream); }));
    stream.events = stream.owner.get();
  }
  for (int64_t left = num_open; left > 0; left = num_open) num_open.wait(left);
  const int64_t num_rounds = engine->stats().num_steps;
  std::vector<double> late_us;
  for (Stream& stream : streams) {
    late_us.insert(late_us.end(), stream.late_us.begin(), stream.late_us.end());
    stream.owner.reset();
  }
  const Distribution late = distribution(std::move(late_us));
  std::printf("{\"name\": \"scripted\", \"streams\": %lld, \"delay_ms\": %g, \"events\": %zu, "
              "\"rounds\": %lld, \"late_us_p50\": %.1f, \"late_us_p99\": %.1f, "
              "\"late_us_max\": %.1f}\n",
              static_cast<long long>(num_streams), kDelayMs, size_t(late.n),
              static_cast<long long>(num_rounds), late.p50, late.p99, late.max);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench-scripted MODEL_DIR [STREAMS...]\n");
    return 2;
  }
  const TemporaryFile script(
      format("{\"delay_ms\": ", kDelayMs, ", \"repeat\": ", kEvents,
             ", \"finish_reason\": \"length\", \"pieces\": [{\"ids\": [65]}]}\n"));
  EngineOptions options;
  options.load.model_dir = argv[1];
  options.max_num_seqs = 4096;
  options.script_file = script.path();
  std::vector<int64_t> counts = {1, 64, 2048};
  if (argc > 2) counts.clear();
  for (int i = 2; i < argc; ++i) counts.push_back(std::max(std::atoll(argv[i]), 1ll));
  for (int64_t count : counts) measure(options, count);
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::run(argc, argv); }
