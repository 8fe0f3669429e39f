// One answer, whatever else happens: many requests, each alone first, then in company under
// different schedules, give the same tokens and log-probabilities bit for bit.
//
// usage: one_answer MODEL_DIR --requests N [--seed S] [--max-prompt L] [--schedules K] [--crowd C]
//
// The schedules are drawn so that every pair of values of two factors occurs: chunk, sequences at a
// time, room for blocks (tight: preemption), threads, instruction set, neighbours that are
// cancelled, priorities. Every request runs in K of them.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/kernels.h"
#include "llm/llm.h"
#include "model/numerics.h"
#include "tokenizer/token_map.h"

namespace millrace {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t limit) { return int64_t(bits() % uint64_t(limit)); }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  bool chance(double p) { return uniform() < p; }

 private:
  uint64_t state_;
};

constexpr int64_t kMaxTokens = 160;

struct Options {
  std::string model_dir;
  int64_t num_requests = 100;
  int64_t max_prompt = 3000;
  int64_t num_schedules = 3;
  int64_t crowd = 8;  // requests that a schedule has at least
  uint64_t seed = 1;
};

// ---- Answers.

// Everything that a client can see of an answer, as bytes.
class Transcript {
 public:
  void add(const StreamEvent& event) {
    // Which event brings the prompt's depends on the chunks.
    for (const TokenLogprobs& logprobs : event.prompt_logprobs) put(prompt_, logprobs);
    if (event.token_id) put(output_, *event.token_id);
    if (event.logprobs) put(output_, *event.logprobs);
    if (!event.finish_reason) return;
    put(output_, int32_t(*event.finish_reason));
    put(output_, event.num_settled_bytes);
    if (event.error) output_ += event.error->message;
    if (const auto* token = std::get_if<int32_t>(&event.stop_reason)) put(output_, *token);
    if (const auto* text = std::get_if<std::string>(&event.stop_reason)) output_ += *text;
  }
  std::string bytes() const { return prompt_ + output_; }

 private:
  template <class T>
  static void put(std::string& bytes, const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put(std::string& bytes, const TokenLogprobs& logprobs) {
    put(bytes, logprobs.token);
    for (const TokenLogprob& top : logprobs.top) put(bytes, top);
  }
  static void put(std::string& bytes, const TokenLogprob& logprob) {
    put(bytes, logprob.token_id);
    put(bytes, logprob.rank);
    put(bytes, logprob.logprob);
  }
  std::string prompt_, output_;
};

// One transcript for each choice.
std::vector<std::string> read_all(RequestStream& stream, int32_t num_choices) {
  std::vector<Transcript> transcripts(static_cast<size_t>(num_choices));
  while (const auto event = stream.next()) transcripts[size_t(event->choice_idx)].add(event->event);
  std::vector<std::string> bytes;
  for (const Transcript& transcript : transcripts) bytes.push_back(transcript.bytes());
  return bytes;
}

Request draw_request(Random& random, const Options& options, int64_t vocab_size, int64_t max_len) {
  Request request;
  const double longest = std::log(double(std::min(options.max_prompt, max_len - kMaxTokens)));
  const auto length = int64_t(std::exp(random.uniform() * longest));
  // Text that repeats itself is what selections, ties and stop strings need.
  const int64_t range = random.chance(0.5) ? vocab_size : 40;
  for (int64_t i = 0; i < length; ++i) {
    request.prompt_token_ids.push_back(int32_t(3 + random.below(range - 3)));
  }
  SamplingParams& params = request.sampling;
  // Some long enough to need another block when others have taken it.
  params.max_tokens = 1 + random.below(random.chance(0.2) ? kMaxTokens : 24);
  params.ignore_eos = random.chance(0.7);
  params.seed = random.bits() >> 11;
  if (random.chance(0.5)) {
    params.temperature = 0;
  } else {
    params.temperature = 0.3 + random.uniform();
    if (random.chance(0.3)) params.top_k = 1 + random.below(50);
    if (random.chance(0.3)) params.top_p = 0.5 + random.uniform() / 2;
    if (random.chance(0.2)) params.presence_penalty = random.uniform();
    if (random.chance(0.2)) params.repetition_penalty = 1 + random.uniform() / 2;
  }
  if (random.chance(0.4)) params.logprobs = random.below(4);
  if (random.chance(0.1)) params.prompt_logprobs = random.below(3);
  if (random.chance(0.2)) params.stop = {"e", " the"};
  if (random.chance(0.2)) request.num_choices = 2 + int32_t(random.below(3));
  return request;
}

// ---- Schedules.

struct Schedule {
  int64_t chunk, max_num_seqs;
  bool is_tight;
  int threads;
  std::string isa;
  bool has_cancelled_neighbours;
  bool has_priorities;

