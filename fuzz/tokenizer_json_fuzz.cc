// tokenizer.json. Whatever is accepted encodes any bytes without loss, and its ids are in range.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tokenizer/tokenizer.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const Result<Tokenizer> parsed = Tokenizer::parse(json);
  if (!parsed.has_value()) {
    MR_CHECK(!parsed.error().message.empty());
    return 0;
  }
  const Tokenizer& tokenizer = parsed.value();
  std::string text = "The quick brown fox\r\n\t jumps 1234567 times; na\xC3\xAFve \xE4\xB8\xAD\xE6\x96\x87\xff ab";
  text += json.substr(0, 64);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    MR_CHECK(!tokenizer.token_bytes(id).empty());
    if (tokenizer.is_added(id)) text += tokenizer.token_bytes(id);
    if (text.size() > 1000) break;
  }
  for (const SpecialTokens mode : {SpecialTokens::kRecognise, SpecialTokens::kPlainText}) {
    std::string back;
    for (const int32_t id : tokenizer.encode(text, mode)) {
      MR_CHECK(mode == SpecialTokens::kRecognise || !tokenizer.is_added(id));
      back += tokenizer.token_bytes(id);
    }
    MR_CHECK(back == text);
  }
  return 0;
}
