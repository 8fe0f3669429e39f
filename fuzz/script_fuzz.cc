// Scripts of the scripted engine, and requests that they answer. What is accepted keeps its limits and
// has only tokens of the vocabulary; every choice comes to one end, within what the request allows,
// with due times that never go back; bytes become tokens that have exactly these bytes.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/script.h"
#include "engine/script_player.h"
#include "engine/test_byte_vocabulary.h"
#include "engine/token_lookup.h"

using namespace millrace;

namespace {

constexpr int64_t kMaxModelLen = 2000;

void check_tokens(const std::vector<int32_t>& ids, const TokenTable& table) {
  MR_CHECK(!ids.empty());
  for (int32_t id : ids) {
    MR_CHECK_OP(id, >=, 0);
    MR_CHECK_OP(size_t(id), <, table.bytes.size());
  }
}

void play(const ScriptReply& reply, const Request& request, const OutputTokens& tokens) {
  ScriptPlayer player(reply, request, tokens, kMaxModelLen);
  const int64_t num_left = kMaxModelLen - int64_t(request.prompt_token_ids.size());
  const int64_t max_tokens =
      reply.ignore_limits ? num_left : request.sampling.max_tokens.value_or(num_left);
  int64_t num_tokens = 0, num_bytes = 0, last_due_ns = 0;
  while (!player.has_ended()) {
    MR_CHECK_OP(player.due_ns(), >=, last_due_ns);
    last_due_ns = player.due_ns();
    const StreamEvent event = player.next();
    MR_CHECK(event.finish_reason.has_value() == player.has_ended());
    MR_CHECK_OP(event.num_settled_bytes, >=, num_bytes);
    num_bytes = event.num_settled_bytes;
    num_tokens += event.token_id.has_value();
    MR_CHECK(event.token_id || event.finish_reason);
  }
  MR_CHECK_OP(num_tokens, <=, max_tokens);
  MR_CHECK_OP(num_tokens, ==, player.num_tokens());
}

}  // namespace

// The first two bytes are the request's, the rest is the script.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TokenTable* const kTable = new TokenTable(test::byte_table());
  static const TokenLookup* const kLookup = new TokenLookup(*kTable);
  const OutputTokens tokens{kTable->bytes, kTable->is_control, kTable->eos_token_ids};
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);

  for (const auto literals : {TokenLookup::Literals::kAreTokens, TokenLookup::Literals::kAreBytes}) {
    MR_CHECK(test::bytes_of(*kTable, kLookup->encode(text, literals).value()) == text);
  }

  Result<Script> script = Script::parse(text, *kTable);
  if (!script.has_value()) {
    MR_CHECK(!script.error().message.empty());
    return 0;
  }
  MR_CHECK(!script.value().replies().empty());
  Request request;
  request.prompt_token_ids = test::ids_of("a prompt with rain");
  request.sampling.logprobs = data[0] % 4 - 1;
  if (data[0] & 4) request.sampling.max_tokens = data[1] % 64;
  if (data[0] & 8) request.sampling.min_tokens = data[1] % 8;
  if (data[0] & 16) request.sampling.stop_token_ids = {int32_t(data[1]), test::kEnd};
  if (data[0] & 32) request.sampling.stop = {"ab", "Hello"};
  request.sampling.ignore_eos = data[0] & 64;
  request.sampling.skip_special_tokens = data[0] & 128;

  for (const ScriptReply& reply : script.value().replies()) {
    MR_CHECK_OP(reply.pieces.size(), <=, kMaxScriptPieces);
    for (const ScriptPiece& piece : reply.pieces) check_tokens(piece.token_ids, *kTable);
    play(reply, request, tokens);
  }
  const Result<Script::Group*> lines = script.value().find("a prompt with rain", 0, 2);
  if (!lines.has_value()) return 0;
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<const ScriptReply*> chosen = script.value().choose(*lines.value(), 0, 2);
    MR_CHECK_OP(chosen.size(), ==, 2u);
    for (int32_t c = 0; c < 2; ++c) {
      MR_CHECK(!chosen[size_t(c)]->choice_idx || *chosen[size_t(c)]->choice_idx == c);
    }
  }
  return 0;
}
