#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace millrace {

// Bytes in, well-formed UTF-8 out. What may still become a character is held back; what cannot is
// replaced: one U+FFFD for each longest prefix of a well-formed sequence and for each other byte.
// However the bytes are cut into pushes, the text is the same.
class Utf8Stream {
 public:
  // Both append to `text`.
  void push(std::string_view bytes, std::string& text);
  void finish(std::string& text);  // afterwards the stream is as new

 private:
  void push_byte(char byte, std::string& text);

  char held_[3];
  size_t num_held_ = 0;  // of a sequence that was well-formed so far
};

// All of them at once.
std::string to_utf8(std::string_view bytes);

// Token ids to text, one token at a time, as in Tokenizer::decode of all of them. To leave special
// tokens out, do not push them.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  void push(int32_t id, std::string& text) { utf8_.push(tokenizer_->token_bytes(id), text); }
  void finish(std::string& text) { utf8_.finish(text); }

 private:
  const Tokenizer* tokenizer_;  // outlives this
  Utf8Stream utf8_;
};

}  // namespace millrace
