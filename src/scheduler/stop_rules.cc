#include "scheduler/stop_rules.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {
namespace {

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void finish(FinishReason reason, int64_t num_settled_bytes, StreamEvent& event) {
  event.finish_reason = reason;
  event.num_settled_bytes = num_settled_bytes;
}

}  // namespace

StopRules::StopRules(const Request& request, const OutputTokens& tokens, int64_t max_tokens)
    : params_(request.sampling),
      scope_(request.stop_scope),
      tokens_(tokens),
      max_tokens_(max_tokens),
      matcher_(request.sampling.stop),
      scope_part_(scope_.begin_after_token_id ? ScopePart::kBefore : ScopePart::kInside) {
  MR_CHECK_OP(max_tokens, >=, 1);
}

void StopRules::append(int32_t token_id, StreamEvent& event) {
  ++num_tokens_;
  event.token_id = token_id;
  if (!params_.ignore_eos && contains(tokens_.eos_token_ids, token_id)) {
    return finish(FinishReason::kStop, num_bytes_, event);
  }
  if (contains(params_.stop_token_ids, token_id)) {
    event.stop_reason = token_id;
    return finish(FinishReason::kStop, num_bytes_, event);
  }
  const std::string_view bytes = output_bytes(token_id);
  num_bytes_ += int64_t(bytes.size());
  if (const auto match = match_stop_strings(token_id, bytes)) {
    event.stop_reason = params_.stop[match->stop_idx];
    const bool include = params_.include_stop_str_in_output;
    return finish(FinishReason::kStop, include ? match->end : match->begin, event);
  }
  if (num_tokens_ >= max_tokens_) return finish(FinishReason::kLength, num_bytes_, event);
  event.num_settled_bytes =
      params_.include_stop_str_in_output ? num_bytes_ : matcher_.num_settled_bytes();
}

std::string_view StopRules::output_bytes(int32_t token_id) const {
  if (params_.skip_special_tokens && tokens_.is_control[size_t(token_id)]) return {};
  return tokens_.bytes[size_t(token_id)];
}

// The tokens that open and close the scope are outside it.
std::optional<StopMatcher::Match> StopRules::match_stop_strings(int32_t token_id,
                                                                std::string_view bytes) {
  if (token_id == scope_.end_at_token_id) scope_part_ = ScopePart::kAfter;
  std::optional<StopMatcher::Match> match;
  if (scope_part_ == ScopePart::kInside && num_tokens_ > params_.min_tokens) {
    match = matcher_.append(bytes);
  } else {
    matcher_.skip(int64_t(bytes.size()));
  }
  if (scope_part_ == ScopePart::kBefore && token_id == scope_.begin_after_token_id) {
    scope_part_ = ScopePart::kInside;
  }
  return match;
}

}  // namespace millrace
