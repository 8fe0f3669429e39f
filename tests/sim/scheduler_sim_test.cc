// The scheduler in simulated time: the very class of the engine, with arrivals, step times, cancels
// and memory drawn from one seed. Prints what a machine's owner asks (throughput, waiting times,
// preemptions) and checks what docs/scheduler.md promises.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>

#include "scheduler/scheduler.h"
#include "scheduler/test_executor.h"

namespace millrace {
namespace {

constexpr int32_t kVocabSize = 512;

// A machine on which rows get cheaper as they are many: 20 ms, and 2 ms for the first rows down to
// about 0.6 ms for the thousandth. Every 50th step or so something else disturbs it.
double step_ms(int64_t num_rows, std::mt19937& random) {
  const double quiet = 20 + 2 * std::pow(double(num_rows), 0.83);
  const double noise = 0.97 + 0.06 * double(random() % 1000) / 1000;
  return quiet * noise * (random() % 50 == 0 ? 4 : 1);
}

struct Client {
  std::string key = {};
  int32_t priority = 0;
  int64_t max_prompt_tokens = 200;
  int64_t max_tokens = 60;
  int32_t num_choices = 1;
  double cancel_rate = 0;  // of its requests
  double pause_rate = 0;   // of its steps
  std::optional<double> timeout_ms = {};
};

int64_t log_uniform(int64_t most, std::mt19937& random) {
  const double u = double(random() % 100000) / 100000;
  return std::clamp<int64_t>(int64_t(std::exp(u * std::log(double(most) + 1))), 1, most);
}

class Simulation {
 public:
  Simulation(const SchedulerOptions& options, uint32_t seed)
      : options_(options),
        random_(seed),
        vocabulary_(kVocabSize),
        scheduler_(options, vocabulary_.tokens()),
        executor_(options.num_blocks, options.block_size, options.max_num_seqs, kVocabSize) {}

  // False: refused, the queue is full.
  bool arrive(const Client& client) {
    Request r;
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = log_uniform(client.max_tokens, random_);
    r.prompt_token_ids.resize(size_t(log_uniform(client.max_prompt_tokens, random_)));
    for (int32_t& id : r.prompt_token_ids) id = int32_t(random_() % kVocabSize);
    r.fairness_key = client.key;
    r.priority = client.priority;
    r.num_choices = client.num_choices;
    r.timeout_ms = client.timeout_ms;
    const RequestHandle handle = next_handle_++;
    const Status status = scheduler_.on_arrival(handle, r, now_ms);
    if (!status.ok()) {
      EXPECT_EQ(status.error().code, Code::kExhausted) << status.error().message;
      ++num_refused;
      return false;
    }
    Live& live = live_[handle];
    live.client = &client;
    live.arrival_ms = now_ms;
    live.num_choices_left = r.num_choices;
    keys_[next_sequence_id_] = &client;
    for (int32_t k = 0; k < r.num_choices; ++k) keys_[next_sequence_id_ + k] = &client;
    next_sequence_id_ += r.num_choices;
    live.request = std::move(r);
    return true;
  }

  // One step of the engine's loop. Clients cancel and pause while it runs.
  void step() {
    const StepPlan& plan = scheduler_.plan(now_ms);
    bool decodes = false;
    for (const PlannedRows& rows : plan.rows) {
      digest = mix_hash(mix_hash(digest, uint64_t(rows.sequence_id)), uint64_t(rows.num_rows));
      tokens_by_key[keys_.at(rows.sequence_id)->key] += rows.num_rows;
      decodes |= rows.first_position >= rows.num_prompt_tokens;
    }
    disturb();
    StepResult& result = executor_.run(plan);
    result.elapsed_ms = plan.rows.empty() ? 0 : step_ms(plan.num_rows, random_);
    now_ms += result.elapsed_ms;
    if (plan.rows.empty()) now_ms = std::max(now_ms, scheduler_.next_deadline_ms().value_or(0));
    if (decodes) decode_step_ms.push_back(result.elapsed_ms);
    num_rows += plan.num_rows;
    scheduler_.commit(result, [this](RequestHandle handle, int32_t choice, StreamEvent& event) {
      take(handle, choice, event);
    });
    const SchedulerStats stats = scheduler_.stats();
    EXPECT_LE(stats.num_waiting_requests, options_.max_waiting + options_.max_num_seqs);
    if (random_() % 64 == 0) scheduler_.check_invariants();
  }

