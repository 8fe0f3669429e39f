#include "llm/answer_stream.h"

#include "chat/wire_text.h"
#include "tokenizer/detokenizer.h"

namespace millrace {

// Turns the engine's events into text: bytes of the output as they are settled, whole characters
// of them, and what a chat's characters mean.
class AnswerStream::Choice {
 public:
  Choice(const Tokenizer& tokenizer, const Request& request, std::optional<ReplyStart> reply_start,
         bool is_first)
      : tokenizer_(tokenizer),
        skips_control_(request.sampling.skip_special_tokens),
        end_of_reasoning_(tokenizer.token_id(wire::kEndThink)),
        builder_(is_first && request.sampling.prompt_logprobs.has_value()) {
    answer_.num_prompt_tokens = int64_t(request.prompt_token_ids.size());
    answer_.seed = *request.sampling.seed;
    if (!reply_start) return;
    ReplyParserOptions options;
    options.start = *reply_start;
    parser_.emplace(std::move(options));
    is_reasoning_ = *reply_start == ReplyStart::kReasoning ||
                    *reply_start == ReplyStart::kReasoningContinued;
  }

  // Fills text and reply of the event.
  void take(AnswerEvent& event) {
    const StreamEvent& step = event.step;
    builder_.add(step);
    if (step.token_id) take_token(*step.token_id);
    write(step.num_settled_bytes, builder_.is_finished(), event);
    if (builder_.is_finished()) settle();
  }

  const Answer& answer() const { return answer_; }

  Answer take_answer() {
    if (!builder_.is_finished()) {
      AnswerEvent rest;
      write(int64_t(num_written_ + bytes_.size()), true, rest);
      settle();
    }
    answer_.completion = builder_.take();
    return std::move(answer_);
  }

 private:
  void take_token(int32_t id) {
    answer_.num_reasoning_tokens += is_reasoning_;
    if (id == end_of_reasoning_) is_reasoning_ = false;
    if (id < tokenizer_.vocab_size() && !(skips_control_ && tokenizer_.is_special(id))) {
      bytes_ += tokenizer_.token_bytes(id);
    }
  }

  void write(int64_t num_settled_bytes, bool is_last, AnswerEvent& event) {
    event.text.clear();
    event.reply.clear();
    const size_t count = size_t(num_settled_bytes) - num_written_;
    utf8_.push(std::string_view(bytes_).substr(0, count), event.text);
    bytes_.erase(0, count);
    num_written_ += count;
    if (is_last) utf8_.finish(event.text);
    answer_.text += event.text;
    if (!parser_) return;
    event.reply = parser_->feed(event.text);
    if (is_last) {
      for (ReplyEvent& part : parser_->finish()) event.reply.push_back(std::move(part));
    }
    for (const ReplyEvent& part : event.reply) answer_.reply.add(part);
  }

  void settle() {
    const std::string_view reason = finish_reason_name(builder_.completion().finish_reason);
    answer_.finish_reason = parser_ ? parser_->finish_reason(reason) : std::string(reason);
  }

  const Tokenizer& tokenizer_;
  const bool skips_control_;
  const std::optional<int32_t> end_of_reasoning_;
  CompletionBuilder builder_;
  Answer answer_;
  std::optional<ReplyParser> parser_;
  bool is_reasoning_ = false;
  Utf8Stream utf8_;
  std::string bytes_;  // of the output, from byte num_written_ on
  size_t num_written_ = 0;
};

AnswerStream::AnswerStream(const Tokenizer& tokenizer, const Request& request,
                           std::optional<ReplyStart> reply_start,
                           std::unique_ptr<RequestStream> stream)
    : stream_(std::move(stream)) {
  for (int32_t i = 0; i < request.num_choices; ++i) {
    choices_.push_back(std::make_unique<Choice>(tokenizer, request, reply_start, i == 0));
  }
}

AnswerStream::~AnswerStream() = default;

const AnswerEvent* AnswerStream::next(std::optional<std::chrono::milliseconds> timeout) {
  std::optional<RequestStream::Event> next = stream_->next(timeout);
  if (!next) return nullptr;
  event_.choice_idx = next->choice_idx;
  event_.step = std::move(next->event);
  choices_[size_t(event_.choice_idx)]->take(event_);
  return &event_;
}

const Answer& AnswerStream::answer(int32_t choice_idx) const {
  return choices_[size_t(choice_idx)]->answer();
}

std::vector<Answer> AnswerStream::take_answers() {
  std::vector<Answer> answers;
  for (const std::unique_ptr<Choice>& choice : choices_) answers.push_back(choice->take_answer());
  if (!is_finished()) cancel();
  return answers;
}

}  // namespace millrace
