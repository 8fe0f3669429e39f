// One answer, whatever else happens: many requests, each alone first, then in company under
// different schedules, give the same tokens and log-probabilities bit for bit.
//
// usage: one_answer MODEL_DIR --requests N [--seed S] [--max-prompt L] [--schedules K] [--crowd C]
//                   [--targets T] [--slow-readers 0|1]
//
// Schedules are drawn so that every pair of values of two factors occurs: chunk, sequences at a
// time, room for blocks (tight: preemption), threads, kernel table, neighbours that are cancelled,
// readers so slow that their request is paused and its slot goes to another, choices asked for at
// once, priorities, experts that come from the disk into the smallest cache, prefixes that are cached
// with few, many or no snapshots, rows of prompts that are left out. Alone, nothing is cached and
// nothing left out. Every request runs in K of them with the best table. Other tables, which are slow, get short requests on top. T is the
// number of tables, best first; without it all, the reference included.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/disk_expert_source.h"
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
// Of the answer whose reader is slow: more than may wait to be read.
constexpr int64_t kLongAnswer = int64_t(StreamBuffer::kMaxPendingEvents) + 24;
constexpr size_t kLongAnswers = 2;  // the first requests

struct Options {
  std::string model_dir;
  int64_t num_requests = 100;
  int64_t max_prompt = 3000;
  int64_t num_schedules = 3;
  int64_t crowd = 8;        // requests that a schedule has at least
  int64_t num_targets = 0;  // 0: all, and the reference
  bool has_slow_readers = true;
  uint64_t seed = 1;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
T take(Result<T> result) {
  if (!result.has_value()) fail(result.error().message);
  return std::move(result.value());
}

// ---- Answers.

// Everything that a client can see of one choice, as bytes.
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
  // The prompt's come with the first choice of a request only.
  const std::string& prompt() const { return prompt_; }
  const std::string& output() const { return output_; }

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
std::vector<Transcript> read_all(RequestStream& stream, int32_t num_choices) {
  std::vector<Transcript> transcripts(static_cast<size_t>(num_choices));
  while (const auto event = stream.next()) transcripts[size_t(event->choice_idx)].add(event->event);
  return transcripts;
}

// Half of the prompts begin as one of the earlier ones does.
Request draw_request(Random& random, const Options& options, int64_t vocab_size, int64_t max_len,
                     const std::vector<Request>& earlier) {
  Request request;
  const double longest = std::log(double(std::min(options.max_prompt, max_len - kMaxTokens)));
  const auto length = int64_t(std::exp(random.uniform() * longest));
  if (!earlier.empty() && random.chance(0.5)) {
    const std::vector<int32_t>& other =
        earlier[size_t(random.below(int64_t(earlier.size())))].prompt_token_ids;
    const int64_t num_common = std::min(length, random.below(int64_t(other.size()) + 1));
    request.prompt_token_ids.assign(other.begin(), other.begin() + num_common);
  }
  // Text that repeats itself is what selections, ties and stop strings need.
  const int64_t range = random.chance(0.5) ? vocab_size : 40;
  while (int64_t(request.prompt_token_ids.size()) < length) {
    request.prompt_token_ids.push_back(int32_t(3 + random.below(range - 3)));
  }
  SamplingParams& params = request.sampling;
  // Some long enough to need another block when others have taken it.
  params.max_tokens = 1 + random.below(random.chance(0.1) ? kMaxTokens : 24);
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
  return request;
}

// A short question with an answer that a slow reader lets pile up.
Request draw_long_answer(Random& random, int64_t vocab_size) {
  Request request;
  for (int64_t i = 0, length = 1 + random.below(30); i < length; ++i) {
    request.prompt_token_ids.push_back(int32_t(3 + random.below(vocab_size - 3)));
  }
  request.sampling.max_tokens = kLongAnswer;
  request.sampling.ignore_eos = true;
  request.sampling.seed = random.bits() >> 11;
  request.sampling.temperature = random.chance(0.5) ? 0 : 0.8;
  request.sampling.logprobs = 1;
  return request;
}

// ---- Schedules.

struct Schedule {
  int64_t chunk, max_num_seqs;
  bool is_tight;
  int threads;
  std::string isa;
  bool has_cancelled_neighbours, has_slow_reader;
  int32_t num_choices;
  bool has_priorities;
  bool has_expert_cache;
  int64_t num_snapshots;  // of cached prefixes; -1: nothing is cached
  bool has_exact_replay;

