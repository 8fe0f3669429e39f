#include "loadgen/stream_chunk.h"

#include <charconv>

#include "base/format.h"

namespace millrace {
namespace {

constexpr int kMaxDepth = 64;

// A walk over the text. The first mistake stops it: whoever reads on then gets nothing.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  char peek() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  // Calls on_member(key) at each value of an object, which must take the value.
  template <class OnMember>
  void object(OnMember on_member) {
    each('{', '}', [&] {
      const std::string_view key = string();
      if (!take(':')) return fail("expected ':'");
      on_member(key);
    });
  }

  template <class OnItem>
  void array(OnItem on_item) {
    each('[', ']', on_item);
  }

  // What stands between the quotes, escapes as they are.
  std::string_view string() {
    if (!take('"')) return fail("expected a string"), std::string_view();
    const size_t begin = at_;
    while (true) {
      at_ = text_.find_first_of("\"\\", at_);
      if (at_ == text_.npos) {
        at_ = text_.size();
        fail("a string without an end");
        return {};
      }
      if (text_[at_] == '"') return text_.substr(begin, at_++ - begin);
      at_ += 2;
      if (at_ > text_.size()) at_ = text_.size();
    }
  }

  // None: null, or something that is no integer.
  std::optional<int64_t> integer() {
    const char first = peek();
    if (first != '-' && (first < '0' || first > '9')) return skip(), std::nullopt;
    int64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    const size_t begin_at = at_;
    skip();
    const bool is_whole = error == std::errc() && size_t(end - begin) == at_ - begin_at;
    return is_whole ? std::optional(value) : std::nullopt;
  }

  // Any value.
  void skip() {
    switch (peek()) {
      case '{':
        return object([&](std::string_view) { skip(); });
      case '[':
        return array([&] { skip(); });
      case '"':
        string();
        return;
      default:
        break;
    }
    const size_t begin = at_;
    while (at_ < text_.size() && is_in_word(text_[at_])) ++at_;
    if (at_ == begin) fail("expected a value");
  }

  void end() {
    if (peek() != '\0' || at_ < text_.size()) fail("something behind the value");
  }
  void fail(const char* why) {
    if (problem_ == nullptr) problem_ = why, problem_at_ = at_;
    at_ = text_.size();
  }
  bool has_failed() const { return problem_ != nullptr; }
  Error error() const {
    return {Code::kCorrupt, format("byte ", problem_at_, " of an event: ", problem_)};
  }

 private:
  static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
  static bool is_in_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.';
  }

  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  template <class OnItem>
  void each(char open, char close, OnItem on_item) {
    if (!take(open)) return fail("a value of another kind than expected");
    if (++depth_ > kMaxDepth) return fail("nested too deep");
    if (!take(close)) {
      while (true) {
        on_item();
        if (problem_ != nullptr) return;
        if (take(',')) continue;
        if (take(close)) break;
        return fail("expected ',' or an end");
      }
    }
    --depth_;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  const char* problem_ = nullptr;
  size_t problem_at_ = 0;
};

// Not null and not empty.
bool has_content(Scanner& scan) {
  switch (scan.peek()) {
    case '"':
      return !scan.string().empty();
    case '[': {
      int64_t count = 0;
      scan.array([&] { scan.skip(), ++count; });
      return count > 0;
    }
    default:
      scan.skip();
      return false;
  }
}

void read_delta(Scanner& scan, StreamChunk& chunk) {
  if (scan.peek() != '{') return scan.skip();
  scan.object([&](std::string_view key) {
    if (key == "content" || key == "tool_calls" || key == "refusal") {
      chunk.has_text |= has_content(scan);
    } else if (key == "reasoning_content" || key == "reasoning") {
      chunk.has_reasoning |= has_content(scan);
    } else {
      scan.skip();
    }
  });
}

void read_choice(Scanner& scan, StreamChunk& chunk) {
  if (scan.peek() != '{') return scan.fail("expected a choice");
  chunk.has_choices = true;
  scan.object([&](std::string_view key) {
    if (key == "text") {
      chunk.has_text |= has_content(scan);
    } else if (key == "delta") {
      read_delta(scan, chunk);
    } else if (key == "finish_reason" && scan.peek() == '"') {
      chunk.finish_reason = std::string(scan.string());
    } else if (key == "token_ids" && scan.peek() == '[') {
      scan.array([&] { scan.skip(), ++chunk.num_token_ids; });
    } else {
      scan.skip();
    }
  });
}

void read_usage(Scanner& scan, StreamChunk& chunk) {
  if (scan.peek() != '{') return scan.skip();
  StreamUsage& usage = chunk.usage.emplace();
  const auto read_detail = [&](std::string_view name, std::optional<int64_t>& value) {
    if (scan.peek() != '{') return scan.skip();
    scan.object([&](std::string_view key) {
      if (key == name) {
        value = scan.integer();
      } else {
        scan.skip();
      }
    });
  };
  scan.object([&](std::string_view key) {
    if (key == "prompt_tokens") {
      usage.prompt_tokens = scan.integer();
    } else if (key == "completion_tokens") {
      usage.output_tokens = scan.integer();
    } else if (key == "prompt_tokens_details") {
      read_detail("cached_tokens", usage.cached_tokens);
    } else if (key == "completion_tokens_details") {
      read_detail("reasoning_tokens", usage.reasoning_tokens);
    } else {
      scan.skip();
    }
  });
}

void read_error(Scanner& scan, StreamChunk& chunk) {
  if (scan.peek() == 'n') return scan.skip();  // null
  chunk.error = "";
  if (scan.peek() == '"') {
    chunk.error = std::string(scan.string());
  } else if (scan.peek() == '{') {
    scan.object([&](std::string_view key) {
      if (key == "message" && scan.peek() == '"') {
        chunk.error = std::string(scan.string());
      } else {
        scan.skip();
      }
    });
  } else {
    scan.skip();
  }
}

}  // namespace

Result<StreamChunk> parse_stream_chunk(std::string_view json) {
  StreamChunk chunk;
  Scanner scan(json);
  scan.object([&](std::string_view key) {
    if (key == "choices" && scan.peek() == '[') {
      scan.array([&] { read_choice(scan, chunk); });
    } else if (key == "usage") {
      read_usage(scan, chunk);
    } else if (key == "error") {
      read_error(scan, chunk);
    } else {
      scan.skip();
    }
  });
  scan.end();
  if (scan.has_failed()) return scan.error();
  return chunk;
}

}  // namespace millrace
