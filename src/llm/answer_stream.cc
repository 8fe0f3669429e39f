#include "llm/answer_stream.h"

#include <algorithm>
#include <deque>
#include <span>

#include "chat/wire_text.h"
#include "tokenizer/detokenizer.h"

namespace millrace {
namespace {

// What a reply is made of, and what stands between messages.
constexpr std::string_view kReplyMarkup[] = {wire::kThink, wire::kEndThink, wire::kDsml};
constexpr std::string_view kPromptMarkup[] = {wire::kBos,       wire::kEos,
                                              wire::kSystem,    wire::kUser,
                                              wire::kAssistant, wire::kLatestReminder,
                                              wire::kImage};

bool is_one_of(std::span<const std::string_view> literals, std::string_view bytes) {
  return std::find(literals.begin(), literals.end(), bytes) != literals.end();
}

}  // namespace

// Turns the engine's events into text: bytes of the output as they are settled, whole characters
// of them, and what a chat's characters mean.
class AnswerStream::Choice {
 public:
  Choice(const Tokenizer& tokenizer, const Request& request, std::optional<ReplyStart> reply_start,
         bool hides_control, bool is_first)
      : tokenizer_(tokenizer),
        hides_control_(hides_control),
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
      write(int64_t(num_bytes_), true, rest);
      settle();
    }
    answer_.completion = builder_.take();
    return std::move(answer_);
  }

 private:
  void take_token(int32_t id) {
    answer_.num_reasoning_tokens += is_reasoning_;
    if (id == end_of_reasoning_) is_reasoning_ = false;
    if (id >= tokenizer_.vocab_size() || (skips_control_ && tokenizer_.is_special(id))) return;
    const std::string_view bytes = tokenizer_.token_bytes(id);
    if (hides_control_ && is_hidden(id)) hidden_.push_back({num_bytes_, num_bytes_ + bytes.size()});
    bytes_ += bytes;
    num_bytes_ += bytes.size();
  }

  bool is_hidden(int32_t id) const {
    if (!tokenizer_.is_added(id)) return false;
    const std::string_view literal = tokenizer_.token_bytes(id);
    return (tokenizer_.is_special(id) && !is_one_of(kReplyMarkup, literal)) ||
           is_one_of(kPromptMarkup, literal);
  }

  // Moves bytes of the output, up to byte `end` of it, to the text.
  void settle_bytes(size_t end, std::string& text) {
    const auto take = [&](size_t to, bool is_shown) {
      const size_t count = to - num_written_;
      if (is_shown) utf8_.push(std::string_view(bytes_).substr(0, count), text);
      bytes_.erase(0, count);
      num_written_ = to;
    };
    while (num_written_ < end && !hidden_.empty() && hidden_.front().begin < end) {
      const Range hidden = hidden_.front();
      take(std::max(hidden.begin, num_written_), /*is_shown=*/true);
      take(std::min(hidden.end, end), /*is_shown=*/false);
      if (hidden.end > end) return;
      hidden_.pop_front();
    }
    take(end, /*is_shown=*/true);
  }

  void write(int64_t num_settled_bytes, bool is_last, AnswerEvent& event) {
    event.text.clear();
    event.reply.clear();
    settle_bytes(size_t(num_settled_bytes), event.text);
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
  const bool hides_control_;
  const bool skips_control_;  // the engine does not count their bytes
  const std::optional<int32_t> end_of_reasoning_;
  CompletionBuilder builder_;
  Answer answer_;
  std::optional<ReplyParser> parser_;
  bool is_reasoning_ = false;
  Utf8Stream utf8_;
  struct Range {  // of bytes of the output
    size_t begin, end;
  };
  std::string bytes_;  // of the output, from byte num_written_ on
  size_t num_written_ = 0, num_bytes_ = 0;
  std::deque<Range> hidden_;  // that are not all written
};

AnswerStream::AnswerStream(const Tokenizer& tokenizer, const Request& request,
                           std::optional<ReplyStart> reply_start, bool hides_control,
                           std::unique_ptr<RequestStream> stream)
    : stream_(std::move(stream)) {
  for (int32_t i = 0; i < request.num_choices; ++i) {
    choices_.push_back(
        std::make_unique<Choice>(tokenizer, request, reply_start, hides_control, i == 0));
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
