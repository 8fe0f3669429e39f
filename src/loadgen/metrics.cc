#include "loadgen/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace millrace {
namespace {

constexpr double kSteadyPart = 0.95;
// A closed loop is short of a request for a moment whenever one ends; that is no end of a plateau.
constexpr int64_t kShortDipNs = 100'000'000;

double ms(int64_t ns) { return double(ns) / 1e6; }

// Times at which a number changes, and by how much.
using Changes = std::vector<std::pair<int64_t, int64_t>>;

// Calls on_interval(begin, end, number) for each interval with one number.
template <class OnInterval>
void each_interval(Changes changes, OnInterval on_interval) {
  std::sort(changes.begin(), changes.end());
  int64_t number = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    number += changes[i].second;
    if (i + 1 < changes.size() && changes[i + 1].first > changes[i].first) {
      on_interval(changes[i].first, changes[i + 1].first, number);
    }
  }
}

double integral_s(const Changes& changes) {
  double sum = 0;
  each_interval(changes, [&](int64_t begin, int64_t end, int64_t number) {
    sum += double(end - begin) / 1e9 * double(number);
  });
  return sum;
}

struct Interval {
  int64_t begin = 0, end = 0;
};

Interval steady_interval(const Changes& in_flight) {
  std::vector<std::pair<int64_t, int64_t>> by_number;  // number, nanoseconds
  int64_t all_ns = 0;
  each_interval(in_flight, [&](int64_t begin, int64_t end, int64_t number) {
    by_number.emplace_back(number, end - begin);
    all_ns += end - begin;
  });
  std::sort(by_number.begin(), by_number.end());
  int64_t sum = 0, usual = 0;
  for (const auto& [number, ns] : by_number) {
    sum += ns;
    usual = number;
    if (2 * sum >= all_ns) break;
  }
  Interval best, open;
  bool is_open = false;
  each_interval(in_flight, [&](int64_t begin, int64_t end, int64_t number) {
    const bool is_enough = double(number) >= kSteadyPart * double(usual);
    if (is_enough && !(is_open && begin - open.end <= kShortDipNs)) open.begin = begin;
    if (!is_enough) return;
    is_open = true;
    open.end = end;
    if (open.end - open.begin > best.end - best.begin) best = open;
  });
  return best;
}

// Tokens of each event: as the server said, or an answer's spread evenly, whole numbers.
std::vector<int64_t> tokens_of_chunks(const RequestRecord& record, bool& is_known) {
  const int64_t count = int64_t(record.chunks.size());
  const int64_t all = record.output_tokens.value_or(count);
  std::vector<int64_t> tokens;
  int64_t sum = 0;
  for (const Chunk& chunk : record.chunks) {
    tokens.push_back(chunk.num_tokens);
    sum += chunk.num_tokens;
  }
  is_known = sum == all;
  if (is_known) return tokens;
  is_known = all == count;
  for (int64_t i = 0; i < count; ++i) {
    tokens[size_t(i)] = all * (i + 1) / count - all * i / count;
  }
  return tokens;
}

bool is_off(int64_t found, int64_t planned) {
  return std::abs(double(found - planned)) > 0.01 * double(planned);
}

}  // namespace

double interactivity(double percentile_ms) { return percentile_ms > 0 ? 1000 / percentile_ms : 0; }

