#include "sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/format.h"
#include "kernels/math.h"
#include "sampler/random.h"

namespace millrace {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// The order of tokens: likeliest first, lower ids first on ties.
struct Likelier {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

int32_t argmax(std::span<const float> logits) {
  return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The contract's lane sum (kernels/kernels.h), in double: element i goes to lane i mod 16, and the
// lanes end in one fixed tree.
class LaneSum {
 public:
  void add(size_t i, double value) { lanes_[i % 16] += value; }
  double total() {
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) lanes_[l] += lanes_[l + half];
    }
    return lanes_[0];
  }

 private:
  double lanes_[16] = {};
};

Error error_at(Code code, std::string_view request_id, int64_t position, const std::string& what) {
  return {code, format("request ", request_id, ", position ", position, ": ", what)};
}

}  // namespace

Sampler::Sampler(const Request& request, Options options)
    : request_id_(request.request_id),
      params_(request.sampling),
      options_(std::move(options)),
      choice_idx_(uint32_t(request.choice_idx)),
      num_prompt_tokens_(int64_t(request.prompt_token_ids.size())) {
  const auto vocab_size = size_t(options_.vocab_size);
  output_.reserve(size_t(std::clamp<int64_t>(options_.max_tokens, 0, 1 << 20)));
  if (has_penalties()) {
    seen_.resize(vocab_size);
    seen_ids_.reserve(vocab_size);
    for (int32_t id : request.prompt_token_ids) {
      seen_[size_t(id)].in_prompt = true;
      see(id);
    }
  }
  if (!params_.allowed_token_ids.empty()) {
    is_allowed_.resize(vocab_size);
    for (int32_t id : params_.allowed_token_ids) is_allowed_[size_t(id)] = 1;
  }
}

bool Sampler::has_penalties() const {
  return params_.repetition_penalty != 1 || params_.frequency_penalty != 0 ||
         params_.presence_penalty != 0;
}

// Neither bans nor penalties nor biases change anything now.
bool Sampler::leaves_logits_alone() const {
  return !has_penalties() && params_.logit_bias.empty() && is_allowed_.empty() &&
         params_.bad_words_token_ids.empty() && num_output_tokens() >= params_.min_tokens;
}

void Sampler::see(int32_t token_id) {
  if (!std::exchange(seen_[size_t(token_id)].listed, true)) seen_ids_.push_back(token_id);
}

void Sampler::append(int32_t token_id) {
  MR_CHECK(token_id >= 0);
  MR_CHECK_OP(token_id, <, options_.vocab_size);
  output_.push_back(token_id);
  if (seen_.empty()) return;
  ++seen_[size_t(token_id)].output_count;
  see(token_id);
}

void Sampler::pop() {
  MR_CHECK_OP(num_output_tokens(), >, 0);
  if (!seen_.empty()) --seen_[size_t(output_.back())].output_count;
  output_.pop_back();
}

Error Sampler::error(Code code, const std::string& what) const {
  return error_at(code, request_id_, num_tokens(), what);
}

void Sampler::ban_tokens(std::vector<float>& logits) const {
  const auto ban = [&](int32_t id) { logits[size_t(id)] = kBanned; };
  for (size_t id = 0; id < is_allowed_.size(); ++id) {
    if (!is_allowed_[id]) logits[id] = kBanned;
  }
  for (const std::vector<int32_t>& word : params_.bad_words_token_ids) {
    const size_t num_before = word.size() - 1;
    if (num_before <= output_.size() &&
        std::equal(word.begin(), word.end() - 1, output_.end() - ptrdiff_t(num_before))) {
      ban(word.back());
    }
  }
  if (num_output_tokens() < params_.min_tokens) {
    for (int32_t id : params_.stop_token_ids) ban(id);
    if (!params_.ignore_eos) {
      for (int32_t id : options_.eos_token_ids) ban(id);
    }
  }
}

