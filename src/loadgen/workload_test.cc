#include "loadgen/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/distribution.h"

namespace millrace {
namespace {

RequestMix mix_of(int64_t prompt_tokens, int64_t output_tokens, uint64_t seed = 0) {
  RequestMix mix;
  mix.lengths.prompt_tokens = prompt_tokens;
  mix.lengths.output_tokens = output_tokens;
  mix.seed = seed;
  return mix;
}

TEST(RequestMix, ExactLengthsAreExactAndPromptsDiffer) {
  const RequestMix mix = mix_of(1000, 50);
  std::set<uint64_t> keys;
  for (int64_t id = 0; id < 100; ++id) {
    const PlannedRequest request = mix.request(id);
    EXPECT_EQ(num_prompt_tokens(request), 1000);
    EXPECT_EQ(request.num_output_tokens, 50);
    keys.insert(request.prompt.at(0).key);
  }
  EXPECT_EQ(keys.size(), 100u);
}

TEST(RequestMix, TheSameSeedGivesTheSameRequestsAndAnotherGivesOthers) {
  RequestMix mix = mix_of(1000, 500, 1), same = mix, other = mix_of(1000, 500, 2);
  mix.lengths.range_ratio = same.lengths.range_ratio = other.lengths.range_ratio = 0.5;
  int num_different = 0;
  for (int64_t id = 0; id < 100; ++id) {
    EXPECT_EQ(num_prompt_tokens(mix.request(id)), num_prompt_tokens(same.request(id)));
    EXPECT_EQ(mix.request(id).prompt[0].key, same.request(id).prompt[0].key);
    EXPECT_NE(mix.request(id).prompt[0].key, other.request(id).prompt[0].key);
    num_different += num_prompt_tokens(mix.request(id)) != num_prompt_tokens(other.request(id));
  }
  EXPECT_GT(num_different, 90);
}

TEST(RequestMix, ARangeReachesBothItsEndsAndNothingBeyond) {
  RequestMix mix = mix_of(100, 10);
  mix.lengths.range_ratio = 0.8;
  std::vector<double> prompts;
  std::set<int64_t> outputs;
  for (int64_t id = 0; id < 5000; ++id) {
    prompts.push_back(double(num_prompt_tokens(mix.request(id))));
    outputs.insert(mix.request(id).num_output_tokens);
  }
  EXPECT_EQ(*std::min_element(prompts.begin(), prompts.end()), 80);
  const Distribution d = distribution(prompts);
  EXPECT_EQ(d.max, 100);
  EXPECT_NEAR(d.mean, 90, 0.5);  // 6 standard errors
  EXPECT_EQ(outputs, (std::set<int64_t>{8, 9, 10}));
}

TEST(RequestMix, ASharedPrefixIsTheSameForAllAndBesideThePrompt) {
  RequestMix mix = mix_of(100, 10);
  mix.shared_prefix_tokens = 40;
  const PlannedRequest a = mix.request(0), b = mix.request(1);
  ASSERT_EQ(a.prompt.size(), 2u);
  EXPECT_EQ(a.prompt[0].key, b.prompt[0].key);
  EXPECT_EQ(a.prompt[0].num_tokens, 40);
  EXPECT_NE(a.prompt[1].key, b.prompt[1].key);
  EXPECT_EQ(num_prompt_tokens(a), 140);
}

TEST(RequestMix, SamplesAreDrawnAsPairs) {
  RequestMix mix = mix_of(1, 1);
  mix.lengths.samples = {{10, 1}, {20, 2}, {30, 3}};
  std::set<int64_t> seen;
  for (int64_t id = 0; id < 100; ++id) {
    const PlannedRequest request = mix.request(id);
    EXPECT_EQ(num_prompt_tokens(request), 10 * request.num_output_tokens);
    seen.insert(request.num_output_tokens);
  }
  EXPECT_EQ(seen.size(), 3u);
}

TEST(ClosedLoop, KeepsItsNumberOfRequestsRunningAndEndsWithTheLast) {
  ClosedLoop workload(mix_of(10, 10), /*num_requests=*/5, /*concurrency=*/2);
  int64_t now = 100;
  std::vector<int64_t> running, sent;
  while (workload.next_ns() || !running.empty()) {
    while (workload.next_ns()) {
      EXPECT_LE(*workload.next_ns(), now);
      const PlannedRequest request = workload.take(now);
      EXPECT_EQ(request.scheduled_ns, now);
      running.push_back(request.id);
      sent.push_back(request.id);
    }
    EXPECT_EQ(running.size(), std::min<size_t>(2, 5 - sent.size() + running.size()));
    now += 10;
    workload.on_end(running.front(), now);
    running.erase(running.begin());
  }
  EXPECT_EQ(sent, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

// Times at which the requests of an open loop are due, in seconds.
std::vector<double> arrivals(RequestRate rate, double burstiness, int64_t count, uint64_t seed) {
  OpenLoop workload(mix_of(1, 1, seed), count, rate, burstiness, std::nullopt);
  std::vector<double> times;
  while (const auto next = workload.next_ns()) {
    times.push_back(double(workload.take(*next).scheduled_ns) / 1e9);
  }
  return times;
}

Distribution gaps(const std::vector<double>& times) {
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  return distribution(gaps);
}

TEST(OpenLoop, GapsHaveTheRateAndTheBurstinessThatWereAskedFor) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    for (const uint64_t seed : {1, 2, 3}) {
      RequestRate rate;
      rate.rate = 20;
      const int64_t count = 20000;
      const Distribution d = gaps(arrivals(rate, burstiness, count, seed));
      const double spread = 1 / std::sqrt(burstiness);  // of a gap, as a part of its mean
      EXPECT_NEAR(d.mean * 20, 1, 5 * spread / std::sqrt(double(count))) << burstiness << seed;
      EXPECT_NEAR(d.std / d.mean, spread, 0.05 * spread) << burstiness << " seed " << seed;
    }
  }
}

TEST(OpenLoop, PoissonGapsAreExponential) {
  RequestRate rate;
  rate.rate = 1;
  const Distribution d = gaps(arrivals(rate, 1, 50000, 7));
  EXPECT_NEAR(d.p50, std::log(2.0), 0.03);
  EXPECT_NEAR(d.p90, std::log(10.0), 0.08);
  EXPECT_NEAR(d.p99, std::log(100.0), 0.3);
}

TEST(OpenLoop, CappedRequestsKeepTheirTimeAndWaitForTheirTurn) {
  RequestRate rate;
  rate.rate = 1000;
  OpenLoop workload(mix_of(1, 1), 3, rate, 1, /*max_concurrency=*/1);
  const PlannedRequest first = workload.take(*workload.next_ns());
  EXPECT_EQ(first.ready_ns, first.scheduled_ns);
  EXPECT_FALSE(workload.next_ns().has_value());
  const int64_t end_ns = 5'000'000'000;
  workload.on_end(first.id, end_ns);
  ASSERT_EQ(workload.next_ns(), end_ns);
  const PlannedRequest second = workload.take(end_ns);
  EXPECT_LT(second.scheduled_ns, end_ns);
  EXPECT_EQ(second.ready_ns, end_ns);
}

TEST(RequestRate, ARampIsTheInverseOfTheRatesIntegral) {
  for (const auto ramp : {RequestRate::Ramp::kLinear, RequestRate::Ramp::kExponential}) {
    for (const double from : {0.5, 4.0, 20.0}) {
      const RequestRate rate{.rate = 4, .ramp = ramp, .ramp_from = from, .ramp_s = 10};
      double sum = 0;
      constexpr double kStep = 1e-4;
      for (double t = 0; t < 20; t += kStep) {  // by the midpoint rule
        sum += rate.at(t + kStep / 2) * kStep;
        if (std::fmod(t, 1.0) < kStep) {
          EXPECT_NEAR(rate.seconds_until(sum), t + kStep, 1e-3) << from << " at " << t;
        }
      }
    }
  }
}

TEST(OpenLoop, ARampSendsAsManyRequestsAsItsRateSays) {
  const RequestRate rate{
      .rate = 100, .ramp = RequestRate::Ramp::kLinear, .ramp_from = 1e-3, .ramp_s = 100};
  const std::vector<double> times = arrivals(rate, 1, 15000, 3);
  const auto count = [&](double begin, double end) {
    return std::count_if(times.begin(), times.end(),
                         [&](double t) { return begin <= t && t < end; });
  };
  EXPECT_NEAR(double(count(0, 50)), 1250, 5 * std::sqrt(1250));
  EXPECT_NEAR(double(count(50, 100)), 3750, 5 * std::sqrt(3750));
  EXPECT_NEAR(double(count(100, 150)), 5000, 5 * std::sqrt(5000));
}

}  // namespace
}  // namespace millrace