RunMetrics compute_metrics(const RunOutcome& run) {
  RunMetrics m;
  m.num_planned = run.num_planned;
  m.num_sent = int64_t(run.records.size());
  std::vector<double> prompt_length, output_length, ttft, ttft_scheduled, ttfv, itl, e2el,
      e2e_per_token, max_gap, lag, chunk_gap, token_gap;
  std::vector<int64_t> token_gap_weights;
  Changes in_flight, decoding;
  std::vector<std::pair<int64_t, int64_t>> arrivals;  // of tokens
  int64_t first_send = INT64_MAX, last_text = INT64_MIN;
  int64_t num_chunks = 0;

  for (const RequestRecord& record : run.records) {
    lag.push_back(ms(record.send_ns - record.ready_ns));
    in_flight.emplace_back(record.send_ns, 1);
    in_flight.emplace_back(std::max(record.done_ns, record.send_ns), -1);
    if (record.was_cancelled) {
      ++m.num_cancelled;
      continue;
    }
    if (!record.error.empty()) {
      ++m.num_failed;
      ++m.errors[record.error];
      m.error_examples.emplace(record.error, record.message);
      continue;
    }
    ++m.num_succeeded;
    ++m.finish_reasons[record.finish_reason];
    const int64_t first = record.chunks.front().at_ns, last = record.chunks.back().at_ns;
    first_send = std::min(first_send, record.send_ns);
    last_text = std::max(last_text, last);
    decoding.emplace_back(first, 1);
    decoding.emplace_back(last, -1);

    const int64_t osl = record.output_tokens.value_or(int64_t(record.chunks.size()));
    const int64_t isl = record.prompt_tokens.value_or(record.planned_prompt_tokens);
    m.num_without_usage += !record.output_tokens || !record.prompt_tokens;
    m.prompt_tokens += isl;
    m.output_tokens += osl;
    m.cached_tokens += record.cached_tokens.value_or(0);
    m.reasoning_tokens += record.reasoning_tokens.value_or(0);
    m.num_wrong_output_lengths += is_off(osl, record.planned_output_tokens);
    m.num_wrong_prompt_lengths += is_off(isl, record.planned_prompt_tokens);
    prompt_length.push_back(double(isl));
    output_length.push_back(double(osl));

    ttft.push_back(ms(first - record.send_ns));
    ttft_scheduled.push_back(ms(first - record.scheduled_ns));
    if (record.visible_ns) ttfv.push_back(ms(*record.visible_ns - record.send_ns));
    e2el.push_back(ms(last - record.send_ns));
    if (osl > 0) e2e_per_token.push_back(e2el.back() / double(osl));
    if (osl >= 2) itl.push_back((e2el.back() - ttft.back()) / double(osl - 1));

    bool is_known = true;
    const std::vector<int64_t> tokens = tokens_of_chunks(record, is_known);
    m.knows_chunk_tokens = m.knows_chunk_tokens && is_known;
    num_chunks += int64_t(record.chunks.size());
    double largest = 0;
    std::optional<int64_t> last_token_ns;
    for (size_t i = 0; i < record.chunks.size(); ++i) {
      const int64_t at_ns = record.chunks[i].at_ns;
      if (tokens[i] > 0) {
        arrivals.emplace_back(at_ns, tokens[i]);
        if (last_token_ns) {
          token_gap.push_back(ms(at_ns - *last_token_ns) / double(tokens[i]));
          token_gap_weights.push_back(tokens[i]);
        }
        last_token_ns = at_ns;
      }
      if (i == 0) continue;
      const double gap = ms(at_ns - record.chunks[i - 1].at_ns);
      chunk_gap.push_back(gap);
      largest = std::max(largest, gap);
    }
    if (record.chunks.size() > 1) max_gap.push_back(largest);
  }

  m.prompt_length = distribution(std::move(prompt_length));
  m.output_length = distribution(std::move(output_length));
  m.ttft = distribution(std::move(ttft));
  m.ttft_scheduled = distribution(std::move(ttft_scheduled));
  m.ttfv = distribution(std::move(ttfv));
  m.itl = distribution(std::move(itl));
  m.e2el = distribution(std::move(e2el));
  m.e2e_per_token = distribution(std::move(e2e_per_token));
  m.max_gap = distribution(std::move(max_gap));
  m.lag = distribution(std::move(lag));
  m.chunk_gap = distribution(std::move(chunk_gap));
  m.token_gap = distribution(token_gap, token_gap_weights);
  if (num_chunks > 0) m.mean_chunk_tokens = double(m.output_tokens) / double(num_chunks);
  if (m.num_succeeded == 0) return m;

  m.duration_s = double(last_text - first_send) / 1e9;
  if (m.duration_s > 0) {
    m.mean_concurrency = integral_s(in_flight) / m.duration_s;
    m.mean_decoding = integral_s(decoding) / m.duration_s;
    m.mean_waiting = m.mean_concurrency - m.mean_decoding;
  }
  each_interval(in_flight, [&](int64_t, int64_t, int64_t number) {
    m.max_concurrency = std::max(m.max_concurrency, number);
  });
  const Interval steady = steady_interval(in_flight);
  m.steady_s = double(steady.end - steady.begin) / 1e9;
  int64_t steady_tokens = 0;
  for (const auto& [at_ns, count] : arrivals) {
    if (steady.begin < at_ns && at_ns <= steady.end) steady_tokens += count;
  }
  if (m.steady_s > 0) m.steady_output_tokens_per_s = double(steady_tokens) / m.steady_s;
  return m;
}

std::vector<std::string> find_invalid(const RunOutcome& run, const RunMetrics& metrics,
                                      const ValidityRules& rules) {
  std::vector<std::string> reasons;
  const auto percent = [](double part) { return format(std::round(part * 1000) / 10, " %"); };
  if (run.was_interrupted) reasons.push_back("interrupted");
  if (metrics.num_succeeded == 0) reasons.push_back("no request succeeded");
  const int64_t num_ended = metrics.num_succeeded + metrics.num_failed;
  if (num_ended > 0 && double(metrics.num_failed) > 0.01 * double(num_ended)) {
    reasons.push_back(format("errors: ", percent(double(metrics.num_failed) / double(num_ended)),
                             ", at most 1 %"));
  }
  const double cpu = run.wall_ns > 0 ? double(run.client_cpu_ns) / double(run.wall_ns) : 0;
  if (cpu >= 0.8) reasons.push_back(format("client CPU: ", percent(cpu), " of a core, below 80 %"));
  if (rules.is_open_loop && metrics.lag.n > 0) {
    const double most = std::max(5.0, 0.01 * rules.mean_gap_ms);
    if (metrics.lag.p99 >= most) {
      reasons.push_back(format("lag: p99 ", metrics.lag.p99, " ms, below ", most, " ms"));
    }
  }
  if (rules.forces_output_length && metrics.num_succeeded > 0 &&
      double(metrics.num_wrong_output_lengths) > 0.01 * double(metrics.num_succeeded)) {
    reasons.push_back(
        format("output lengths: ",
               percent(double(metrics.num_wrong_output_lengths) / double(metrics.num_succeeded)),
               " of the answers are more than 1 % off, at most 1 %"));
  }
  if (!rules.was_warmed_up) reasons.push_back("the warm-up was not completed");
  if (rules.was_server_restarted.value_or(false)) reasons.push_back("the server was restarted");
  if (metrics.duration_s < rules.min_duration_s) {
    reasons.push_back(
        format("duration: ", metrics.duration_s, " s, at least ", rules.min_duration_s, " s"));
  }
  return reasons;
}

}  // namespace millrace