  std::string name() const {
    return "chunk " + std::to_string(chunk) + ", " + std::to_string(max_num_seqs) + " sequences" +
           (is_tight ? ", tight" : "") + ", " + std::to_string(threads) + " threads, " + isa +
           (has_cancelled_neighbours ? ", cancels" : "") + (has_priorities ? ", priorities" : "");
  }
};

// Values of each factor, by index.
const std::vector<int64_t> kChunks{1, 3, 16, 100, 512}, kSequences{1, 3, 16, 200};
const std::vector<int> kThreads{1, 2, 4};

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : fast_kernels()) names.emplace_back(table->name);
  return names;
}

// Greedy: each next schedule is the best of many drawn, by the pairs of values that it adds.
std::vector<Schedule> covering_schedules(Random& random) {
  const std::vector<std::string> names = isas();
  const std::vector<int64_t> sizes{int64_t(kChunks.size()), int64_t(kSequences.size()), 2,
                                   int64_t(kThreads.size()), int64_t(names.size()), 2, 2};
  const size_t num_factors = sizes.size();
  const auto pair_id = [&](size_t a, int64_t x, size_t b, int64_t y) {
    return ((int64_t(a) * 8 + x) * 8 + int64_t(b)) * 8 + y;
  };
  std::vector<bool> is_covered(8 * 8 * 8 * 8, false);
  int64_t missing = 0;
  for (size_t a = 0; a < num_factors; ++a) {
    for (size_t b = a + 1; b < num_factors; ++b) missing += sizes[a] * sizes[b];
  }
  std::vector<Schedule> schedules;
  while (missing > 0) {
    std::vector<int64_t> best;
    int64_t best_gain = 0;
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<int64_t> drawn;
      for (int64_t size : sizes) drawn.push_back(random.below(size));
      int64_t gain = 0;
      for (size_t a = 0; a < num_factors; ++a) {
        for (size_t b = a + 1; b < num_factors; ++b) {
          gain += !is_covered[size_t(pair_id(a, drawn[a], b, drawn[b]))];
        }
      }
      if (gain > best_gain) {
        best_gain = gain;
        best = drawn;
      }
    }
    if (best.empty()) continue;
    for (size_t a = 0; a < num_factors; ++a) {
      for (size_t b = a + 1; b < num_factors; ++b) {
        is_covered[size_t(pair_id(a, best[a], b, best[b]))] = true;
      }
    }
    missing -= best_gain;
    schedules.push_back({kChunks[size_t(best[0])], kSequences[size_t(best[1])], best[2] == 1,
                         kThreads[size_t(best[3])], names[size_t(best[4])], best[5] == 1,
                         best[6] == 1});
  }
  return schedules;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
T take(Result<T> result) {
  if (!result.has_value()) fail(result.error().message);
  return std::move(result.value());
}

std::unique_ptr<Engine> open_engine(const Options& options, const Schedule& schedule) {
  const Tokenizer tokenizer = take(open_tokenizer(options.model_dir));
  EngineOptions engine;
  engine.load.model_dir = options.model_dir;
  engine.load.num_threads = schedule.threads;
  engine.load.isa = schedule.isa;
  engine.prefill_chunk = schedule.chunk;
  engine.max_num_seqs = schedule.max_num_seqs;
  if (schedule.is_tight) {
    // Small blocks, and no more of them than the longest request needs.
    const Checkpoint checkpoint = take(Checkpoint::open(options.model_dir));
    const int64_t longest = std::min(options.max_prompt + kMaxTokens,
                                     checkpoint.config().max_position_embeddings);
    engine.block_size = 16;
    engine.num_blocks = (longest + engine.block_size - 1) / engine.block_size;
    engine.max_model_len = longest;
  }
  return take(Engine::open(engine, make_token_table(tokenizer, {})));
}

// Submits requests as a crowd would: a few at a time, always more than there is room for.
class Crowd {
 public:
  Crowd(Engine& engine, const Schedule& schedule, Random& random)
      : engine_(engine), schedule_(schedule), random_(random) {}

  void submit(Request request, std::vector<std::string>& answer) {
    if (schedule_.has_priorities) {
      request.priority = int32_t(random_.below(5)) - 2;
      request.fairness_key = std::to_string(random_.below(3));
    }
    if (schedule_.has_cancelled_neighbours && random_.chance(0.5)) {
      Request neighbour = request;
      neighbour.sampling.max_tokens = 40;
      neighbours_.push_back(take(engine_.submit(std::move(neighbour))));
    }
    const int32_t num_choices = request.num_choices;
    open_.push_back({take(engine_.submit(std::move(request))), num_choices, &answer});
    while (open_.size() > size_t(2 * schedule_.max_num_seqs)) finish_one();
  }
  void finish() {
    while (!open_.empty()) finish_one();
    neighbours_.clear();
  }

