#include "chat/reply_parser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "chat/json.h"
#include "chat/wire_text.h"

namespace millrace {
namespace {

// Without the blank and the word behind it, so that the tags of V4 fit as well.
constexpr std::string_view kTagOpen = "<｜DSML｜";
constexpr std::string_view kTagClose = "</｜DSML｜";
constexpr std::string_view kV4BlockClose = "</｜DSML｜tool_calls>";

}  // namespace

// The match that ends first wins; of those that end together, the longest.
const ReplyParser::Rule ReplyParser::kRules[] = {
    {State::kReasoning, wire::kEndThink, true, Action::kEndReasoning},
    {State::kReasoning, kTagOpen, true, Action::kOpenBlock},

    {State::kAnswer, kTagOpen, true, Action::kOpenBlock},
    {State::kAnswer, wire::kEndThink, false, Action::kStrayEnd},

    {State::kBeforeJson, "```json\n", false, Action::kOpenFence},
    {State::kBeforeJson, "```\n", false, Action::kOpenFence},
    {State::kBeforeJson, "{", false, Action::kBeginJson},
    {State::kBeforeJson, "[", false, Action::kBeginJson},
    {State::kBeforeJson, kTagOpen, true, Action::kOpenBlock},
    {State::kBeforeJson, wire::kEndThink, false, Action::kStrayEnd},

    {State::kInJson, "\n```", false, Action::kCloseFence},
    {State::kInJson, kTagOpen, true, Action::kOpenBlock},
    {State::kInJson, wire::kEndThink, false, Action::kStrayEnd},

    {State::kAfterJson, kTagOpen, true, Action::kOpenBlock},
    {State::kAfterJson, wire::kEndThink, false, Action::kStrayEnd},

    {State::kBlock, "invoke name=\"", false, Action::kBeginCall},
    {State::kBlock, wire::kBlockClose, false, Action::kEndBlock},
    {State::kBlock, kV4BlockClose, false, Action::kEndBlock},

    {State::kName, "\"", false, Action::kEndName},

    {State::kArguments, "parameter name=\"", false, Action::kBeginKey},
    {State::kArguments, kTagClose, false, Action::kEndArguments},

    {State::kKey, "\"", false, Action::kEndKey},

    {State::kKind, "true\">", false, Action::kBeginText},
    {State::kKind, "false\">", false, Action::kBeginValue},

    {State::kTextValue, kTagClose, false, Action::kEndText},
    {State::kJsonValue, kTagClose, false, Action::kEndValue},
};

void Reply::add(const ReplyEvent& event) {
  switch (event.kind) {
    case ReplyEvent::Kind::kReasoning:
      reasoning += event.text;
      return;
    case ReplyEvent::Kind::kContent:
      content += event.text;
      return;
    case ReplyEvent::Kind::kToolCall:
      MR_CHECK_OP(size_t(event.call_idx), ==, tool_calls.size());
      tool_calls.push_back({event.text, {}});
      return;
    case ReplyEvent::Kind::kArguments:
      MR_CHECK_OP(size_t(event.call_idx), <, tool_calls.size());
      tool_calls[size_t(event.call_idx)].arguments += event.text;
      return;
  }
}

ReplyParser::Watch::Watch(std::string_view literal, bool takes_newlines, Action action)
    : literal_(literal), border_(literal.size() + 1, 0), takes_newlines_(takes_newlines),
      action_(action) {
  MR_CHECK(!literal.empty());
  // push() finds newlines only before the literal.
  MR_CHECK(!takes_newlines || literal.find('\n') == std::string_view::npos);
  for (size_t i = 2; i <= literal.size(); ++i) {
    size_t length = border_[i - 1];
    while (length > 0 && literal[length] != literal[i - 1]) length = border_[length];
    if (literal[length] == literal[i - 1]) ++length;
    border_[i] = length;
  }
}

void ReplyParser::Watch::reset() {
  progress_ = 0;
  num_newlines_ = 0;
}

bool ReplyParser::Watch::push(char c) {
  if (literal_[progress_] == c) return ++progress_ == literal_.size();
  const bool was_in_literal = progress_ > 0;
  while (progress_ > 0 && literal_[progress_] != c) progress_ = border_[progress_];
  if (literal_[progress_] == c) ++progress_;
  if (was_in_literal || c != '\n') num_newlines_ = 0;
  if (takes_newlines_ && c == '\n') ++num_newlines_;
  return false;
}

ReplyParser::ReplyParser(ReplyParserOptions options) : json_output_(options.json_output) {
  for (const Rule& rule : kRules) {
    if (rule.action == Action::kOpenBlock && !options.parse_tools) continue;
    watches_[size_t(rule.state)].emplace_back(rule.literal, rule.takes_newlines, rule.action);
  }
  for (const std::string& stop : options.stop) {
    if (stop.empty()) continue;
    for (const State state : {State::kAnswer, State::kInJson})
      watches_[size_t(state)].emplace_back(stop, false, Action::kStop);
  }
  switch (options.start) {
    case ReplyStart::kReasoning:
      skips_newlines_ = true;
      enter(State::kReasoning);
      break;
    case ReplyStart::kReasoningContinued:
      enter(State::kReasoning);
      break;
    case ReplyStart::kContent:
      enter_answer();
      break;
    case ReplyStart::kContentContinued:
      enter(json_output_ ? State::kInJson : State::kAnswer);
      break;
    case ReplyStart::kToolCalls:
      enter(State::kBlock);
      break;
  }
}

std::vector<ReplyEvent> ReplyParser::feed(std::string_view bytes) {
  for (const char c : bytes) step(c);
  return std::exchange(events_, {});
}

std::vector<ReplyEvent> ReplyParser::finish() {
  pass(held_);
  held_.clear();
  if (state_ == State::kName) emit(ReplyEvent::Kind::kToolCall, name_);
  return std::exchange(events_, {});
}

std::string ReplyParser::finish_reason(std::string_view engine_reason) const {
  if (matched_stop_) return "stop";
  if (num_calls_ > 0 && engine_reason == "stop") return "tool_calls";
  return std::string(engine_reason);
}

void ReplyParser::step(char c) {
  // Skipped before stop strings are looked for: a stop string of newlines must not end a reply
  // that has not begun.
  if (skips_newlines_ && c == '\n') return;
  skips_newlines_ = false;

  held_ += c;
  const Watch* match = nullptr;
  size_t num_undecided = 0;
  for (Watch& watch : watches_[size_t(state_)]) {
    if (watch.push(c)) {
      if (match == nullptr || match->length() < watch.length()) match = &watch;
    } else {
      num_undecided = std::max(num_undecided, watch.length());
    }
  }
  const size_t num_kept = match == nullptr ? num_undecided : match->length();
  MR_DCHECK(num_kept <= held_.size());
  const size_t num_passed = held_.size() - num_kept;
  pass(std::string_view(held_).substr(0, num_passed));
  if (match == nullptr) {
    held_.erase(0, num_passed);
  } else {
    held_.clear();
    act(*match);
  }
}

void ReplyParser::act(const Watch& watch) {
  using Kind = ReplyEvent::Kind;
  switch (watch.action()) {
    case Action::kEndReasoning:
      return enter_answer();
    case Action::kStrayEnd:
      num_invalid_bytes_ += int64_t(watch.literal().size());
      return enter(state_);
    case Action::kOpenBlock:
      return enter(State::kBlock);
    case Action::kStop:
      matched_stop_ = watch.literal();
      return enter(State::kFinished);
    case Action::kOpenFence:
      return enter(State::kInJson);
    case Action::kBeginJson:
      enter(State::kInJson);
      return step(watch.literal().front());
    case Action::kCloseFence:
      wrote_blank_ = false;
      return enter(State::kAfterJson);
    case Action::kBeginCall:
      ++num_calls_;
      name_.clear();
      return enter(State::kName);
    case Action::kEndBlock:
      return enter(State::kFinished);
    case Action::kEndName:
      emit(Kind::kToolCall, name_);
      is_first_key_ = true;
      return enter(State::kArguments);
    case Action::kBeginKey:
      emit(Kind::kArguments, is_first_key_ ? "{\"" : ", \"");
      is_first_key_ = false;
      return enter(State::kKey);
    case Action::kEndArguments:
      emit(Kind::kArguments, is_first_key_ ? "{}" : "}");
      return enter(State::kBlock);
    case Action::kEndKey:
      return enter(State::kKind);
    case Action::kBeginText:
      emit(Kind::kArguments, "\": \"");
      return enter(State::kTextValue);
    case Action::kBeginValue:
      emit(Kind::kArguments, "\": ");
      return enter(State::kJsonValue);
    case Action::kEndText:
      emit(Kind::kArguments, "\"");
      return enter(State::kArguments);
    case Action::kEndValue:
      return enter(State::kArguments);
  }
}

void ReplyParser::enter(State state) {
  state_ = state;
  for (Watch& watch : watches_[size_t(state)]) watch.reset();
}

void ReplyParser::enter_answer() {
  skips_newlines_ = true;
  enter(json_output_ ? State::kBeforeJson : State::kAnswer);
}

void ReplyParser::pass(std::string_view bytes) {
  using Kind = ReplyEvent::Kind;
  if (bytes.empty()) return;
  switch (state_) {
    case State::kReasoning:
      return emit(Kind::kReasoning, bytes);
    case State::kAnswer:
    case State::kInJson:
      return emit(Kind::kContent, bytes);
    case State::kBeforeJson:
    case State::kAfterJson:
      if (!wrote_blank_) emit(Kind::kContent, " ");
      wrote_blank_ = true;
      return;
    case State::kName:
      name_ += bytes;
      return;
    case State::kKey:
    case State::kJsonValue:
      return emit(Kind::kArguments, bytes);
    case State::kTextValue: {
      std::string escaped;
      append_json_escaped(bytes, escaped);
      return emit(Kind::kArguments, escaped);
    }
    case State::kFinished:
      num_invalid_bytes_ += int64_t(bytes.size());
      return;
    case State::kBlock:
    case State::kArguments:
    case State::kKind:
      return;
  }
}

void ReplyParser::emit(ReplyEvent::Kind kind, std::string_view text) {
  using Kind = ReplyEvent::Kind;
  const bool is_call = kind == Kind::kToolCall;
  const int call_idx = is_call || kind == Kind::kArguments ? num_calls_ - 1 : -1;
  if (!is_call && !events_.empty() && events_.back().kind == kind &&
      events_.back().call_idx == call_idx) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, call_idx, std::string(text)});
  }
}

}  // namespace millrace
