#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct CodePoint {
  static constexpr char32_t kInvalid = 0xffffffff;
  char32_t value;  // kInvalid for a byte that does not start a well-formed sequence
  size_t size;     // bytes taken; 1 when invalid
};

// Bytes that a lead byte asks for, 0 if it is no lead byte, and what its second byte may be
// (which excludes overlong forms, surrogates and values above U+10FFFF).
struct Utf8Lead {
  size_t size;
  unsigned char second_min, second_max;
};

constexpr Utf8Lead utf8_lead(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

// The code point at the front of `text`; requires: text is not empty.
inline CodePoint front_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const Utf8Lead lead = utf8_lead(byte(0));
  if (lead.size == 1) return {byte(0), 1};
  if (lead.size == 0 || text.size() < lead.size || byte(1) < lead.second_min ||
      byte(1) > lead.second_max) {
    return {CodePoint::kInvalid, 1};
  }
  char32_t value = byte(0) & (0x7f >> lead.size);
  value = value << 6 | (byte(1) & 0x3f);
  for (size_t i = 2; i < lead.size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {CodePoint::kInvalid, 1};
    value = value << 6 | (byte(i) & 0x3f);
  }
  return {value, lead.size};
}

// Where the first byte is that starts no well-formed sequence; none: all of it is UTF-8.
inline std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = front_code_point(text.substr(at));
    if (next.value == CodePoint::kInvalid) return at;
    at += next.size;
  }
  return std::nullopt;
}

inline void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += char(c);
    return;
  }
  if (c < 0x800) {
    out += char(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      out += char(0xe0 | c >> 12);
    } else {
      out += char(0xf0 | c >> 18);
      out += char(0x80 | (c >> 12 & 0x3f));
    }
    out += char(0x80 | (c >> 6 & 0x3f));
  }
  out += char(0x80 | (c & 0x3f));
}

}  // namespace millrace
