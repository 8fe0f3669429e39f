#include "sampler/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "sampler/random.h"

namespace millrace {
namespace {

SamplerScratch scratch;  // all tests share it: nothing may stay in it

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEos = 1;

Request make_request(SamplingParams params, std::vector<int32_t> prompt = {0}) {
  Request request;
  request.request_id = "r1";
  request.prompt_token_ids = std::move(prompt);
  request.sampling = std::move(params);
  return request;
}

Sampler make_sampler(const Request& request, size_t vocab_size, uint64_t seed = 0) {
  return Sampler(request, {int64_t(vocab_size), {kEos}, seed, 0});
}

int32_t sample_once(const SamplingParams& params, const std::vector<float>& logits,
                    uint64_t seed = 0) {
  Sampler sampler = make_sampler(make_request(params), logits.size(), seed);
  return sampler.sample(logits, scratch).value();
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

std::vector<float> random_logits(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<float> logits(count);
  for (float& l : logits) l = float(random() % 4096) / 256 - 8;  // coarse: ties happen
  return logits;
}

// The stages of the header from temperature on, written for clarity: sorted probabilities.
struct Candidate {
  int32_t id;
  double probability;
};
std::vector<Candidate> expected_distribution(const SamplingParams& params,
                                             const std::vector<float>& logits) {
  std::vector<Candidate> all;
  double max_logit = -1e30;
  for (float l : logits) max_logit = std::max(max_logit, double(l));
  for (size_t i = 0; i < logits.size(); ++i) {
    all.push_back({int32_t(i), std::exp((double(logits[i]) - max_logit) / params.temperature)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.probability > b.probability;
  });
  std::erase_if(all, [&](const Candidate& c) { return c.probability < params.min_p; });
  if (params.top_k > 0) all.resize(std::min(all.size(), size_t(params.top_k)));
  const auto normalise = [&] {
    double sum = 0;
    for (const Candidate& c : all) sum += c.probability;
    for (Candidate& c : all) c.probability /= sum;
  };
  normalise();
  double before = 0;
  size_t kept = 0;
  while (kept < all.size() && before < params.top_p) before += all[kept++].probability;
  all.resize(kept);
  normalise();
  return all;
}

TEST(Sampler, GreedyTakesTheLowestOfTheLikeliestIds) {
  EXPECT_EQ(sample_once(greedy(), {0, 3, 1, 3, 2}), 1);
  SamplingParams almost = greedy();
  almost.temperature = 0.9e-5;
  EXPECT_EQ(sample_once(almost, {0, 3, 1, 3, 2}), 1);
}

TEST(Sampler, DrawsFromTheDistributionThatTheHeaderDescribes) {
  struct Case {
    double temperature;
    int64_t top_k;
    double top_p, min_p;
  };
  const Case cases[] = {{1, 0, 1, 0},     {0.5, 0, 1, 0},   {2, 0, 1, 0},    {1, 3, 1, 0},
                        {1, 0, 0.8, 0},   {1, 0, 1, 0.1},   {1.3, 5, 0.9, 0}, {1, 4, 0.7, 0.05},
                        {1, 0, 0.999, 0}, {0.7, -1, 0.95, 0.02}};
  const std::vector<float> logits = {1.5f, -0.5f, 0.25f, 2, 0.25f, -3, 1, 0, -1, 1.75f};
  constexpr int kDraws = 40000;
  for (const Case& c : cases) {
    SamplingParams params;
    params.temperature = c.temperature;
    params.top_k = c.top_k;
    params.top_p = c.top_p;
    params.min_p = c.min_p;
    Sampler sampler = make_sampler(make_request(params), logits.size(), 11);
    std::vector<int> count(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      const int32_t token = sampler.sample(logits, scratch).value();
      ++count[size_t(token)];
      sampler.append(token);
    }
    double chi_square = 0;
    int num_seen = 0;
    for (const Candidate& candidate : expected_distribution(params, logits)) {
      const double want = candidate.probability * kDraws;
      chi_square += (count[size_t(candidate.id)] - want) * (count[size_t(candidate.id)] - want) / want;
      num_seen += count[size_t(candidate.id)];
    }
    EXPECT_EQ(num_seen, kDraws) << "a token outside the kept set, temperature " << c.temperature
                                << " top_k " << c.top_k << " top_p " << c.top_p << " min_p " << c.min_p;
    EXPECT_LT(chi_square, 35) << "temperature " << c.temperature << " top_k " << c.top_k
                              << " top_p " << c.top_p << " min_p " << c.min_p;  // 9 dof: p < 1e-4
  }
}

TEST(Sampler, DrawIsTheInverseOfTheRunningSumInOrderOfLikelihood) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::vector<float> logits = random_logits(seed, 2 + random() % 700);
    SamplingParams params;
    params.temperature = 0.25 + double(random() % 8) / 4;
    params.top_k = random() % 3 == 0 ? 1 + random() % 100 : 0;
    params.top_p = random() % 3 == 0 ? double(1 + random() % 99) / 100 : 1;
    params.min_p = random() % 3 == 0 ? double(random() % 20) / 100 : 0;
    const std::vector<Candidate> kept = expected_distribution(params, logits);
    const double u = uniform01(seed, 1, 0, RandomPurpose::kSample);
    double sum = 0;
    size_t i = 0;
    while (i + 1 < kept.size() && (sum += kept[i].probability) <= u) ++i;
    EXPECT_EQ(sample_once(params, logits, seed), kept[i].id) << "seed " << seed;
  }
}

TEST(Sampler, TheNarrowestSettingsAreTheGreedyChoice) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> logits = random_logits(seed, 50);
    const int32_t want = sample_once(greedy(), logits);
    SamplingParams top_k, top_p, cold;
    top_k.top_k = 1;
    top_p.top_p = 1e-9;
    cold.temperature = 1.01e-5;
    EXPECT_EQ(sample_once(top_k, logits, seed), want) << "seed " << seed;
    EXPECT_EQ(sample_once(top_p, logits, seed), want) << "seed " << seed;
    // Without ties the lowest temperature that still draws does the same.
    std::vector<float> distinct(50);
    for (size_t i = 0; i < 50; ++i) distinct[i] = float((i * 7 + seed) % 50) / 1024;
    EXPECT_EQ(sample_once(cold, distinct, seed), sample_once(greedy(), distinct)) << "seed " << seed;
  }
}

