#include "engine/script_player.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

constexpr float kUnscriptedLogprob = -1;

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Request without_prompt(const Request& request, bool ignores_limits) {
  Request kept;
  kept.sampling = request.sampling;
  kept.stop_scope = request.stop_scope;
  if (ignores_limits) {
    kept.sampling.max_tokens.reset();
    kept.sampling.min_tokens = 0;
    kept.sampling.stop.clear();
    kept.sampling.stop_token_ids.clear();
    kept.sampling.ignore_eos = false;
  }
  return kept;
}

}  // namespace

ScriptPlayer::ScriptPlayer(const ScriptReply& reply, const Request& request,
                           const OutputTokens& tokens, int64_t max_model_len)
    : reply_(reply),
      tokens_(tokens),
      request_(without_prompt(request, reply.ignore_limits)),
      num_prompt_tokens_(int64_t(request.prompt_token_ids.size())) {
  const int64_t num_left = max_model_len - num_prompt_tokens_;
  const int64_t max_tokens = request_.sampling.max_tokens.value_or(num_left);
  MR_CHECK_OP(max_tokens, <=, num_left);
  if (max_tokens > 0) {
    rules_.emplace(request_, tokens_, max_tokens);
    begin_pass(reply_.first_delay_ns);
    skip_banned();
    return;
  }
  due_ns_ = reply_.first_delay_ns.value_or(reply_.delay_ns);
  next_ = Next::kLastEvent;
  last_reason_ = FinishReason::kLength;
}

StreamEvent ScriptPlayer::next() {
  MR_CHECK(!has_ended_);
  if (next_ == Next::kLastEvent) return end(last_reason_);
  StreamEvent event;
  event.num_computed_tokens = num_prompt_tokens_ + num_tokens();
  const bool is_end_token = next_ == Next::kEndToken;
  const ScriptPiece* piece = is_end_token ? nullptr : &reply_.pieces[piece_idx_];
  const int32_t id = piece ? piece->token_ids[token_idx_] : tokens_.eos_token_ids[0];
  rules_->append(id, event);
  event.logprobs = logprobs_of(id, piece);
  has_ended_ = event.finish_reason.has_value();
  if (has_ended_) return event;
  if (is_end_token) {
    begin_pass(std::nullopt);  // an end token like others: the answer goes on
  } else {
    leave_token();
  }
  skip_banned();
  if (next_ == Next::kLastEvent && last_reason_ == FinishReason::kLength) {
    event.finish_reason = FinishReason::kLength;
    event.num_settled_bytes = rules_->num_bytes();
    has_ended_ = true;
  }
  return event;
}

StreamEvent ScriptPlayer::end(FinishReason reason) {
  MR_CHECK(!has_ended_);
  has_ended_ = true;
  StreamEvent event;
  // Only tokens that something followed were computed.
  const bool is_prompt_computed = num_tokens() > 0 || next_ == Next::kLastEvent;
  event.num_computed_tokens =
      is_prompt_computed ? num_prompt_tokens_ + std::max<int64_t>(num_tokens() - 1, 0) : 0;
  event.num_settled_bytes = rules_ ? rules_->num_bytes() : 0;
  event.finish_reason = reason;
  if (reason == FinishReason::kError) event.error = Error{Code::kCorrupt, reply_.error_message};
  return event;
}

void ScriptPlayer::begin_pass(std::optional<int64_t> first_delay_ns) {
  next_ = Next::kToken;
  num_tokens_before_pass_ = num_tokens();
  piece_idx_ = 0;
  enter_piece(first_delay_ns);
}

// Where the pieces may be over, or an error comes before the next of them.
void ScriptPlayer::enter_piece(std::optional<int64_t> first_delay_ns) {
  token_idx_ = 0;
  const bool has_failed = reply_.error_after && *reply_.error_after == num_played_pieces_;
  const bool is_over = piece_idx_ == reply_.pieces.size();
  if (has_failed || is_over) {
    // Nothing has come yet, so the time to the first event is what counts.
    if (first_delay_ns) due_ns_ += *first_delay_ns;
    if (has_failed) {
      next_ = Next::kLastEvent;
      last_reason_ = FinishReason::kError;
    } else {
      finish_pieces();
    }
    return;
  }
  const ScriptPiece& piece = reply_.pieces[piece_idx_];
  const int64_t delay_ns = first_delay_ns.value_or(piece.delay_ns.value_or(reply_.delay_ns));
  due_ns_ = std::min(due_ns_ + delay_ns, kMaxDueNs);
}

void ScriptPlayer::leave_token() {
  if (++token_idx_ < reply_.pieces[piece_idx_].token_ids.size()) return;
  ++num_played_pieces_;
  ++piece_idx_;
  enter_piece(std::nullopt);
}

// All pieces have been played: once more, or the end.
void ScriptPlayer::finish_pieces() {
  ++num_passes_;
  // What brought nothing brings nothing again.
  const bool may_repeat = num_tokens() > num_tokens_before_pass_;
  const bool repeats = !reply_.num_repeats || num_passes_ < *reply_.num_repeats;
  if (repeats && may_repeat) return begin_pass(std::nullopt);
  if (reply_.finish_reason != FinishReason::kStop) {
    next_ = Next::kLastEvent;
    last_reason_ = reply_.finish_reason;
    return;
  }
  // A model that must not end yet says something else.
  if (num_tokens() < request_.sampling.min_tokens && may_repeat) return begin_pass(std::nullopt);
  next_ = Next::kEndToken;
}

// Tokens that would end the output before min_tokens are never sampled.
bool ScriptPlayer::is_banned(int32_t token_id) const {
  const SamplingParams& params = request_.sampling;
  if (num_tokens() >= params.min_tokens) return false;
  return contains(params.stop_token_ids, token_id) ||
         (!params.ignore_eos && contains(tokens_.eos_token_ids, token_id));
}

void ScriptPlayer::skip_banned() {
  while (next_ == Next::kToken && is_banned(reply_.pieces[piece_idx_].token_ids[token_idx_])) {
    leave_token();
  }
}

std::optional<TokenLogprobs> ScriptPlayer::logprobs_of(int32_t token_id,
                                                       const ScriptPiece* piece) const {
  const std::optional<int64_t>& num_top = request_.sampling.logprobs;
  if (!num_top) return std::nullopt;
  TokenLogprobs logprobs;
  logprobs.token = {token_id, 1, kUnscriptedLogprob};
  if (piece == nullptr || !piece->logprob) return logprobs;
  logprobs.token.logprob = *piece->logprob;
  for (const TokenLogprob& other : piece->top) {
    const bool is_before = other.logprob != *piece->logprob ? other.logprob > *piece->logprob
                                                            : other.token_id < token_id;
    if (other.token_id != token_id && is_before) ++logprobs.token.rank;
  }
  for (const TokenLogprob& given : piece->top) {
    if (*num_top >= 0 && int64_t(logprobs.top.size()) == *num_top) break;
    logprobs.top.push_back(given);
    logprobs.top.back().rank = int64_t(logprobs.top.size());
  }
  return logprobs;
}

}  // namespace millrace
