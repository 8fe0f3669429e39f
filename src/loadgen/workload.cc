#include "loadgen/workload.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"

namespace millrace {
namespace {

// What a draw is for, so that a change of one kind of draw leaves the others as they are.
enum Purpose : uint64_t { kPrompt = 1, kLengths, kGaps, kSharedPrefix };

}  // namespace

int64_t num_prompt_tokens(const PlannedRequest& request) {
  int64_t sum = 0;
  for (const PromptPart& part : request.prompt) sum += part.num_tokens;
  return sum;
}

PlannedRequest RequestMix::request(int64_t id) const {
  PlannedRequest request;
  request.id = id;
  Random random(mix64(mix64(seed, kLengths), uint64_t(id)));
  int64_t prompt_tokens = lengths.prompt_tokens;
  request.num_output_tokens = lengths.output_tokens;
  if (!lengths.samples.empty()) {
    const int64_t last = int64_t(lengths.samples.size()) - 1;
    std::tie(prompt_tokens, request.num_output_tokens) =
        lengths.samples[size_t(random.between(0, last))];
  } else if (lengths.range_ratio < 1) {
    const auto draw = [&](int64_t most) {
      return random.between(std::max<int64_t>(1, int64_t(lengths.range_ratio * double(most))),
                            most);
    };
    prompt_tokens = draw(prompt_tokens);
    request.num_output_tokens = draw(request.num_output_tokens);
  }
  if (shared_prefix_tokens > 0) {
    request.prompt.push_back({mix64(seed, kSharedPrefix), shared_prefix_tokens});
  }
  if (prompt_tokens > 0) {
    request.prompt.push_back({mix64(mix64(seed, kPrompt), uint64_t(id)), prompt_tokens});
  }
  return request;
}

ClosedLoop::ClosedLoop(RequestMix mix, int64_t num_requests, int64_t concurrency)
    : mix_(std::move(mix)), num_requests_(num_requests), concurrency_(concurrency) {
  MR_CHECK(concurrency > 0);
}

std::optional<int64_t> ClosedLoop::next_ns() const {
  if (num_taken_ == num_requests_ || num_running_ == concurrency_) return std::nullopt;
  return free_since_ns_;
}

PlannedRequest ClosedLoop::take(int64_t now_ns) {
  MR_CHECK(next_ns().has_value());
  PlannedRequest request = mix_.request(num_taken_++);
  ++num_running_;
  request.scheduled_ns = request.ready_ns = now_ns;
  return request;
}

void ClosedLoop::on_end(int64_t, int64_t now_ns) {
  --num_running_;
  free_since_ns_ = now_ns;
}

double RequestRate::at(double seconds) const {
  if (ramp == Ramp::kNone || seconds >= ramp_s) return rate;
  const double part = seconds / ramp_s;
  return ramp == Ramp::kLinear ? ramp_from + (rate - ramp_from) * part
                               : ramp_from * std::pow(rate / ramp_from, part);
}

double RequestRate::seconds_until(double num_requests) const {
  if (ramp == Ramp::kNone || ramp_s <= 0) return num_requests / rate;
  const double growth = rate - ramp_from;
  if (std::abs(growth) < 1e-9 * rate) return num_requests / rate;
  if (ramp == Ramp::kLinear) {
    const double in_ramp = (ramp_from + rate) / 2 * ramp_s;
    if (num_requests > in_ramp) return ramp_s + (num_requests - in_ramp) / rate;
    // num = from t + growth t^2 / (2 T), solved so that nothing cancels where growth is small.
    const double root =
        std::sqrt(std::max(0.0, ramp_from * ramp_from + 2 * growth / ramp_s * num_requests));
    return 2 * num_requests / (ramp_from + root);
  }
  const double slope = std::log(rate / ramp_from) / ramp_s;
  const double in_ramp = growth / slope;
  if (num_requests > in_ramp) return ramp_s + (num_requests - in_ramp) / rate;
  return std::log1p(num_requests * slope / ramp_from) / slope;
}

OpenLoop::OpenLoop(RequestMix mix, int64_t num_requests, RequestRate rate, double burstiness,
                   std::optional<int64_t> max_concurrency)
    : mix_(std::move(mix)),
      num_requests_(num_requests),
      rate_(rate),
      burstiness_(burstiness),
      max_concurrency_(max_concurrency),
      random_(mix64(mix_.seed, kGaps)) {
  MR_CHECK(rate.rate > 0 && burstiness > 0 && max_concurrency.value_or(1) > 0);
  draw();
}

void OpenLoop::draw() {
  num_expected_ += random_.gamma(burstiness_) / burstiness_;
  scheduled_ns_ = int64_t(rate_.seconds_until(num_expected_) * 1e9);
}

std::optional<int64_t> OpenLoop::next_ns() const {
  if (num_taken_ == num_requests_) return std::nullopt;
  if (max_concurrency_ && num_running_ >= *max_concurrency_) return std::nullopt;
  return std::max(scheduled_ns_, free_since_ns_);
}

PlannedRequest OpenLoop::take(int64_t now_ns) {
  const std::optional<int64_t> due = next_ns();
  MR_CHECK(due.has_value() && *due <= now_ns);
  PlannedRequest request = mix_.request(num_taken_++);
  request.scheduled_ns = scheduled_ns_;
  request.ready_ns = *due;
  ++num_running_;
  draw();
  return request;
}

void OpenLoop::on_end(int64_t, int64_t now_ns) {
  if (max_concurrency_ && num_running_ == *max_concurrency_) free_since_ns_ = now_ns;
  --num_running_;
}

}  // namespace millrace