TEST(Sampler, MinPKeepsWhatIsLikelyEnoughBesideTheLikeliest) {
  SamplingParams params;
  params.min_p = 0.5;  // log 0.5 = -0.693
  for (uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_THAT(sample_once(params, {5, 4.4f, 4.2f, 0}, seed), ::testing::AnyOf(0, 1));
  }
  params.min_p = 1;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_THAT(sample_once(params, {5, 4.4f, 5, 0}, seed), ::testing::AnyOf(0, 2));
  }
}

TEST(Sampler, ATokenDependsOnSeedPositionAndChoiceOnly) {
  const std::vector<float> logits = random_logits(1, 1000);
  SamplingParams params;
  params.temperature = 2;
  const auto tokens = [&](uint64_t seed, int32_t choice) {
    Request request = make_request(params);
    request.choice_idx = choice;
    Sampler sampler = make_sampler(request, logits.size(), seed);
    std::vector<int32_t> out;
    for (int i = 0; i < 50; ++i) {
      out.push_back(sampler.sample(logits, scratch).value());
      sampler.append(out.back());
    }
    return out;
  };
  EXPECT_EQ(tokens(5, 0), tokens(5, 0));
  EXPECT_NE(tokens(5, 0), tokens(6, 0));
  EXPECT_NE(tokens(5, 0), tokens(5, 1));
  // The same position is reached with one more prompt token: the same draw.
  Sampler longer = make_sampler(make_request(params, {0, 7}), logits.size(), 5);
  EXPECT_EQ(longer.sample(logits, scratch).value(), tokens(5, 0)[1]);
}

TEST(Sampler, PoppedTokensLeaveNoTrace) {
  SamplingParams params;
  params.presence_penalty = 1;
  params.repetition_penalty = 1.5;
  params.bad_words_token_ids = {{3, 4}};
  const std::vector<float> logits = random_logits(2, 30);
  const Request request = make_request(params, {0, 5});
  Sampler straight = make_sampler(request, logits.size(), 9);
  Sampler detour = make_sampler(request, logits.size(), 9);
  for (int i = 0; i < 40; ++i) {
    for (int32_t wrong : {3, 8, 3}) detour.append(wrong);
    (void)detour.sample(logits, scratch).value();
    for (int k = 0; k < 3; ++k) detour.pop();
    const int32_t token = straight.sample(logits, scratch).value();
    ASSERT_EQ(detour.sample(logits, scratch).value(), token) << "token " << i;
    straight.append(token);
    detour.append(token);
  }
}

// Greedy tokens for given logits after a prompt and an output.
struct PenaltyCase {
  std::string what;
  SamplingParams params;
  std::vector<int32_t> prompt, output;
  std::vector<float> logits;
  int32_t want;
};