void Sampler::apply_penalties(std::vector<float>& logits) const {
  const float repetition = float(params_.repetition_penalty);
  const float frequency = float(params_.frequency_penalty);
  const float presence = float(params_.presence_penalty);
  for (int32_t id : seen_ids_) {
    const Seen& seen = seen_[size_t(id)];
    float& logit = logits[size_t(id)];
    if (seen.in_prompt || seen.output_count > 0) {
      logit = logit > 0 ? logit / repetition : logit * repetition;
    }
    if (seen.output_count > 0) {
      logit -= frequency * float(seen.output_count);
      logit -= presence;
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) {
    logits[size_t(id)] += float(bias);
  }
}

// Candidates by id: those that bans and min_p leave, with their weights.
void Sampler::keep_candidates(float max_logit, SamplerScratch& scratch) const {
  scratch.candidates_.clear();
  scratch.num_sorted_ = 0;
  for (size_t id = 0; id < scratch.logits_.size(); ++id) {
    if (scratch.logits_[id] == kBanned) continue;
    const double distance = double(scratch.logits_[id]) - double(max_logit);
    scratch.weights_[id] = exp_f64(distance / params_.temperature);
    if (scratch.weights_[id] >= params_.min_p) scratch.candidates_.push_back(int32_t(id));
  }
}

int32_t Sampler::draw(double u, SamplerScratch& scratch) const {
  std::vector<int32_t>& candidates = scratch.candidates_;
  const Likelier likelier{scratch.logits_.data()};
  // Brings the first `count` candidates into their final order. Few are needed as a rule, so a
  // full sort would be waste; the order is total, so how it is reached makes no difference.
  const auto sort_candidates = [&](size_t count) {
    count = std::min(count, candidates.size());
    if (count <= scratch.num_sorted_) return;
    const auto begin = candidates.begin() + ptrdiff_t(scratch.num_sorted_);
    const auto end = candidates.begin() + ptrdiff_t(count);
    if (end != candidates.end()) std::nth_element(begin, end, candidates.end(), likelier);
    std::sort(begin, end, likelier);
    scratch.num_sorted_ = count;
  };
  if (params_.top_k > 0 && size_t(params_.top_k) < candidates.size()) {
    sort_candidates(size_t(params_.top_k));
    candidates.resize(size_t(params_.top_k));
  }
  const auto weight = [&](size_t i) {
    if (i >= scratch.num_sorted_) sort_candidates(std::max<size_t>(64, 4 * scratch.num_sorted_));
    return scratch.weights_[size_t(candidates[i])];
  };
  LaneSum lanes;
  for (int32_t id : candidates) lanes.add(size_t(id), scratch.weights_[size_t(id)]);
  double mass = lanes.total();

  size_t num_kept = candidates.size();
  if (params_.top_p < 1) {
    const double limit = params_.top_p * mass;
    double sum = 0;
    for (num_kept = 0; num_kept < candidates.size() && sum < limit; ++num_kept) {
      sum += weight(num_kept);
    }
    mass = sum;
  }
  const double target = u * mass;
  double sum = 0;
  for (size_t i = 0; i < num_kept; ++i) {
    sum += weight(i);
    if (sum > target) return candidates[i];
  }
  // The running sum may end below `mass` by a rounding; u was next to 1.
  return candidates[num_kept - 1];
}

Result<int32_t> Sampler::sample(std::span<const float> logits, SamplerScratch& scratch) {
  MR_CHECK_OP(int64_t(logits.size()), ==, options_.vocab_size);
  RETURN_IF_ERROR(check_finite(logits, request_id_, num_tokens()));
  const bool is_greedy = params_.temperature < kGreedyTemperature;
  if (is_greedy && leaves_logits_alone()) return argmax(logits);
  std::vector<float>& changed = scratch.logits_;
  changed.assign(logits.begin(), logits.end());
  ban_tokens(changed);
  apply_penalties(changed);
  const int32_t best = argmax(changed);
  const float max_logit = changed[size_t(best)];
  if (max_logit == kBanned) {
    return error(Code::kInvalidArgument,
                 "allowed_token_ids, bad words and min_tokens leave no token");
  }
  if (!std::isfinite(max_logit)) {
    return error(Code::kCorrupt, format("logit of token ", best, " after penalties is ", max_logit,
                                        ", expected a finite number"));
  }
  if (is_greedy) return best;
  scratch.weights_.resize(logits.size());
  scratch.candidates_.reserve(logits.size());
  keep_candidates(max_logit, scratch);
  return draw(uniform01(options_.seed, num_tokens(), choice_idx_, RandomPurpose::kSample), scratch);
}

Status check_finite(std::span<const float> logits, std::string_view request_id, int64_t position) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!std::isfinite(logits[id])) {
      return error_at(Code::kCorrupt, request_id, position,
                      format("logit of token ", id, " is ", logits[id],
                             ", expected a finite number"));
    }
  }
  return {};
}

void compute_logprobs(std::span<const float> logits, int32_t token_id, int64_t num_top,
                      TokenLogprobs& out) {
  const Likelier likelier{logits.data()};
  const double max_logit = *std::max_element(logits.begin(), logits.end());
  LaneSum sum;
  out.token = {token_id, 1, 0};
  for (size_t id = 0; id < logits.size(); ++id) {
    sum.add(id, exp_f64(double(logits[id]) - max_logit));
    if (likelier(int32_t(id), token_id)) ++out.token.rank;
  }
  const double log_sum = log_f64(sum.total());
  const auto logprob = [&](int32_t id) {
    return float((double(logits[size_t(id)]) - max_logit) - log_sum);
  };
  out.token.logprob = logprob(token_id);

  // A heap of the best so far, the worst of them in front.
  const size_t count = num_top < 0 ? logits.size() : std::min(size_t(num_top), logits.size());
  const auto better = [&](const TokenLogprob& a, const TokenLogprob& b) {
    return likelier(a.token_id, b.token_id);
  };
  out.top.clear();
  for (size_t id = 0; id < logits.size() && count > 0; ++id) {
    if (out.top.size() == count) {
      if (!likelier(int32_t(id), out.top.front().token_id)) continue;
      std::pop_heap(out.top.begin(), out.top.end(), better);
      out.top.pop_back();
    }
    out.top.push_back({int32_t(id), 0, 0});
    std::push_heap(out.top.begin(), out.top.end(), better);
  }
  std::sort_heap(out.top.begin(), out.top.end(), better);
  for (size_t i = 0; i < out.top.size(); ++i) {
    out.top[i].rank = int64_t(i) + 1;
    out.top[i].logprob = logprob(out.top[i].token_id);
  }
}

}  // namespace millrace
