// Any text through nano's tokenizer: nothing is lost, untrusted text never becomes an added token,
// and neither segments nor pieces of the stream show. The first byte says where the text is cut.

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

using namespace millrace;

namespace {

Tokenizer nano_tokenizer() {
  std::ifstream file(MILLRACE_SOURCE_DIR "/models/nano/tokenizer.json");
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  Result<Tokenizer> tokenizer = Tokenizer::parse(json);
  MR_CHECK(tokenizer.has_value());
  return std::move(tokenizer.value());
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = front_code_point(text);
    if (c.value == CodePoint::kInvalid) return false;
    text.remove_prefix(c.size);
  }
  return true;
}

std::string bytes_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = nano_tokenizer();
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);

  const std::vector<int32_t> plain = tokenizer.encode(text, SpecialTokens::kPlainText);
  MR_CHECK(bytes_of(tokenizer, plain) == text);
  for (const int32_t id : plain) MR_CHECK(!tokenizer.is_added(id));
  const std::vector<int32_t> trusted = tokenizer.encode(text, SpecialTokens::kRecognise);
  MR_CHECK(bytes_of(tokenizer, trusted) == text);

  const std::string decoded = tokenizer.decode(plain);
  MR_CHECK(is_utf8(decoded));
  if (is_utf8(text)) MR_CHECK(decoded == text);
  std::string streamed;
  Detokenizer detokenizer(tokenizer);
  for (const int32_t id : plain) detokenizer.push(id, streamed);
  detokenizer.finish(streamed);
  MR_CHECK(streamed == decoded);

  // Buffers kept from another text change nothing.
  Tokenizer::Scratch scratch;
  std::vector<int32_t> ids;
  tokenizer.encode(text.substr(text.size() / 2), SpecialTokens::kPlainText, scratch, ids);
  ids.clear();
  tokenizer.encode(text, SpecialTokens::kPlainText, scratch, ids);
  MR_CHECK(ids == plain);

  const size_t cut = data[0] % (text.size() + 1);
  const TextSegment all_trusted[] = {{text.substr(0, cut), true}, {text.substr(cut), true}};
  MR_CHECK(tokenizer.encode(all_trusted) == trusted);
  const TextSegment none_trusted[] = {{text.substr(0, cut), false}, {text.substr(cut), false}};
  MR_CHECK(tokenizer.encode(none_trusted) == plain);
  const TextSegment mixed[] = {{text.substr(0, cut), true}, {text.substr(cut), false}};
  size_t end = 0;
  for (const int32_t id : tokenizer.encode(mixed)) {
    const std::string_view token = tokenizer.token_bytes(id);
    MR_CHECK(text.substr(end, token.size()) == token);
    end += token.size();
    if (tokenizer.is_added(id)) MR_CHECK(end <= cut);
  }
  MR_CHECK_OP(end, ==, text.size());
  return 0;
}