TEST(Sampler, PenaltiesFollowTheTable) {
  const auto with = [](double repetition, double frequency, double presence) {
    SamplingParams p = greedy();
    p.repetition_penalty = repetition;
    p.frequency_penalty = frequency;
    p.presence_penalty = presence;
    return p;
  };
  const PenaltyCase cases[] = {
      {"repetition divides positive logits of prompt tokens", with(2, 0, 0), {0}, {}, {3, 1.6f, 1}, 1},
      {"but not below what division gives", with(2, 0, 0), {0}, {}, {3, 1.4f, 1}, 0},
      {"repetition divides positive logits of output tokens", with(2, 0, 0), {2}, {0}, {3, 1.6f, 1}, 1},
      {"repetition multiplies negative logits", with(2, 0, 0), {0}, {}, {-1, -1.9f, -3}, 1},
      {"a token in both is penalised once", with(2, 0, 0), {0}, {0}, {3, 1.4f, 1}, 0},
      {"repetition below one rewards", with(0.5, 0, 0), {2}, {}, {3, 1, 1.6f}, 2},
      {"presence ignores the prompt", with(1, 0, 1), {0}, {}, {3, 2.5f, 1}, 0},
      {"presence counts once", with(1, 0, 1), {2}, {0, 0, 0}, {3, 1.9f, 1}, 0},
      {"presence is subtracted", with(1, 0, 1), {2}, {0}, {3, 2.1f, 1}, 1},
      {"frequency ignores the prompt", with(1, 1, 0), {0, 0, 0}, {}, {3, 2.5f, 1}, 0},
      {"frequency counts every time", with(1, 0.5, 0), {2}, {0, 0, 0}, {3, 1.6f, 1}, 1},
      {"but no more", with(1, 0.5, 0), {2}, {0, 0, 0}, {3, 1.4f, 1}, 0},
      {"repetition comes before the others", with(2, 0, 2), {2}, {0}, {4, 0.1f, -9}, 1},
      {"and scales only the raw logit", with(2, 0, 1), {2}, {0}, {4, 0.9f, -9}, 0},
      {"negative penalties reward", with(1, 0, -1), {2}, {1}, {1.5f, 0.6f, 0}, 1},
  };
  for (const PenaltyCase& c : cases) {
    Sampler sampler = make_sampler(make_request(c.params, c.prompt), c.logits.size());
    for (int32_t token : c.output) sampler.append(token);
    EXPECT_EQ(sampler.sample(c.logits, scratch).value(), c.want) << c.what;
  }
}

TEST(Sampler, LogitBiasIsAdded) {
  SamplingParams params = greedy();
  params.logit_bias = {{2, 1.5}};
  EXPECT_EQ(sample_once(params, {1, 0, 0}), 2);
  params.logit_bias = {{0, -100}, {2, 100}};
  EXPECT_EQ(sample_once(params, {90, 0, -9}), 2);
  params = {};
  params.logit_bias = {{2, 100}};
  for (uint64_t seed = 0; seed < 200; ++seed) EXPECT_EQ(sample_once(params, {3, 2, 1}, seed), 2);
  params.logit_bias = {{0, -100}};
  for (uint64_t seed = 0; seed < 200; ++seed) EXPECT_NE(sample_once(params, {3, 2, 1}, seed), 0);
}

TEST(Sampler, BannedTokensNeverComeOut) {
  SamplingParams params = greedy();
  params.allowed_token_ids = {2, 4};
  EXPECT_EQ(sample_once(params, {9, 8, 1, 7, 2}), 4);
  params.logit_bias = {{0, 100}};
  EXPECT_EQ(sample_once(params, {9, 8, 1, 7, 2}), 4);

  SamplingParams random;
  random.allowed_token_ids = {1, 3};
  std::set<int32_t> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) seen.insert(sample_once(random, {9, 1, 9, 1, 9}, seed));
  EXPECT_THAT(seen, ElementsAre(1, 3));
}

TEST(Sampler, ABadWordIsStoppedAtItsLastToken) {
  SamplingParams params = greedy();
  params.bad_words_token_ids = {{2, 3, 4}, {5}};
  const std::vector<float> wants_4 = {0, 0, 1, 0, 9, 10};
  Sampler sampler = make_sampler(make_request(params, {2, 3}), wants_4.size());
  EXPECT_EQ(sampler.sample(wants_4, scratch).value(), 4) << "the word began in the prompt";
  sampler.append(2);
  EXPECT_EQ(sampler.sample(wants_4, scratch).value(), 4);
  sampler.append(3);
  EXPECT_EQ(sampler.sample(wants_4, scratch).value(), 2);
  sampler.append(3);
  EXPECT_EQ(sampler.sample(wants_4, scratch).value(), 4);
}

