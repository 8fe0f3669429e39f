#include "engine/token_lookup.h"

#include <algorithm>
#include <cstdio>

#include "base/format.h"

namespace millrace {

void TokenLookup::Tokens::add(std::string_view bytes, int32_t id) {
  if (bytes.empty() || !by_bytes.emplace(bytes, id).second) return;
  is_first_byte[uint8_t(bytes[0])] = true;
  if (std::find(sizes.begin(), sizes.end(), bytes.size()) == sizes.end()) {
    sizes.push_back(bytes.size());
  }
}

void TokenLookup::Tokens::sort_sizes() { std::sort(sizes.rbegin(), sizes.rend()); }

const std::pair<const std::string_view, int32_t>* TokenLookup::Tokens::find(
    std::string_view bytes) const {
  if (bytes.empty() || !is_first_byte[uint8_t(bytes[0])]) return nullptr;
  for (size_t size : sizes) {
    if (size > bytes.size()) continue;
    const auto found = by_bytes.find(bytes.substr(0, size));
    if (found != by_bytes.end()) return &*found;
  }
  return nullptr;
}

TokenLookup::TokenLookup(const TokenTable& tokens) {
  for (size_t id = 0; id < tokens.bytes.size(); ++id) {
    const std::string_view bytes = tokens.bytes[id];
    if (tokens.is_added[id] || tokens.is_control[id]) {
      added_.add(bytes, int32_t(id));
    } else if (bytes.size() <= kMaxTokenBytes) {
      plain_.add(bytes, int32_t(id));
    }
  }
  plain_.sort_sizes();
  added_.sort_sizes();
}

Result<std::vector<int32_t>> TokenLookup::encode(std::string_view bytes, Literals literals) const {
  std::vector<int32_t> ids;
  size_t at = 0;
  // Plain tokens must not reach into a literal: " </" would hide "</think>".
  while (at < bytes.size()) {
    size_t end = bytes.size();
    const std::pair<const std::string_view, int32_t>* literal = nullptr;
    for (size_t i = at; literals == Literals::kAreTokens && i < bytes.size(); ++i) {
      literal = added_.find(bytes.substr(i));
      if (literal == nullptr) continue;
      end = i;
      break;
    }
    while (at < end) {
      const auto* token = plain_.find(bytes.substr(at, end - at));
      if (token == nullptr) {
        char hex[8];
        std::snprintf(hex, sizeof hex, "0x%02x", unsigned(uint8_t(bytes[at])));
        return Error{Code::kInvalidArgument,
                     format("found byte ", hex, " at ", at, ", expected bytes that the tokenizer has "
                            "tokens for")};
      }
      ids.push_back(token->second);
      at += token->first.size();
    }
    if (literal == nullptr) continue;
    ids.push_back(literal->second);
    at += literal->first.size();
  }
  return ids;
}

}  // namespace millrace
