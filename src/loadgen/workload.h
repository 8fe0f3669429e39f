#pragma once

// What is sent, and when. Pure: whoever runs a workload tells it the time, in nanoseconds from the
// start of the run.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"

namespace millrace {

// So many tokens of text; equal keys stand for equal tokens, different keys for different ones.
struct PromptPart {
  uint64_t key = 0;
  int64_t num_tokens = 0;
};

struct PlannedRequest {
  int64_t id = 0;            // counts from 0 in a run
  int64_t scheduled_ns = 0;  // when the plan wanted it sent
  int64_t ready_ns = 0;  // when nothing of the plan held it back any more: not before scheduled_ns
  std::vector<PromptPart> prompt;
  int64_t num_output_tokens = 0;
};

int64_t num_prompt_tokens(const PlannedRequest& request);

// A source of requests. Whoever runs it sends what next_ns() says is due and tells what has ended.
class Workload {
 public:
  virtual ~Workload() = default;
  // When the next request is due, maybe in the past; none: not before another has ended, or never.
  virtual std::optional<int64_t> next_ns() const = 0;
  // Requires: next_ns() <= now_ns.
  virtual PlannedRequest take(int64_t now_ns) = 0;
  virtual void on_end(int64_t id, int64_t now_ns) = 0;
  virtual int64_t num_requests() const = 0;  // in all
};

// How long prompts and answers are: `prompt_tokens` and `output_tokens` exactly, or uniform from
// `range_ratio` of them up to them; or pairs drawn from `samples`.
struct Lengths {
  int64_t prompt_tokens = 1024;
  int64_t output_tokens = 128;
  double range_ratio = 1;
  std::vector<std::pair<int64_t, int64_t>> samples;  // prompt, output; empty: the above
};

// The requests of W1 and W2, without their times: the i-th is a function of the seed and of i.
struct RequestMix {
  Lengths lengths;
  int64_t shared_prefix_tokens = 0;  // in front of every prompt, beside its own length
  uint64_t seed = 0;

  PlannedRequest request(int64_t id) const;
};

// Always `concurrency` requests, until there have been `num_requests`.
class ClosedLoop : public Workload {
 public:
  ClosedLoop(RequestMix mix, int64_t num_requests, int64_t concurrency);
  std::optional<int64_t> next_ns() const override;
  PlannedRequest take(int64_t now_ns) override;
  void on_end(int64_t id, int64_t now_ns) override;
  int64_t num_requests() const override { return num_requests_; }

 private:
  const RequestMix mix_;
  const int64_t num_requests_, concurrency_;
  int64_t num_taken_ = 0, num_running_ = 0;
  int64_t free_since_ns_ = 0;
};

// Requests per second over time: `rate` for ever, or from `ramp_from` to it within `ramp_s`
// seconds.
struct RequestRate {
  enum class Ramp { kNone, kLinear, kExponential };

  double rate = 1;
  Ramp ramp = Ramp::kNone;
  double ramp_from = 1, ramp_s = 0;

  // By when so many requests are expected. Inverts the integral of the rate.
  double seconds_until(double num_requests) const;
  double at(double seconds) const;
};

// Requests come when they come: gaps are gamma distributed, of shape `burstiness` (1: Poisson;
// below: in bursts; above: more even), in the time in which the rate is 1. With `max_concurrency`
// they wait for their turn.
class OpenLoop : public Workload {
 public:
  OpenLoop(RequestMix mix, int64_t num_requests, RequestRate rate, double burstiness,
           std::optional<int64_t> max_concurrency);
  std::optional<int64_t> next_ns() const override;
  PlannedRequest take(int64_t now_ns) override;
  void on_end(int64_t id, int64_t now_ns) override;
  int64_t num_requests() const override { return num_requests_; }

 private:
  void draw();

  const RequestMix mix_;
  const int64_t num_requests_;
  const RequestRate rate_;
  const double burstiness_;
  const std::optional<int64_t> max_concurrency_;
  Random random_;
  double num_expected_ = 0;
  int64_t num_taken_ = 0, num_running_ = 0;
  int64_t scheduled_ns_ = 0;   // of the next one
  int64_t free_since_ns_ = 0;  // since then fewer run than may
};

}  // namespace millrace
