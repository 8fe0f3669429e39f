#pragma once

// What is asked of a model to see how good it is: tokens, and which of them are judged. Pure.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "tokenizer/tokenizer.h"

namespace millrace {

// Tokens [judged_begin, judged_end) are judged: how likely each is behind those in front of it.
struct EvalCase {
  std::vector<int32_t> token_ids;
  int64_t judged_begin = 0, judged_end = 0;  // 1 <= begin < end <= the number of tokens
  int64_t num_judged_bytes = 0;              // of text
};

// A text in windows of at most `window` tokens, `bos` in front of each if there is one. Every token
// is judged once: those of the first window, then `stride` at a time at the end of a window, with
// all the context that fits. Nothing comes before the first token: without `bos` it is not judged.
// Requires: 1 <= stride, stride < window.
std::vector<EvalCase> text_windows(const Tokenizer& tokenizer, std::span<const int32_t> text,
                                   std::optional<int32_t> bos, int64_t window, int64_t stride);

enum class EvalForm {
  kChat,   // the user's message and the assistant's reply
  kPlain,  // one text that goes on
};

// A prompt and the reply to it, of which some bytes are judged.
struct EvalText {
  std::string prompt;  // chat: the user's message
  std::string reply;
  size_t judged_begin = 0, judged_end = 0;  // bytes of the reply
  bool judges_end = false;                  // that the reply ends there, too
};

// One fact to be found, three like it and filler around them; then the question, and in the reply
// the value. The fact stands behind `depth` of the filler, whose sentences have at most
// `num_filler_tokens` tokens in all.
EvalText needle_text(Random& random, const Tokenizer& tokenizer, EvalForm form,
                     int64_t num_filler_tokens, double depth);

// Random words and numbers, to be said once more; judged from the first to the end.
EvalText copy_text(Random& random, EvalForm form, int64_t num_items);

// The tokens `front`, then those of `text` as plain text; judged is what holds bytes [judged_begin,
// judged_end) of it, and `end` behind it if there is one. Requires: front or text in front of what
// is judged.
EvalCase make_case(const Tokenizer& tokenizer, std::vector<int32_t> front, std::string_view text,
                   size_t judged_begin, size_t judged_end, std::optional<int32_t> end);

}  // namespace millrace
