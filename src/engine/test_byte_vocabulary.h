#pragma once

// A vocabulary of 512 tokens, like the toy checkpoint's, in which every byte is a token: 0 to 255
// stand for themselves, then come some words, then control tokens. The rest has no bytes.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace millrace::test {

constexpr int32_t kHello = 256, kLlo = 257, kSpaceSlash = 258, kWorld = 259;
constexpr int32_t kEnd = 300, kEndThink = 301, kUser = 302;

inline TokenTable byte_table() {
  TokenTable table;
  table.bytes.resize(512);
  table.is_control.resize(512, 0);
  table.is_added.resize(512, 0);
  for (size_t i = 0; i < 256; ++i) table.bytes[i] = std::string(1, char(i));
  table.bytes[kHello] = "Hello";
  table.bytes[kLlo] = "llo";
  table.bytes[kSpaceSlash] = " </";
  table.bytes[kWorld] = " world";
  table.bytes[kEnd] = "<end>";
  table.bytes[kEndThink] = "</think>";
  table.bytes[kUser] = "<user>";
  table.is_control[kEnd] = table.is_control[kUser] = 1;
  table.is_added[kEnd] = table.is_added[kEndThink] = table.is_added[kUser] = 1;
  table.eos_token_ids = {kEnd};
  return table;
}

// One line of a script that is written on several lines here.
inline std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

inline std::string bytes_of(const TokenTable& table, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (int32_t id : ids) bytes += table.bytes[size_t(id)];
  return bytes;
}

inline std::vector<int32_t> ids_of(std::string_view text) {
  std::vector<int32_t> ids;
  for (char c : text) ids.push_back(int32_t(uint8_t(c)));
  return ids;
}

}  // namespace millrace::test
