#include "openai/token_writer.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/format.h"

namespace millrace::openai {

namespace {

std::string id_text(int32_t id) { return format("token_id:", id); }

}  // namespace

std::string TokenWriter::token_text(int32_t id) const {
  if (request_.return_tokens_as_token_ids) return id_text(id);
  return id < tokenizer_.vocab_size() ? tokenizer_.decode({&id, 1}) : "";
}

bool TokenWriter::is_shown(int32_t id) const {
  if (id >= tokenizer_.vocab_size()) return false;
  return !request_.sampling.params.skip_special_tokens || !tokenizer_.is_special(id);
}

std::string TokenWriter::shown_text(std::span<const int32_t> ids) const {
  std::vector<int32_t> shown;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(shown),
               [&](int32_t id) { return is_shown(id); });
  return tokenizer_.decode(shown);
}

void TokenWriter::chat_logprob(const TokenLogprob& logprob, JsonWriter& json) const {
  json.member("token", token_text(logprob.token_id)).member("logprob", logprob.logprob);
  json.key("bytes").begin_array();
  if (logprob.token_id < tokenizer_.vocab_size()) {
    for (char byte : tokenizer_.token_bytes(logprob.token_id)) json.value(int(uint8_t(byte)));
  }
  json.end_array();
}

void TokenWriter::chat_logprobs(std::span<const TokenLogprobs> tokens, JsonWriter& json) const {
  for (const TokenLogprobs& logprobs : tokens) {
    json.begin_object();
    chat_logprob(logprobs.token, json);
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : logprobs.top) {
      json.begin_object();
      chat_logprob(top, json);
      json.end_object();
    }
    json.end_array().end_object();
  }
}

void TokenWriter::text_logprobs(std::span<const TextToken> tokens, int64_t& offset,
                                JsonWriter& json) const {
  json.begin_object().key("text_offset").begin_array();
  for (const TextToken& token : tokens) {
    json.value(offset);
    if (!is_shown(token.id)) continue;
    // Bytes that continue a character do not count.
    const std::string_view bytes = tokenizer_.token_bytes(token.id);
    offset += std::count_if(bytes.begin(), bytes.end(),
                            [](char c) { return (uint8_t(c) & 0xc0) != 0x80; });
  }
  json.end_array().key("tokens").begin_array();
  for (const TextToken& token : tokens) json.value(token_text(token.id));
  json.end_array().key("token_logprobs").begin_array();
  for (const TextToken& token : tokens) {
    token.logprobs ? json.value(token.logprobs->token.logprob) : json.null();
  }
  json.end_array().key("top_logprobs").begin_array();
  for (const TextToken& token : tokens) {
    if (token.logprobs == nullptr) {
      json.null();
      continue;
    }
    top_logprobs(*token.logprobs, json);
  }
  json.end_array().end_object();
}

// The token itself has its text for a name, so that it is found under what `tokens` says; of others
// with the same text the likeliest has it, and the rest are named by their ids: nothing is lost.
void TokenWriter::top_logprobs(const TokenLogprobs& logprobs, JsonWriter& json) const {
  const int32_t own_id = logprobs.token.token_id;
  const std::string own_text = token_text(own_id);
  std::set<std::string> taken{own_text};
  bool has_own = false;
  json.begin_object();
  for (const TokenLogprob& top : logprobs.top) {
    const bool is_own = top.token_id == own_id;
    has_own |= is_own;
    std::string text = is_own ? own_text : token_text(top.token_id);
    if (!is_own && !taken.insert(text).second) text = id_text(top.token_id);
    json.member(text, top.logprob);
  }
  if (!has_own) json.member(own_text, logprobs.token.logprob);
  json.end_object();
}

void TokenWriter::prompt_logprobs(const TokenLogprobs& logprobs, JsonWriter& json) const {
  json.begin_object();
  prompt_logprob(logprobs.token, json);
  for (const TokenLogprob& top : logprobs.top) {
    if (top.token_id != logprobs.token.token_id) prompt_logprob(top, json);
  }
  json.end_object();
}

void TokenWriter::prompt_logprob(const TokenLogprob& logprob, JsonWriter& json) const {
  json.key(format(logprob.token_id)).begin_object().member("logprob", logprob.logprob);
  json.member("rank", logprob.rank);
  json.member("decoded_token", token_text(logprob.token_id)).end_object();
}

}  // namespace millrace::openai
