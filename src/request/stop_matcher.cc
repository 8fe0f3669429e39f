#include "request/stop_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace millrace {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  patterns_.reserve(stops.size());
  for (std::string& stop : stops) {
    MR_CHECK(!stop.empty());
    Pattern pattern{std::move(stop), {0, 0}};
    int32_t length = 0;
    for (size_t i = 1; i < pattern.text.size(); ++i) {
      while (length > 0 && pattern.text[i] != pattern.text[size_t(length)]) {
        length = pattern.border[size_t(length)];
      }
      if (pattern.text[i] == pattern.text[size_t(length)]) ++length;
      pattern.border.push_back(length);
    }
    patterns_.push_back(std::move(pattern));
  }
}

void StopMatcher::Pattern::advance(char byte) {
  while (matched > 0 && text[size_t(matched)] != byte) matched = border[size_t(matched)];
  if (text[size_t(matched)] == byte) ++matched;
}

std::optional<StopMatcher::Match> StopMatcher::append(std::string_view bytes) {
  for (char byte : bytes) {
    ++num_bytes_;
    std::optional<Match> found;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      pattern.advance(byte);
      if (size_t(pattern.matched) < pattern.text.size()) continue;
      const int64_t begin = num_bytes_ - pattern.matched;
      if (!found || begin < found->begin) found = Match{i, begin, num_bytes_};
    }
    if (found) return found;
  }
  return std::nullopt;
}

void StopMatcher::skip(int64_t num_bytes) {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  num_bytes_ += num_bytes;
}

int64_t StopMatcher::num_settled_bytes() const {
  int32_t held = 0;
  for (const Pattern& pattern : patterns_) held = std::max(held, pattern.matched);
  return num_bytes_ - held;
}

}  // namespace millrace