  // Nothing but readers that fall behind can cost a sequence its place.
  bool preempts_only_paused() const { return !is_tight || max_num_seqs == 1; }
  // The other tables are several times slower, two of them by design.
  bool has_best_table() const { return isa == fast_kernels()[0]->name; }
  // About how much longer a request takes here than where nothing slows it down.
  double slowness() const {
    const double rows_alone = chunk == 1 ? 3 : chunk == 7 ? 1.5 : 1;
    return rows_alone * (is_tight ? 2 : 1) * (has_expert_cache ? 3 : 1) * double(num_choices);
  }
  std::string name() const {
    return "chunk " + std::to_string(chunk) + ", " + std::to_string(max_num_seqs) + " sequences" +
           (is_tight ? ", tight, " : ", ") + std::to_string(threads) + " threads, " + isa +
           (has_cancelled_neighbours ? ", cancels" : "") +
           (has_slow_reader ? ", slow reader" : "") + ", n " + std::to_string(num_choices) +
           (has_priorities ? ", priorities" : "") + (has_expert_cache ? ", experts from disk" : "") +
           (num_snapshots < 0 ? "" : ", cached with " + std::to_string(num_snapshots)) +
           (has_exact_replay ? ", replay" : "");
  }
};

// Values of each factor, by index.
const std::vector<int64_t> kChunks{1, 7, 32, 128, 512}, kSequences{1, 3, 16, 200};
const std::vector<int> kThreads{1, 2, 4};
const std::vector<int32_t> kChoices{1, 2, 4};
const std::vector<int64_t> kSnapshots{-1, 0, 2, 100};

std::vector<std::string> table_names(const Options& options) {
  std::vector<std::string> names;
  for (const KernelTable* table : fast_kernels()) names.emplace_back(table->name);
  names.emplace_back("ref");
  const size_t wanted = size_t(options.num_targets);
  if (wanted > 0 && wanted < names.size()) names.resize(wanted);
  return names;
}

struct Cover {
  std::vector<Schedule> schedules;
  int64_t num_pairs;  // of values of two factors, all of which occur
};

// Greedy: each next schedule is the best of many drawn, by the pairs of values that it adds.
Cover covering_schedules(Random& random, const Options& options) {
  const std::vector<std::string> names = table_names(options);
  const std::vector<int64_t> sizes{int64_t(kChunks.size()),
                                   int64_t(kSequences.size()),
                                   2,
                                   int64_t(kThreads.size()),
                                   int64_t(names.size()),
                                   2,
                                   options.has_slow_readers ? 2 : 1,
                                   int64_t(kChoices.size()),
                                   2,
                                   2,
                                   int64_t(kSnapshots.size()),
                                   2};
  const size_t num_factors = sizes.size();
  const auto pair_id = [&](size_t a, int64_t x, size_t b, int64_t y) {
    return ((int64_t(a) * 8 + x) * 16 + int64_t(b)) * 8 + y;
  };
  std::vector<bool> is_covered(16 * 8 * 16 * 8, false);
  int64_t num_pairs = 0;
  for (size_t a = 0; a < num_factors; ++a) {
    for (size_t b = a + 1; b < num_factors; ++b) num_pairs += sizes[a] * sizes[b];
  }
  Cover cover{{}, num_pairs};
  for (int64_t missing = num_pairs; missing > 0;) {
    std::vector<int64_t> best;
    int64_t best_gain = 0;
    for (int trial = 0; trial < 500; ++trial) {
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
    cover.schedules.push_back({kChunks[size_t(best[0])], kSequences[size_t(best[1])], best[2] == 1,
                               kThreads[size_t(best[3])], names[size_t(best[4])], best[5] == 1,
                               best[6] == 1, kChoices[size_t(best[7])], best[8] == 1,
                               best[9] == 1, kSnapshots[size_t(best[10])], best[11] == 1});
  }
  return cover;
}

int64_t least_expert_cache(const std::string& model_dir) {
  const Checkpoint checkpoint = take(Checkpoint::open(model_dir));
  const int64_t per_token = std::max(checkpoint.config().num_experts_per_tok,
                                     checkpoint.config().dspark_num_experts_per_tok);
  return DiskExpertSource::least_slots(per_token) *
         int64_t(take(ExpertFiles::open(checkpoint)).slot_bytes());
}

// `longest`: the most tokens of prompt and output that a request of the schedule may come to.
std::unique_ptr<Engine> open_engine(const Options& options, const Schedule& schedule,
                                    int64_t longest) {
  const Tokenizer tokenizer = take(open_tokenizer(options.model_dir));
  EngineOptions engine;
  engine.load.model_dir = options.model_dir;
  engine.load.num_threads = schedule.threads;
  engine.load.isa = schedule.isa;
  engine.load.expert_cache_bytes =
      schedule.has_expert_cache ? least_expert_cache(options.model_dir) : 0;
  engine.prefill_chunk = schedule.chunk;
  engine.prefix_caching = schedule.num_snapshots >= 0;
  engine.max_num_snapshots = std::max<int64_t>(0, schedule.num_snapshots);
  engine.exact_replay = schedule.has_exact_replay;
  engine.max_num_seqs = schedule.max_num_seqs;
  if (schedule.num_snapshots >= 0) engine.block_size = 16;  // what is found is whole blocks
  if (schedule.is_tight) {
    // Small blocks, and no more of them than the longest request needs.
    constexpr int64_t kBlockSize = 4;
    engine.block_size = kBlockSize;
    engine.num_blocks = (longest + kBlockSize - 1) / kBlockSize;
    engine.max_model_len = longest;
  }
  return take(Engine::open(engine, make_token_table(tokenizer, {})));
}

// What the factors brought about.
struct Effects {
  int64_t num_preempted = 0;  // for want of blocks
  int64_t num_evicted = 0;    // of paused requests
  int64_t num_paused = 0;
  int64_t num_cancelled = 0;  // before their end
  int64_t num_overtaken = 0;  // began later than one submitted after them, one at a time
  int64_t most_sequences = 0;
  int64_t num_experts_read = 0;
  int64_t num_cached_tokens = 0;
  int64_t most_snapshots = 0;
};

// Submits requests as a crowd would: a few at a time, always more than there is room for.
class Crowd {
 public:
  Crowd(Engine& engine, const Schedule& schedule, Random& random, Effects& effects)
      : engine_(engine), schedule_(schedule), random_(random), effects_(effects) {}

  // Nobody reads the answer before everybody else has theirs.
  void submit_slow(Request request, std::vector<Transcript>& answer) {
    slow_ = open(std::move(request), answer);
  }
  void submit(Request request, std::vector<Transcript>& answer) {
    request.num_choices = schedule_.num_choices;
    if (schedule_.has_cancelled_neighbours && random_.chance(0.5)) {
      Request neighbour = request;
      neighbour.sampling.max_tokens = 40;
      neighbours_.push_back(take(engine_.submit(std::move(neighbour))));
    }
    open_.push_back(open(std::move(request), answer));
    while (open_.size() > size_t(2 * schedule_.max_num_seqs)) finish_one();
  }
  void finish() {
    while (!open_.empty()) finish_one();
    while (!neighbours_.empty()) cancel_neighbour();
    if (!slow_.stream) return;
    // Its events pile up, and then it rests: that it does is the engine's own count.
    const auto is_paused = [&] { return engine_.stats().num_paused_requests > 0; };
    for (int i = 0; !is_paused(); ++i) {
      if (i == 60'000) fail("a request whose reader sleeps was not paused in two minutes");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ++effects_.num_paused;
    *slow_.answer = read_all(*slow_.stream, slow_.num_choices);
  }

 private:
  struct Open {
    std::unique_ptr<RequestStream> stream;
    int32_t num_choices = 1;
    std::vector<Transcript>* answer = nullptr;
  };

  Open open(Request request, std::vector<Transcript>& answer) {
    if (schedule_.has_priorities) {
      request.priority = int32_t(random_.below(5)) - 2;
      request.fairness_key = std::to_string(random_.below(3));
    }
    const int32_t num_choices = request.num_choices;
    // On the engine's thread; read when it is gone.
    auto begin = [this, rank = num_submitted_++, has_begun = false]() mutable {
      if (has_begun) return;
      has_begun = true;
      if (rank < last_begun_) ++num_overtaken_;
      last_begun_ = std::max(last_begun_, rank);
    };
    return {take(engine_.submit(std::move(request), std::move(begin))), num_choices, &answer};
  }
  void finish_one() {
    const SchedulerStats stats = engine_.stats();
    effects_.most_sequences =
        std::max(effects_.most_sequences,
                 stats.num_prefilling_sequences + stats.num_decoding_sequences);
    *open_.front().answer = read_all(*open_.front().stream, open_.front().num_choices);
    open_.erase(open_.begin());
    if (!neighbours_.empty()) cancel_neighbour();
    if (schedule_.has_priorities && schedule_.max_num_seqs == 1) {
      effects_.num_overtaken += num_overtaken_.exchange(0);
    }
  }
  // Wherever it is by now.
  void cancel_neighbour() {
    effects_.num_cancelled += !neighbours_.front()->is_finished();
    neighbours_.erase(neighbours_.begin());
  }

  Engine& engine_;
  const Schedule& schedule_;
  Random& random_;
  Effects& effects_;
  std::vector<Open> open_;
  Open slow_;
  std::vector<std::unique_ptr<RequestStream>> neighbours_;
  int64_t num_submitted_ = 0;
  int64_t last_begun_ = -1;  // the engine's thread's
  std::atomic<int64_t> num_overtaken_{0};
};

// Who is overtaken shows where one runs at a time, and not among three.
int64_t least_crowd(const Options& options, const Schedule& schedule) {
  const bool shows_order = schedule.has_priorities && schedule.max_num_seqs == 1;
  return std::max<int64_t>(options.crowd, shows_order ? 8 : 1);
}

// Which requests run in which schedule: each in `num_schedules` different ones of those with the
// best table, so that all of these take about as long; some of the shortest third in those with
// another.
std::vector<std::vector<size_t>> assign(const Options& options,
                                        const std::vector<Schedule>& schedules,
                                        const std::vector<Request>& requests) {
  std::vector<size_t> others(requests.size() - kLongAnswers);
  std::iota(others.begin(), others.end(), kLongAnswers);
  std::vector<size_t> by_length = others;
  const auto tokens = [&](size_t r) {
    return int64_t(requests[r].prompt_token_ids.size()) + *requests[r].sampling.max_tokens;
  };
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](size_t a, size_t b) { return tokens(a) < tokens(b); });
  by_length.resize((by_length.size() + 2) / 3);

  std::vector<std::vector<size_t>> assigned(schedules.size());
  std::vector<size_t> fast;
  size_t next_short = 0, next_long = 0;
  for (size_t s = 0; s < schedules.size(); ++s) {
    if (schedules[s].has_slow_reader) assigned[s].push_back(next_long++ % kLongAnswers);
    if (schedules[s].has_best_table()) {
      fast.push_back(s);
      continue;
    }
    for (int64_t i = 0; i < least_crowd(options, schedules[s]); ++i) {
      assigned[s].push_back(by_length[next_short++ % by_length.size()]);
    }
  }
  // The longest first, each where it is soon done: what is slow gets few requests, and short ones.
  std::vector<size_t> longest_first = others;
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return tokens(a) > tokens(b); });
  std::vector<double> load(schedules.size(), 0);
  const auto load_with = [&](size_t r, size_t s) {
    return load[s] + double(tokens(r)) * schedules[s].slowness();
  };
  const auto give = [&](size_t r, size_t s) {
    load[s] = load_with(r, s);
    assigned[s].push_back(r);
  };
  for (size_t r : longest_first) {
    std::vector<size_t> by_load = fast;
    std::stable_sort(by_load.begin(), by_load.end(),
                     [&](size_t a, size_t b) { return load_with(r, a) < load_with(r, b); });
    by_load.resize(std::min(by_load.size(), size_t(options.num_schedules)));
    for (size_t s : by_load) give(r, s);
  }
  for (size_t s : fast) {
    for (size_t i = assigned[s].size(); i < size_t(least_crowd(options, schedules[s])); ++i) {
      give(by_length[next_short++ % by_length.size()], s);
    }
  }
  return assigned;
}