TEST(Sampler, EndAndStopTokensWaitForMinTokens) {
  SamplingParams params = greedy();
  params.min_tokens = 2;
  params.stop_token_ids = {3};
  const std::vector<float> logits = {0, 9, 1, 8};  // wants kEos, then the stop token
  Sampler sampler = make_sampler(make_request(params), logits.size());
  EXPECT_EQ(sampler.sample(logits, scratch).value(), 2);
  sampler.append(2);
  EXPECT_EQ(sampler.sample(logits, scratch).value(), 2);
  sampler.append(2);
  EXPECT_EQ(sampler.sample(logits, scratch).value(), kEos);

  params.ignore_eos = true;
  EXPECT_EQ(sample_once(params, logits), kEos) << "an end token like any other";
}

TEST(Sampler, RefusesARequestWithoutAnyToken) {
  SamplingParams params = greedy();
  params.allowed_token_ids = {kEos};
  params.min_tokens = 1;
  Sampler sampler = make_sampler(make_request(params), 3);
  const Result<int32_t> token = sampler.sample(std::vector<float>{1, 2, 3}, scratch);
  ASSERT_FALSE(token.has_value());
  EXPECT_EQ(token.error().code, Code::kInvalidArgument);
  EXPECT_EQ(token.error().message,
            "request r1, position 1: allowed_token_ids, bad words and min_tokens leave no token");
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (float value : bad) {
    Sampler sampler = make_sampler(make_request({}, {0, 0, 0}), 3);
    const Result<int32_t> token = sampler.sample(std::vector<float>{1, value, 3}, scratch);
    ASSERT_FALSE(token.has_value());
    EXPECT_EQ(token.error().code, Code::kCorrupt);
    EXPECT_THAT(token.error().message, HasSubstr("request r1, position 3: logit of token 1 is "));
    EXPECT_THAT(token.error().message, HasSubstr(", expected a finite number"));
  }
  SamplingParams params = greedy();
  params.repetition_penalty = 1e-6;
  Sampler sampler = make_sampler(make_request(params, {2}), 3);
  const Result<int32_t> token = sampler.sample(std::vector<float>{1, 2, 1e38f}, scratch);
  ASSERT_FALSE(token.has_value());
  EXPECT_THAT(token.error().message, HasSubstr("logit of token 2 after penalties is inf"));
}

TEST(ComputeLogprobs, EqualsLogSoftmaxWithinARounding) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> logits = random_logits(seed, 777);
    long double sum = 0;
    for (float l : logits) sum += expl((long double)l);
    TokenLogprobs out;
    compute_logprobs(logits, 5, -1, out);
    ASSERT_EQ(out.top.size(), logits.size());
    for (const TokenLogprob& t : out.top) {
      const double want = double(logits[size_t(t.token_id)] - logl(sum));
      ASSERT_NEAR(t.logprob, want, 1e-6 * std::max(1.0, std::fabs(want))) << "seed " << seed;
    }
  }
}

TEST(ComputeLogprobs, ListsTheLikeliestInOrderWithTiesById) {
  const std::vector<float> logits = {1, 3, 2, 3, -1};
  TokenLogprobs out;
  compute_logprobs(logits, 2, 3, out);
  EXPECT_EQ(out.token.token_id, 2);
  EXPECT_EQ(out.token.rank, 3);
  ASSERT_EQ(out.top.size(), 3u);
  EXPECT_EQ(out.top[0].token_id, 1);
  EXPECT_EQ(out.top[1].token_id, 3);
  EXPECT_EQ(out.top[2].token_id, 2);
  EXPECT_EQ(out.top[2].logprob, out.token.logprob);
  EXPECT_EQ(out.top[1].rank, 2);
  compute_logprobs(logits, 3, 0, out);
  EXPECT_EQ(out.token.rank, 2);
  EXPECT_TRUE(out.top.empty());
}

TEST(ComputeLogprobs, SurvivesLogitsFarApart) {
  TokenLogprobs out;
  compute_logprobs(std::vector<float>{3e38f, -3e38f}, 1, 2, out);
  EXPECT_EQ(out.top[0].logprob, 0.0f);
  EXPECT_EQ(out.token.logprob, -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace millrace
