#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/messages.h"
#include "chat/reply_parser.h"
#include "engine/engine.h"
#include "request/request.h"
#include "tokenizer/tokenizer.h"

namespace millrace {

// One step of one choice. All text is whole characters.
struct AnswerEvent {
  int32_t choice_idx = 0;
  StreamEvent step;
  std::string text;               // that this step settled
  std::vector<ReplyEvent> reply;  // the same text of a chat, parsed
};

// One choice.
struct Answer {
  std::string text;  // a chat's as the model wrote it, without its end token
  Reply reply;       // a chat's text, parsed
  // "stop", "length", "tool_calls" (chat), "abort", "timeout", "error".
  std::string finish_reason;
  int64_t num_prompt_tokens = 0;
  uint64_t seed = 0;  // the request's, or the one drawn for it
  int64_t num_reasoning_tokens = 0;  // of a chat
  Completion completion;
};

// A request that is being answered, as text. Ends the request when it is destroyed before the last
// event.
//
// Threading: one reader at a time; cancel() from any thread. Must not outlive its Llm.
class AnswerStream {
 public:
  // `hides_control`: of a chat, whose request keeps control tokens for the sake of its markup, text
  // leaves out all others.
  AnswerStream(const Tokenizer& tokenizer, const Request& request,
               std::optional<ReplyStart> reply_start, bool hides_control,
               std::unique_ptr<RequestStream> stream);
  ~AnswerStream();
  AnswerStream(const AnswerStream&) = delete;
  AnswerStream& operator=(const AnswerStream&) = delete;

  // The next step, valid until the next call. Every choice ends with a step that has a finish
  // reason. Null: all choices have ended, or the time is over.
  const AnswerEvent* next(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  bool is_finished() const { return stream_->is_finished(); }
  // Every choice that has not ended will do so with kAbort.
  void cancel() { stream_->cancel(); }

  int32_t num_choices() const { return int32_t(choices_.size()); }
  // What next() has brought so far.
  const Answer& answer(int32_t choice_idx) const;
  // The answers as next() brought them; what has not ended counts as kAbort and keeps what was said
  // so far. The last call.
  std::vector<Answer> take_answers();

 private:
  class Choice;

  std::unique_ptr<RequestStream> stream_;
  std::vector<std::unique_ptr<Choice>> choices_;
  AnswerEvent event_;
};

}  // namespace millrace