  void drain() {
    for (const auto& [handle, live] : live_) scheduler_.set_paused(handle, false, now_ms);
    is_draining_ = true;
    while (!live_.empty()) step();
    step();
    EXPECT_EQ(scheduler_.stats().num_free_blocks, options_.num_blocks);
    EXPECT_EQ(executor_.num_samplers(), 0u);
    EXPECT_FALSE(scheduler_.has_work());
  }

  size_t num_live() const { return live_.size(); }
  size_t num_live_of(const Client& client) const {
    return size_t(std::count_if(live_.begin(), live_.end(),
                                [&](const auto& l) { return l.second.client == &client; }));
  }
  SchedulerStats stats() const { return scheduler_.stats(); }

  double tokens_per_s() const { return double(num_output_tokens) / now_ms * 1000; }
  double rows_per_s() const { return double(num_rows) / now_ms * 1000; }

  static double percentile(std::vector<double> values, double part) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[size_t(part * double(values.size() - 1))];
  }
  void print(const char* name) const {
    const SchedulerStats s = stats();
    std::printf(
        "%-28s %6.0f s, %5lld steps, %6.1f tokens/s out, %6.1f rows/s, first token after "
        "p50 %.2f s p90 %.2f s p99 %.2f s, decode step p50 %.0f ms p99 %.0f ms, %lld "
        "preemptions, %lld of %lld rows again, %lld refused\n",
        name, now_ms / 1000, (long long)s.num_steps, tokens_per_s(), rows_per_s(),
        percentile(first_token_ms, 0.5) / 1000, percentile(first_token_ms, 0.9) / 1000,
        percentile(first_token_ms, 0.99) / 1000, percentile(decode_step_ms, 0.5),
        percentile(decode_step_ms, 0.99), (long long)s.num_preemptions,
        (long long)s.num_recomputed_rows, (long long)(s.num_prefill_rows + s.num_decode_rows),
        (long long)num_refused);
  }

  double now_ms = 0;
  int64_t num_output_tokens = 0, num_rows = 0, num_refused = 0, num_ended = 0;
  uint64_t digest = 0;  // of all plans
  std::vector<double> first_token_ms, decode_step_ms;
  std::map<std::string, int64_t> tokens_by_key;
  std::vector<RequestHandle> first_token_order;

 private:
  struct Live {
    Request request;
    const Client* client = nullptr;
    double arrival_ms = 0;
    int32_t num_choices_left = 0;
    bool has_first_token = false;
    bool is_paused = false;
    std::map<int32_t, Recorder::Choice> choices;
  };

  bool happens(double rate) { return double(random_() % 1000000) < rate * 1000000; }

  void disturb() {
    if (is_draining_) return;
    for (auto& [handle, live] : live_) {
      if (live.client->cancel_rate > 0 && happens(live.client->cancel_rate / 40)) {
        scheduler_.on_cancel(handle);
      }
      if (live.client->pause_rate > 0 && happens(live.client->pause_rate)) {
        live.is_paused = !live.is_paused;
        scheduler_.set_paused(handle, live.is_paused, now_ms);
      }
    }
  }

