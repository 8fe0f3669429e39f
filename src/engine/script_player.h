#pragma once

#include <cstdint>
#include <optional>

#include "engine/script.h"
#include "request/request.h"
#include "scheduler/stop_rules.h"

namespace millrace {

// One choice of a request, answered by a line of a script: which event comes next, and when. The
// request's limits and stops count as they do for a model's answer.
//
// Pure: whoever has a clock asks. Reply and tokens must outlive it. Stays at one address.
class ScriptPlayer {
 public:
  // Due times stay below it.
  static constexpr int64_t kMaxDueNs = int64_t{1} << 61;

  // Requires: the request fits max_model_len.
  ScriptPlayer(const ScriptReply& reply, const Request& request, const OutputTokens& tokens,
               int64_t max_model_len);
  ScriptPlayer(const ScriptPlayer&) = delete;
  ScriptPlayer& operator=(const ScriptPlayer&) = delete;

  bool has_ended() const { return has_ended_; }
  int64_t num_tokens() const { return rules_ ? rules_->num_tokens() : 0; }

  // Requires of both: it has not ended.
  int64_t due_ns() const { return due_ns_; }  // of the next event, from the start of the answer
  StreamEvent next();
  // The last event, if the answer ends here.
  StreamEvent end(FinishReason reason);

 private:
  enum class Next { kToken, kEndToken, kLastEvent };

  void enter_piece(std::optional<int64_t> first_delay_ns);
  void begin_pass(std::optional<int64_t> first_delay_ns);
  void leave_token();
  void finish_pieces();
  void skip_banned();
  bool is_banned(int32_t token_id) const;
  std::optional<TokenLogprobs> logprobs_of(int32_t token_id, const ScriptPiece* piece) const;

  const ScriptReply& reply_;
  const OutputTokens& tokens_;
  Request request_;  // without its prompt; what the reply ignores is not in it
  int64_t num_prompt_tokens_;
  std::optional<StopRules> rules_;  // none: there is no room for a token

  Next next_ = Next::kToken;
  FinishReason last_reason_ = FinishReason::kStop;  // of kLastEvent
  size_t piece_idx_ = 0, token_idx_ = 0;
  int64_t num_passes_ = 0;  // over the pieces, whole ones
  int64_t num_played_pieces_ = 0;
  int64_t num_tokens_before_pass_ = 0;
  int64_t due_ns_ = 0;
  bool has_ended_ = false;
};

}  // namespace millrace
