#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/bpe.h"

namespace millrace {

struct AddedToken {
  int32_t id;
  std::string literal;
  bool special;
  bool normalized;  // such tokens are looked for only after all others
};

// What a tokenizer.json says, checked and with every token as raw bytes.
struct TokenizerJson {
  // Index is the id; every id is there. An added token is its literal.
  std::vector<std::string> tokens;
  std::vector<AddedToken> added;
  std::array<int32_t, 256> byte_ids;  // none of them an added token
  std::vector<Merge> merges;          // by rank; none results in an added token
};

inline constexpr size_t kMaxTokenizerJsonBytes = 64 << 20;  // ten times the released file

// Reads the text of a tokenizer.json, and refuses one that asks for anything but byte-level BPE
// with the three splits of splitter.h. Messages name the key, what was found and what was
// expected; the caller adds the file.
Result<TokenizerJson> read_tokenizer_json(std::string_view json);

// The byte-level alphabet: every byte is spelled as one printable character. A printable byte
// stands for itself, the other 68 are U+0100 and up, in order.
constexpr char32_t byte_level_character(unsigned char byte) {
  const auto printable = [](int b) {
    return (0x21 <= b && b <= 0x7e) || (0xa1 <= b && b <= 0xac) || (0xae <= b && b <= 0xff);
  };
  if (printable(byte)) return byte;
  char32_t character = 0x100;
  for (int b = 0; b < byte; ++b) character += printable(b) ? 0 : 1;
  return character;
}

}  // namespace millrace