 private:
  struct Open {
    std::unique_ptr<RequestStream> stream;
    int32_t num_choices;
    std::vector<std::string>* answer;
  };
  void finish_one() {
    *open_.front().answer = read_all(*open_.front().stream, open_.front().num_choices);
    open_.erase(open_.begin());
    // Wherever they are by now.
    if (!neighbours_.empty()) neighbours_.erase(neighbours_.begin());
  }

  Engine& engine_;
  const Schedule& schedule_;
  Random& random_;
  std::vector<Open> open_;
  std::vector<std::unique_ptr<RequestStream>> neighbours_;
};

int run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::printf("one answer: %s, %lld requests, seed %llu\n", options.model_dir.c_str(),
              (long long)options.num_requests, (unsigned long long)options.seed);
  Random random(options.seed);
  const std::vector<Schedule> schedules = covering_schedules(random);

  std::vector<Request> requests;
  std::vector<std::vector<std::string>> alone;
  {
    const std::unique_ptr<Engine> engine =
        open_engine(options, {256, 8, false, 1, isas().front(), false, false});
    for (int64_t i = 0; i < options.num_requests; ++i) {
      requests.push_back(
          draw_request(random, options, engine->vocab_size(), engine->max_model_len()));
      const auto stream = take(engine->submit(requests.back()));
      alone.push_back(read_all(*stream, requests.back().num_choices));
    }
    std::printf("each alone: %.1f s\n", seconds());
  }

  // Each request in `num_schedules` of them, evenly.
  std::vector<std::vector<size_t>> assigned(schedules.size());
  const int64_t runs = std::max(options.num_requests * options.num_schedules,
                                options.crowd * int64_t(schedules.size()));
  for (int64_t r = 0; r < runs; ++r) {
    const size_t request = size_t(r % options.num_requests);
    assigned[size_t((r + r / options.num_requests) % int64_t(schedules.size()))].push_back(request);
  }
  int64_t num_compared = 0, num_preemptions = 0, num_different = 0;
  for (size_t s = 0; s < schedules.size(); ++s) {
    const std::unique_ptr<Engine> engine = open_engine(options, schedules[s]);
    std::vector<std::vector<std::string>> got(assigned[s].size());
    Crowd crowd(*engine, schedules[s], random);
    for (size_t i = 0; i < assigned[s].size(); ++i) crowd.submit(requests[assigned[s][i]], got[i]);
    crowd.finish();
    num_preemptions += engine->stats().num_preemptions;
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t request = assigned[s][i];
      for (size_t c = 0; c < got[i].size(); ++c, ++num_compared) {
        if (got[i][c] == alone[request][c]) continue;
        ++num_different;
        std::printf("DIFFERENT: request %zu (%zu prompt tokens), choice %zu, %s\n", request,
                    requests[request].prompt_token_ids.size(), c, schedules[s].name().c_str());
      }
    }
    std::printf("%s: %zu requests, %lld preemptions, %.1f s so far\n", schedules[s].name().c_str(),
                got.size(), (long long)engine->stats().num_preemptions, seconds());
    std::fflush(stdout);
  }
  std::printf("%lld answers compared, %lld different, %lld preemptions\n", (long long)num_compared,
              (long long)num_different, (long long)num_preemptions);
  if (num_preemptions == 0) fail("no schedule was tight enough to preempt anything");
  return num_different == 0 ? 0 : 1;
}

int64_t number(const char* text) {
  char* end;
  const int64_t value = std::strtoll(text, &end, 10);
  if (*end != 0 || value < 1) fail(std::string("found ") + text + ", expected a number above 0");
  return value;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--", 0) != 0) {
      options.model_dir = flag;
      continue;
    }
    if (++i == argc) fail(flag + " needs a value");
    const int64_t value = number(argv[i]);
    if (flag == "--requests") options.num_requests = value;
    else if (flag == "--seed") options.seed = uint64_t(value);
    else if (flag == "--max-prompt") options.max_prompt = value;
    else if (flag == "--schedules") options.num_schedules = value;
    else if (flag == "--crowd") options.crowd = value;
    else fail("unknown flag " + flag);
  }
  if (options.model_dir.empty()) fail("no MODEL_DIR");
  return run(options);
}
