#pragma once

// Generated text to reasoning, answer and tool calls, while it is generated. A byte-wise machine
// that accepts damaged markup: see strict_parser.h for one that does not.
//
// The events do not depend on how the text was cut into pieces, apart from where deltas are cut.
// Bytes that could still become markup or a stop string are held back until that is decided. If
// every piece is whole UTF-8, so is every delta.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/messages.h"

namespace millrace {

struct ReplyEvent {
  enum class Kind {
    kReasoning,  // text: more reasoning
    kContent,    // text: more of the answer
    kToolCall,   // text: the name of call `call_idx`, which begins here
    kArguments,  // text: more of the JSON text of the arguments of call `call_idx`
  };
  Kind kind;
  int call_idx;  // -1 for reasoning and content
  std::string text;
};

// Events added up.
struct Reply {
  struct Call {
    std::string name;
    std::string arguments;  // JSON if the model wrote JSON and the call is complete
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> tool_calls;

  void add(const ReplyEvent& event);
};

struct ReplyParserOptions {
  ReplyStart start = ReplyStart::kContent;  // as EncodedPrompt says
  std::vector<std::string> stop = {};  // end the reply, in answer text only; empty: ignored
  bool parse_tools = true;        // false: tool markup is text
  bool json_output = false;       // the answer is JSON: text and code fence around it become blanks
};

class ReplyParser {
 public:
  explicit ReplyParser(ReplyParserOptions options);

  std::vector<ReplyEvent> feed(std::string_view bytes);

  // The generation ended: what was held back goes out as it is. An unfinished call stays
  // unfinished. Call once, and feed() no more.
  std::vector<ReplyEvent> finish();

  // A stop string matched or the block of calls closed: nothing that follows can matter.
  bool is_complete() const { return state_ == State::kFinished; }

  // The stop string that ended the reply.
  const std::optional<std::string>& matched_stop() const { return matched_stop_; }

  // Why the reply ended, for the client. `engine_reason`: why the generation did ("stop", ...).
  std::string finish_reason(std::string_view engine_reason) const;

  // Bytes of stray </think> tags in the answer and of text after the end.
  int64_t num_invalid_bytes() const { return num_invalid_bytes_; }

 private:
  enum class State : uint8_t {
    kReasoning,
    kAnswer,
    kBeforeJson,  // json_output: the answer up to the JSON, the JSON, the rest
    kInJson,
    kAfterJson,
    kBlock,  // between calls
    kName,
    kArguments,  // between parameters
    kKey,
    kKind,
    kTextValue,
    kJsonValue,
    kFinished,
  };
  enum class Action : uint8_t {
    kEndReasoning,
    kStrayEnd,
    kOpenBlock,
    kStop,
    kOpenFence,
    kBeginJson,
    kCloseFence,
    kBeginCall,
    kEndBlock,
    kEndName,
    kBeginKey,
    kEndArguments,
    kEndKey,
    kBeginText,
    kBeginValue,
    kEndText,
    kEndValue,
  };
  struct Rule {
    State state;
    std::string_view literal;
    bool takes_newlines;  // newlines directly before the literal belong to it
    Action action;
  };
  static const Rule kRules[];

  // Looks for one literal in the bytes of a state.
  class Watch {
   public:
    Watch(std::string_view literal, bool takes_newlines, Action action);
    void reset();
    bool push(char c);  // true when the literal ends with this byte
    size_t length() const { return num_newlines_ + progress_; }  // matched so far
    const std::string& literal() const { return literal_; }
    Action action() const { return action_; }

   private:
    std::string literal_;
    std::vector<size_t> border_;  // [i]: longest proper prefix that also ends the first i bytes
    bool takes_newlines_;
    Action action_;
    size_t progress_ = 0;      // longest prefix of the literal that ends here
    size_t num_newlines_ = 0;  // directly before that prefix
  };

  void step(char c);
  void act(const Watch& watch);
  void enter(State state);
  void enter_answer();
  void pass(std::string_view bytes);  // the default action of the state
  void emit(ReplyEvent::Kind kind, std::string_view text);

  std::array<std::vector<Watch>, size_t(State::kFinished) + 1> watches_;
  bool json_output_;
  State state_ = State::kAnswer;
  std::string held_;
  bool skips_newlines_ = false;  // at the beginning of reasoning or answer
  bool wrote_blank_ = false;     // for the text around JSON
  bool is_first_key_ = true;
  std::string name_;
  int num_calls_ = 0;
  int64_t num_invalid_bytes_ = 0;
  std::optional<std::string> matched_stop_;
  std::vector<ReplyEvent> events_;
};

}  // namespace millrace