  void take(RequestHandle handle, int32_t choice_idx, StreamEvent& event) {
    Live& live = live_.at(handle);
    live.choices[choice_idx].take(event);
    if (event.token_id) {
      ++num_output_tokens;
      if (!live.has_first_token) {
        live.has_first_token = true;
        first_token_ms.push_back(now_ms - live.arrival_ms);
        first_token_order.push_back(handle);
      }
    }
    if (!event.finish_reason) return;
    const Output want = expected_output(live.request, choice_idx, *live.request.sampling.max_tokens,
                                        vocabulary_.tokens());
    const std::vector<int32_t>& found = live.choices[choice_idx].output.tokens;
    EXPECT_TRUE(std::equal(found.begin(), found.end(), want.tokens.begin()));
    if (event.finish_reason == FinishReason::kLength) {
      EXPECT_EQ(found.size(), want.tokens.size());
    }
    if (--live.num_choices_left > 0) return;
    ++num_ended;
    live_.erase(handle);
  }

  SchedulerOptions options_;
  std::mt19937 random_;
  TestVocabulary vocabulary_;
  Scheduler scheduler_;
  TestExecutor executor_;
  std::map<RequestHandle, Live> live_;
  std::map<SequenceId, const Client*> keys_;
  RequestHandle next_handle_ = 0;
  SequenceId next_sequence_id_ = 0;
  bool is_draining_ = false;
};

SchedulerOptions machine() {
  SchedulerOptions o;
  o.max_num_seqs = 32;
  o.max_num_batched_tokens = 512;
  o.max_prefill_chunk = 256;
  o.max_waiting = 128;
  o.max_model_len = 300;
  o.block_size = 16;
  o.num_blocks = 32 * 300 / 16 + 32;  // enough for all of them
  return o;
}

TEST(Simulation, AtTwiceTheSequenceLimitThroughputStays) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Simulation at_limit(machine(), seed), at_twice(machine(), seed);
    const Client client;
    for (auto [simulation, num_clients] : {std::pair(&at_limit, 32), std::pair(&at_twice, 64)}) {
      for (int i = 0; i < 6000; ++i) {
        while (int(simulation->num_live()) < num_clients) {
          ASSERT_TRUE(simulation->arrive(client));
        }
        simulation->step();
      }
    }
    at_limit.print("at the limit");
    at_twice.print("at twice the limit");
    // In rows: what the drawn requests ask for differs, too.
    EXPECT_GE(at_twice.rows_per_s(), 0.97 * at_limit.rows_per_s()) << "seed " << seed;
    at_limit.drain();
    at_twice.drain();
  }
}

TEST(Simulation, WithoutMemoryForAllItStillServesNearlyAsMuch) {
  const Client client;
  SchedulerOptions tight = machine();
  tight.num_blocks = machine().num_blocks / 5;
  Simulation ample(machine(), 7), scarce(tight, 7);
  for (Simulation* simulation : {&ample, &scarce}) {
    for (int i = 0; i < 6000; ++i) {
      while (simulation->num_live() < 64) ASSERT_TRUE(simulation->arrive(client));
      simulation->step();
    }
  }
  ample.print("memory for all");
  scarce.print("memory for a fifth");
  EXPECT_GT(scarce.stats().num_preemptions, 0);
  // Computed twice: little of what is computed.
  EXPECT_GE(scarce.rows_per_s(), 0.95 * ample.rows_per_s());
  const SchedulerStats stats = scarce.stats();
  EXPECT_LE(stats.num_recomputed_rows, (stats.num_prefill_rows + stats.num_decode_rows) / 10);
  scarce.drain();
}

TEST(Simulation, KeysGetEqualSharesHoweverManyAndLargeTheirRequests) {
  const Client many = {.key = "many", .max_prompt_tokens = 50, .max_tokens = 20};
  const Client large = {.key = "large", .max_prompt_tokens = 240, .max_tokens = 60};
  const Client talkative = {.key = "talkative", .max_prompt_tokens = 5, .max_tokens = 290};
  const std::pair<const Client*, size_t> clients[] = {{&many, 60}, {&large, 24}, {&talkative, 24}};
  Simulation simulation(machine(), 11);
  for (int i = 0; i < 8000; ++i) {
    for (const auto& [client, num] : clients) {
      while (simulation.num_live_of(*client) < num) ASSERT_TRUE(simulation.arrive(*client));
    }
    simulation.step();
  }
  simulation.print("three keys");
  for (const auto& [key, tokens] : simulation.tokens_by_key) {
    const double share = double(tokens) / double(simulation.num_rows);
    std::printf("  %-10s %.4f of the rows\n", key.c_str(), share);
    EXPECT_NEAR(share, 1.0 / 3, 0.01) << key;
  }
  simulation.drain();
}

