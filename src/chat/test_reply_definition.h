#pragma once

// For tests and fuzzers: what the reply parser must give, defined on the whole text at once. In
// each state the literal that ends first is looked for (of those that end together the longest);
// the text before it gets the state's default treatment. No bytes are held back and nothing is
// resumed, so this is short enough to be compared with the published table by eye.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"
#include "chat/reply_parser.h"

namespace millrace {

class ReplyDefinition {
 public:
  ReplyDefinition(const ReplyParserOptions& options, std::string_view text)
      : options_(options), rest_(text) {
    switch (options.start) {
      case ReplyStart::kReasoning:
        drop_newlines();
        [[fallthrough]];
      case ReplyStart::kReasoningContinued:
        reasoning();
        break;
      case ReplyStart::kContent:
        answer(true);
        break;
      case ReplyStart::kContentContinued:
        answer(false);
        break;
      case ReplyStart::kToolCalls:
        block();
        break;
    }
  }

  // Deltas of one kind that follow each other are one event.
  const std::vector<ReplyEvent>& events() const { return events_; }
  const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  int64_t num_invalid_bytes() const { return num_invalid_bytes_; }

 private:
  using Kind = ReplyEvent::Kind;

  static constexpr std::string_view kEndThink = "</think>";
  static constexpr std::string_view kOpen = "<｜DSML｜";
  static constexpr std::string_view kClose = "</｜DSML｜";

  struct Found {
    std::string_view before;   // all of the rest if nothing was found
    std::string_view literal;  // empty: nothing was found
  };

  // Takes the text up to and with the first of the literals. Newlines directly before one of
  // `with_newlines` belong to it. A stop string that is spelled like markup is markup.
  Found take(const std::vector<std::string_view>& literals,
             const std::vector<std::string_view>& with_newlines = {},
             const std::vector<std::string>& stops = {}) {
    Found found{rest_, {}};
    size_t end = rest_.size() + 1;
    const auto look_for = [&](std::string_view literal, bool takes_newlines) {
      size_t begin = rest_.find(literal);
      if (begin == rest_.npos || literal.empty()) return;
      const size_t literal_end = begin + literal.size();
      while (takes_newlines && begin > 0 && rest_[begin - 1] == '\n') --begin;
      if (literal_end > end || (literal_end == end && begin >= found.before.size())) return;
      end = literal_end;
      found = {rest_.substr(0, begin), literal};
    };
    for (const std::string_view literal : literals) look_for(literal, false);
    for (const std::string_view literal : with_newlines) look_for(literal, true);
    for (const std::string& stop : stops) look_for(stop, false);
    rest_.remove_prefix(std::min(end, rest_.size()));
    return found;
  }

  void drop_newlines() {
    while (!rest_.empty() && rest_.front() == '\n') rest_.remove_prefix(1);
  }

  std::vector<std::string_view> block_start() const {
    return options_.parse_tools ? std::vector{kOpen} : std::vector<std::string_view>{};
  }

  void emit(Kind kind, std::string_view text) {
    if (text.empty() && kind != Kind::kToolCall) return;
    const int call = kind == Kind::kToolCall || kind == Kind::kArguments ? num_calls_ - 1 : -1;
    if (kind != Kind::kToolCall && !events_.empty() && events_.back().kind == kind &&
        events_.back().call_idx == call) {
      events_.back().text += text;
    } else {
      events_.push_back({kind, call, std::string(text)});
    }
  }

  void reasoning() {
    std::vector<std::string_view> ends = block_start();
    ends.push_back(kEndThink);
    const Found found = take({}, ends);
    emit(Kind::kReasoning, found.before);
    if (found.literal == kEndThink) return answer(true);
    if (found.literal == kOpen) return block();
  }

  void answer(bool is_fresh) {
    if (is_fresh) drop_newlines();
    if (options_.json_output && is_fresh) return before_json();
    const bool is_json = options_.json_output;
    while (true) {
      std::vector<std::string_view> literals = {kEndThink};
      if (is_json) literals.push_back("\n```");
      const Found found = take(literals, block_start(), options_.stop);
      emit(Kind::kContent, found.before);
      if (found.literal.empty()) return;
      for (const std::string& stop : options_.stop) {
        if (found.literal.data() != stop.data()) continue;
        matched_stop_ = stop;
        return finished();
      }
      if (found.literal == kOpen) return block();
      if (found.literal != kEndThink) {
        around_json({});
        return;
      }
      num_invalid_bytes_ += int64_t(kEndThink.size());
    }
  }

  void before_json() {
    const std::string_view begin = around_json({"```json\n", "```\n", "{", "["});
    if (begin.empty()) return;
    if (begin.size() == 1) rest_ = std::string_view(begin.data(), begin.size() + rest_.size());
    answer(false);
  }

  // One blank for all of the text. Returns the literal that ended it, as part of the text.
  std::string_view around_json(std::vector<std::string_view> begins) {
    bool wrote_blank = false;
    while (true) {
      std::vector<std::string_view> literals = begins;
      literals.push_back(kEndThink);
      const Found found = take(literals, block_start());
      if (!found.before.empty() && !wrote_blank) {
        emit(Kind::kContent, " ");
        wrote_blank = true;
      }
      if (found.literal == kEndThink) {
        num_invalid_bytes_ += int64_t(kEndThink.size());
        continue;
      }
      if (found.literal == kOpen) block();
      if (found.literal == kOpen || found.literal.empty()) return {};
      return std::string_view(rest_.data() - found.literal.size(), found.literal.size());
    }
  }

  void block() {
    while (true) {
      const Found found =
          take({"invoke name=\"", "</｜DSML｜ calls>", "</｜DSML｜tool_calls>"});
      if (found.literal.empty()) return;
      if (found.literal.front() == '<') return finished();
      ++num_calls_;
      const Found name = take({"\""});
      emit(Kind::kToolCall, name.before);
      if (name.literal.empty() || !arguments()) return;
    }
  }

  // False: the text ended.
  bool arguments() {
    for (bool is_first = true;; is_first = false) {
      const Found found = take({"parameter name=\"", kClose});
      if (found.literal.empty()) return false;
      if (found.literal == kClose) {
        emit(Kind::kArguments, is_first ? "{}" : "}");
        return true;
      }
      emit(Kind::kArguments, is_first ? "{\"" : ", \"");
      const Found key = take({"\""});
      emit(Kind::kArguments, key.before);
      if (key.literal.empty()) return false;
      const Found type = take({"true\">", "false\">"});
      if (type.literal.empty()) return false;
      const bool is_text = type.literal.front() == 't';
      emit(Kind::kArguments, is_text ? "\": \"" : "\": ");
      const Found value = take({kClose});
      std::string escaped;
      append_json_escaped(value.before, escaped);
      emit(Kind::kArguments, is_text ? std::string_view(escaped) : value.before);
      if (value.literal.empty()) return false;
      if (is_text) emit(Kind::kArguments, "\"");
    }
  }

  void finished() { num_invalid_bytes_ += int64_t(rest_.size()); }

  const ReplyParserOptions& options_;
  std::string_view rest_;
  std::vector<ReplyEvent> events_;
  int num_calls_ = 0;
  int64_t num_invalid_bytes_ = 0;
  std::optional<std::string> matched_stop_;
};

}  // namespace millrace
