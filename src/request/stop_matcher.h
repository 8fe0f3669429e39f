#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Finds stop strings in the bytes of an output as its tokens come. Bytes, not characters: a stop
// string may begin and end inside tokens, and tokens may begin and end inside characters. How the
// bytes are cut into tokens makes no difference to what is found.
//
// The match that ends first counts; of those that end together, the longest.
class StopMatcher {
 public:
  struct Match {
    size_t stop_idx;     // in the list of stop strings
    int64_t begin, end;  // bytes of the output
  };

  // Requires: no string is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // The next bytes of the output. After a match only num_settled_bytes() may be called.
  std::optional<Match> append(std::string_view bytes);

  // Bytes that no stop string may touch. A stop string never reaches across them.
  void skip(int64_t num_bytes);

  // Bytes of the output that are in no match, nor could be in one that later bytes complete.
  int64_t num_settled_bytes() const;

 private:
  // Knuth, Morris and Pratt: `matched` is the length of the longest prefix of the pattern that the
  // output now ends with, border[n] that of the longest proper prefix that its first n bytes end
  // with.
  struct Pattern {
    std::string text;
    std::vector<int32_t> border;
    int32_t matched = 0;

    void advance(char byte);
  };

  std::vector<Pattern> patterns_;
  int64_t num_bytes_ = 0;  // seen or skipped
};

}  // namespace millrace