TEST(Simulation, ABurstIsServedInOrderAndTheQueueIsBounded) {
  const Client client = {.max_prompt_tokens = 100, .max_tokens = 40};
  SchedulerOptions options = machine();
  options.max_prefill_chunk = options.max_num_batched_tokens;
  Simulation simulation(options, 13);
  const int64_t num_taken = options.max_waiting + options.max_num_seqs;  // every slot is free
  for (int burst = 0; burst < 5; ++burst) {
    for (int i = 0; i < 500; ++i) simulation.arrive(client);
    EXPECT_EQ(simulation.stats().num_waiting_requests, num_taken);
    while (simulation.num_live() > 0) simulation.step();
  }
  simulation.print("bursts of 500");
  EXPECT_EQ(simulation.num_ended, 5 * num_taken);
  EXPECT_EQ(simulation.num_refused, 5 * (500 - num_taken));
  EXPECT_TRUE(
      std::is_sorted(simulation.first_token_order.begin(), simulation.first_token_order.end()));
}

SchedulerOptions storm_machine() {
  SchedulerOptions options = machine();
  options.num_blocks = machine().num_blocks / 8;
  options.max_step_ms = 100;
  return options;
}

// Poisson arrivals near what the machine can do, of clients of every kind, in tight memory.
void run_storm(Simulation& simulation, uint32_t seed, int num_steps) {
  static const Client clients[] = {
      {.key = "chat", .max_prompt_tokens = 120, .max_tokens = 80, .cancel_rate = 0.2},
      {.key = "slow", .max_tokens = 60, .pause_rate = 0.02},
      {.key = "batch", .priority = 2, .max_prompt_tokens = 240, .max_tokens = 60},
      {.key = "many", .max_prompt_tokens = 100, .max_tokens = 50, .num_choices = 4},
      {.key = "hurry", .priority = -1, .max_prompt_tokens = 60, .timeout_ms = 3000},
  };
  std::mt19937 arrivals(seed + 1000);
  double next_ms = 0;
  for (int i = 0; i < num_steps; ++i) {
    while (next_ms <= simulation.now_ms) {
      simulation.arrive(clients[arrivals() % std::size(clients)]);
      next_ms -= 95 * std::log(1 - double(arrivals() % 1000000) / 1000000);
    }
    simulation.step();
    if (simulation.num_live() == 0) simulation.now_ms = std::max(simulation.now_ms, next_ms);
  }
}

TEST(Simulation, AStormOfEveryKindEndsWellAndStepsKeepTheirTime) {
  for (uint32_t seed = 21; seed <= 23; ++seed) {
    Simulation simulation(storm_machine(), seed);
    run_storm(simulation, seed, 5000);
    simulation.print("storm");
    EXPECT_GT(simulation.stats().num_preemptions, 0);
    const std::vector<double>& ms = simulation.decode_step_ms;
    const auto num_late = std::count_if(ms.begin(), ms.end(), [](double t) { return t > 110; });
    // One step of 50 is disturbed from outside; those are all that may be late.
    EXPECT_LE(double(num_late) / double(ms.size()), 0.03) << "seed " << seed;
    simulation.drain();
  }
}

TEST(Simulation, TheSameSeedGivesTheSamePlans) {
  uint64_t digests[3];
  for (int i = 0; i < 3; ++i) {
    Simulation simulation(storm_machine(), i == 2 ? 32 : 31);
    run_storm(simulation, 31, 1000);
    digests[i] = simulation.digest;
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
}

}  // namespace
}  // namespace millrace
