#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"

namespace millrace {

enum class SpecialTokens {
  kRecognise,  // literals of added tokens become their ids
  kPlainText,  // for untrusted text: no text becomes the id of an added token
};

// Part of a prompt. Control strings are trusted, what a user or a tool wrote is not. Only a
// literal that lies entirely in trusted text becomes an added token.
struct TextSegment {
  std::string_view text;
  bool trusted;
};

// Byte-level BPE as a tokenizer.json describes it; the same ids as the official library.
//
// Encoding is total and lossless: for any bytes, token_bytes of the ids put together are the
// input. Bytes that are not UTF-8 are split off as characters of their own.
//
// Threading: const after parse(), so it may be shared; each thread brings its own Scratch.
class Tokenizer {
 public:
  using Scratch = Bpe::Scratch;  // buffers that are worth keeping between calls

  static Result<Tokenizer> parse(std::string_view tokenizer_json);

  std::vector<int32_t> encode(std::string_view text, SpecialTokens mode) const;

  // Where one segment ends and the next begins makes no difference to how text is cut and merged.
  std::vector<int32_t> encode(std::span<const TextSegment> segments) const;

  // The same, appended to `ids`.
  void encode(std::string_view text, SpecialTokens mode, Scratch& scratch,
              std::vector<int32_t>& ids) const;

  // The bytes of all ids together as UTF-8, ill-formed sequences replaced by U+FFFD. Added tokens
  // appear as their literals. Requires: every id < vocab_size().
  std::string decode(std::span<const int32_t> ids) const;

  // The rest requires: 0 <= id < vocab_size().
  std::string_view token_bytes(int32_t id) const { return token(id).bytes; }
  bool is_added(int32_t id) const { return token(id).added; }
  // An added token that the file marks special: what clients mean by skipping special tokens.
  bool is_special(int32_t id) const { return token(id).special; }

  int32_t vocab_size() const { return int32_t(tokens_.size()); }

  // The id of the added token with this literal.
  std::optional<int32_t> token_id(std::string_view literal) const;

 private:
  struct Token {
    std::string bytes;
    bool added = false;
    bool special = false;
  };
  struct Range {  // of bytes in a text
    size_t begin, end;
  };

  Tokenizer(std::vector<Token> tokens, AddedTokenFinder first, AddedTokenFinder second, Bpe bpe)
      : tokens_(std::move(tokens)),
        finders_{std::move(first), std::move(second)},
        bpe_(std::move(bpe)) {}

  const Token& token(int32_t id) const;
  void find_added(std::string_view text, Range range, size_t pass,
                  std::vector<AddedTokenFinder::Match>& matches) const;
  void encode(std::string_view text, std::span<const Range> trusted, Scratch& scratch,
              std::vector<int32_t>& ids) const;

  std::vector<Token> tokens_;
  // The second looks only at what the first has left.
  AddedTokenFinder finders_[2];
  Bpe bpe_;
};

}  // namespace millrace
