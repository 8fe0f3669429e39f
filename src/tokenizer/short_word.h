#pragma once

// Up to 15 bytes as two integers, to be compared and hashed without a loop.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace millrace {

struct ShortWord {
  static constexpr size_t kMaxSize = 15;

  uint64_t low = 0, high = 0;  // the bytes, then zeros; the last byte is their number

  bool operator==(const ShortWord&) const = default;
};

// The first `size` bytes of `text`. It is fastest with 16 bytes of text. Requires: 0 < size <= 15,
// size <= text.size().
inline ShortWord short_word(std::string_view text, size_t size) {
  static_assert(std::endian::native == std::endian::little);
  struct Mask {
    uint64_t low, high;
  };
  static constexpr auto kMasks = [] {
    std::array<Mask, 16> masks{};
    for (size_t n = 1; n < 16; ++n) {
      masks[n].low = n < 8 ? (uint64_t{1} << (8 * n)) - 1 : ~uint64_t{0};
      masks[n].high = n > 8 ? (uint64_t{1} << (8 * (n - 8))) - 1 : 0;
    }
    return masks;
  }();
  ShortWord word;
  if (text.size() >= 16) {
    std::memcpy(&word.low, text.data(), 8);
    std::memcpy(&word.high, text.data() + 8, 8);
  } else {
    std::array<char, 16> bytes{};
    std::memcpy(bytes.data(), text.data(), size);
    std::memcpy(&word.low, bytes.data(), 8);
    std::memcpy(&word.high, bytes.data() + 8, 8);
  }
  word.low &= kMasks[size].low;
  word.high = (word.high & kMasks[size].high) | uint64_t(size) << 56;
  return word;
}

inline uint64_t hash(const ShortWord& word) {  // its upper bits are the good ones
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;
  const uint64_t low = word.low * kFactor;
  return ((low ^ (low >> 32)) + word.high) * kFactor;
}

}  // namespace millrace
