#include "request/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace millrace {
namespace {

struct Found {
  int64_t stop_idx = -1;  // -1: nothing was found
  int64_t begin = -1, end = -1;
  bool operator==(const Found&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Found& f) {
  return out << "stop " << f.stop_idx << " [" << f.begin << ", " << f.end << ")";
}

Found feed(StopMatcher& matcher, const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) {
    if (const auto m = matcher.append(token)) return {int64_t(m->stop_idx), m->begin, m->end};
  }
  return {};
}

// What the class promises, by looking at every place.
Found find_by_hand(const std::vector<std::string>& stops, const std::string& text) {
  Found best;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t at = text.find(stops[i]);
    if (at == std::string::npos) continue;
    const Found found{int64_t(i), int64_t(at), int64_t(at + stops[i].size())};
    if (best.stop_idx < 0 || found.end < best.end ||
        (found.end == best.end && found.begin < best.begin)) {
      best = found;
    }
  }
  return best;
}

TEST(StopMatcher, FindsAStringAcrossTokens) {
  StopMatcher matcher({"\n\nHuman:"});
  EXPECT_EQ(feed(matcher, {"Yes.\n", "\nHu", "man", ": no"}), (Found{0, 4, 12}));
}

TEST(StopMatcher, FindsAStringThatBeginsAndEndsInsideCharacters) {
  // The euro sign is E2 82 AC; tokens of a byte-level vocabulary may hold any part of it.
  StopMatcher matcher({"\xe2\x82\xac"});
  EXPECT_EQ(feed(matcher, {"5 \xe2", "\x82", "\xac!"}), (Found{0, 2, 5}));
  StopMatcher half({"\x82"});
  EXPECT_EQ(feed(half, {"5 \xe2\x82\xac"}), (Found{0, 3, 4}));
}

TEST(StopMatcher, TheMatchThatEndsFirstCounts) {
  StopMatcher matcher({"abcd", "bc"});
  EXPECT_EQ(feed(matcher, {"xabcd"}), (Found{1, 2, 4}));
}

TEST(StopMatcher, OfMatchesThatEndTogetherTheLongestCounts) {
  StopMatcher matcher({"b", "ab"});
  EXPECT_EQ(feed(matcher, {"xab"}), (Found{1, 1, 3}));
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAMatch) {
  StopMatcher matcher({"END", "\n\n"});
  EXPECT_FALSE(matcher.append("text E"));
  EXPECT_EQ(matcher.num_settled_bytes(), 5);
  EXPECT_FALSE(matcher.append("N"));
  EXPECT_EQ(matcher.num_settled_bytes(), 5);
  EXPECT_FALSE(matcher.append("T"));
  EXPECT_EQ(matcher.num_settled_bytes(), 8);
  EXPECT_FALSE(matcher.append("\n"));
  EXPECT_EQ(matcher.num_settled_bytes(), 8);
}

TEST(StopMatcher, NoMatchReachesAcrossSkippedBytes) {
  StopMatcher matcher({"ab"});
  EXPECT_FALSE(matcher.append("a"));
  matcher.skip(1);
  EXPECT_EQ(matcher.num_settled_bytes(), 2);
  EXPECT_FALSE(matcher.append("b"));
  EXPECT_EQ(feed(matcher, {"ab"}), (Found{0, 3, 5}));
}

TEST(StopMatcher, WithoutStringsNothingIsHeldBack) {
  StopMatcher matcher({});
  EXPECT_FALSE(matcher.append("anything"));
  EXPECT_EQ(matcher.num_settled_bytes(), 8);
}

TEST(StopMatcher, EqualsASearchByHandHoweverTheTextIsCut) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto word = [&](size_t longest) {
      std::string text(1 + random() % longest, ' ');
      for (char& c : text) c = "ab\xe2"[random() % 3];  // a small alphabet: many near matches
      return text;
    };
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = word(5);
    const std::string text = word(40);

    StopMatcher matcher(stops);
    Found found;
    int64_t settled = 0;
    for (size_t at = 0; at < text.size() && found.stop_idx < 0;) {
      const size_t size = 1 + random() % 4;
      if (const auto m = matcher.append(std::string_view(text).substr(at, size))) {
        found = {int64_t(m->stop_idx), m->begin, m->end};
      }
      at += size;
      ASSERT_GE(matcher.num_settled_bytes(), settled) << "seed " << seed;
      settled = matcher.num_settled_bytes();
    }
    const Found want = find_by_hand(stops, text);
    ASSERT_EQ(found.end, want.end) << "seed " << seed;
    ASSERT_EQ(found.begin, want.begin) << "seed " << seed;
    if (found.stop_idx >= 0) {
      ASSERT_LE(settled, found.begin) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace millrace