void check_effects(const Options& options, const Effects& effects) {
  if (effects.num_preempted == 0) fail("no schedule was tight enough to preempt anything");
  if (effects.num_cancelled == 0) fail("no neighbour was cancelled before its end");
  if (effects.num_overtaken == 0) fail("no request was overtaken for its priority");
  if (effects.most_sequences < 8) fail("never as many as 8 sequences at a time");
  if (effects.num_experts_read == 0) fail("no expert was read from the disk");
  if (effects.num_cached_tokens == 0) fail("no token came from the cache");
  if (effects.most_snapshots < 2) fail("never as many as 2 snapshots");
  if (options.has_slow_readers && effects.num_evicted == 0) fail("no paused request lost its place");
}

int run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Random random(options.seed);
  const Cover cover = covering_schedules(random, options);
  std::printf("one answer: %s, seed %llu, %lld requests, %lld pairs of values in %zu schedules\n",
              options.model_dir.c_str(), (unsigned long long)options.seed,
              (long long)options.num_requests, (long long)cover.num_pairs, cover.schedules.size());

  std::vector<Request> requests;
  std::vector<std::vector<size_t>> assigned;
  std::map<std::pair<size_t, int32_t>, Transcript> alone;  // by request and choice
  {
    const Schedule plain{256,   1,     false, 1,     table_names(options).front(), false,
                         false, 1,     false, false, -1,                           false};
    const std::unique_ptr<Engine> engine = open_engine(options, plain, 0);
    for (int64_t i = 0; i < options.num_requests; ++i) {
      requests.push_back(
          i < int64_t(kLongAnswers)
              ? draw_long_answer(random, engine->vocab_size())
              : draw_request(random, options, engine->vocab_size(), engine->max_model_len(),
                             requests));
    }
    assigned = assign(options, cover.schedules, requests);
    const auto ask = [&](size_t r, int32_t choice) {
      if (alone.contains({r, choice})) return;
      Request request = requests[r];
      request.choice_idx = choice;
      if (choice > 0) request.sampling.prompt_logprobs.reset();
      alone[{r, choice}] = read_all(*take(engine->submit(std::move(request))), 1)[0];
    };
    for (size_t s = 0; s < assigned.size(); ++s) {
      for (size_t r : assigned[s]) {
        const int32_t num_choices = r < kLongAnswers ? 1 : cover.schedules[s].num_choices;
        for (int32_t c = 0; c < num_choices; ++c) ask(r, c);
      }
    }
    std::printf("%zu choices alone: %.1f s\n", alone.size(), seconds());
    std::fflush(stdout);
  }

  Effects effects;
  int64_t num_runs = 0, num_compared = 0, num_different = 0;
  for (size_t s = 0; s < cover.schedules.size(); ++s) {
    const Schedule& schedule = cover.schedules[s];
    int64_t longest = 0;
    for (size_t r : assigned[s]) {
      longest = std::max(longest, int64_t(requests[r].prompt_token_ids.size()) +
                                      *requests[r].sampling.max_tokens);
    }
    // Room for what a cancelled neighbour asks.
    const std::unique_ptr<Engine> engine = open_engine(options, schedule, longest + 40);
    if (engine->info().isa != schedule.isa || engine->info().num_threads != schedule.threads) {
      fail("the engine runs with " + engine->info().isa + " on " +
           std::to_string(engine->info().num_threads) + " threads, expected " + schedule.name());
    }
    std::vector<std::vector<Transcript>> got(assigned[s].size());
    Crowd crowd(*engine, schedule, random, effects);
    for (size_t i = 0; i < assigned[s].size(); ++i) {
      const size_t r = assigned[s][i];
      if (r < kLongAnswers) {
        crowd.submit_slow(requests[r], got[i]);
      } else {
        crowd.submit(requests[r], got[i]);
      }
    }
    crowd.finish();
    const int64_t preemptions = engine->stats().num_preemptions;
    (schedule.preempts_only_paused() ? effects.num_evicted : effects.num_preempted) += preemptions;
    effects.num_experts_read += engine->counters().expert_reads.num_misses;
    const SchedulerStats stats = engine->stats();
    effects.num_cached_tokens += stats.num_cached_tokens;
    effects.most_snapshots = std::max(effects.most_snapshots, stats.num_snapshots);
    num_runs += int64_t(got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t r = assigned[s][i];
      for (size_t c = 0; c < got[i].size(); ++c, ++num_compared) {
        const Transcript& want = alone.at({r, int32_t(c)});
        if (got[i][c].output() == want.output() && got[i][c].prompt() == want.prompt()) continue;
        ++num_different;
        std::printf("DIFFERENT: request %zu (%zu prompt tokens), choice %zu, %s\n", r,
                    requests[r].prompt_token_ids.size(), c, schedule.name().c_str());
      }
    }
    std::printf("%s: %zu requests, %lld preemptions, %.1f s so far\n", schedule.name().c_str(),
                got.size(), (long long)preemptions, seconds());
    std::fflush(stdout);
  }
  std::printf("%lld requests in company, %lld answers compared, %lld different; %lld sequences "
              "preempted, %lld requests paused, %lld sequences of paused ones evicted, "
              "%lld neighbours cancelled, %lld requests overtaken, up to %lld sequences at a time, "
              "%lld experts read, %lld tokens from the cache, up to %lld snapshots\n",
              (long long)num_runs, (long long)num_compared, (long long)num_different,
              (long long)effects.num_preempted, (long long)effects.num_paused,
              (long long)effects.num_evicted, (long long)effects.num_cancelled,
              (long long)effects.num_overtaken, (long long)effects.most_sequences,
              (long long)effects.num_experts_read, (long long)effects.num_cached_tokens,
              (long long)effects.most_snapshots);
  if (num_different > 0) fail("answers differ");
  check_effects(options, effects);
  return 0;
}

int64_t number(const char* text) {
  char* end;
  const int64_t value = std::strtoll(text, &end, 10);
  if (end == text || *end != 0 || value < 0) {
    fail(std::string("found ") + text + ", expected a number from 0 on");
  }
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
    else if (flag == "--targets") options.num_targets = value;
    else if (flag == "--slow-readers") options.has_slow_readers = value != 0;
    else fail("unknown flag " + flag);
  }
  if (options.model_dir.empty()) fail("no MODEL_DIR");
  if (options.num_requests <= int64_t(kLongAnswers)) fail("too few requests");
  if (options.max_prompt < 1 || options.num_schedules < 1 || options.crowd < 1) {
    fail("lengths, schedules and crowds are at least 1");
  }
  return run(options);
}
