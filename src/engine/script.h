#pragma once

// Answers that the scripted engine gives instead of a model's, read from lines of JSON.
// docs/scripted-engine.md describes the file.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "request/request.h"

namespace millrace {

inline constexpr size_t kMaxScriptBytes = size_t{1} << 26;
inline constexpr size_t kMaxScriptLineBytes = size_t{1} << 20;
inline constexpr size_t kMaxScriptLines = 65536;
inline constexpr size_t kMaxScriptKeyBytes = 4096;
inline constexpr size_t kMaxScriptPieces = 65536;       // of a line
inline constexpr size_t kMaxScriptTopLogprobs = 128;    // of a piece
inline constexpr double kMaxScriptDelayMs = 3'600'000;  // one hour
inline constexpr int64_t kMaxScriptRepeat = 1'000'000;

// Tokens that come at the same time.
struct ScriptPiece {
  std::vector<int32_t> token_ids;   // at least one
  std::optional<int64_t> delay_ns;  // before it; none: the reply's
  std::optional<float> logprob;     // of each of its tokens
  std::vector<TokenLogprob> top;    // best first, ranks not set; only with a logprob
};

struct ScriptReply {
  std::string key;                    // empty: any prompt
  std::optional<int32_t> choice_idx;  // none: any choice
  std::vector<ScriptPiece> pieces;
  std::optional<int64_t> first_delay_ns;  // before the first piece, whatever that one says
  int64_t delay_ns = 0;
  std::optional<int64_t> num_repeats = 1;  // none: until something ends it
  FinishReason finish_reason = FinishReason::kStop;
  std::string error_message;           // of kError
  std::optional<int64_t> error_after;  // pieces; none: all
  bool ignore_limits = false;
};

// The replies of a script, and whose turn it is.
//
// Threading: find() from any thread; choose() from one at a time.
class Script {
 public:
  // Refuses by line and field what it does not know, and bytes that no token stands for.
  // Requires: lists of the table of the same length.
  static Result<Script> parse(std::string_view text, const TokenTable& tokens);

  const std::vector<ScriptReply>& replies() const { return replies_; }
  bool has_keys() const { return !keys_.empty(); }

  // Lines that share a key.
  class Group;
  // Those whose key is the longest that occurs in the prompt, or those without key. Refuses a
  // prompt to which no line is an answer, and choices that have none.
  Result<Group*> find(std::string_view prompt, int32_t first_choice_idx, int32_t num_choices);
  // The next line for each choice.
  std::vector<const ScriptReply*> choose(Group& group, int32_t first_choice_idx,
                                         int32_t num_choices) const;

  class Group {
   private:
    friend class Script;
    struct Turns {
      std::vector<size_t> reply_idx;
      size_t next = 0;
      size_t take() {
        const size_t taken = reply_idx[next];
        next = (next + 1) % reply_idx.size();
        return taken;
      }
    };
    Turns any;  // of lines that are for any choice
    std::map<int32_t, Turns> by_choice;
  };

 private:
  std::vector<ScriptReply> replies_;
  std::map<std::string, Group> groups_;  // by key
  std::vector<std::string> keys_;        // longest first, then in the order of bytes; not the empty one
};

}  // namespace millrace
