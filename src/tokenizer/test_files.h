#pragma once

// For tests: files of the repository, and small tokenizer.json texts made to order.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace millrace {

// Defined in tokenizer_test.cc.
std::string read_test_file(std::string_view path_in_repository);

inline Tokenizer must_parse(std::string_view json) {
  Result<Tokenizer> result = Tokenizer::parse(json);
  EXPECT_TRUE(result.has_value()) << (result.has_value() ? "" : result.error().message);
  return std::move(result.value());
}

inline Tokenizer nano_tokenizer() {
  return must_parse(read_test_file("models/nano/tokenizer.json"));
}

// What the official library answered for one text; see tests/e2e/tokenizer/compare.mjs.
struct OfficialAnswer {
  std::string text;
  std::vector<int32_t> piece_sizes, ids, plain_ids;
};

std::vector<OfficialAnswer> nano_answers();  // defined in tokenizer_test.cc

// A tokenizer.json whose parts can be replaced: ids 0-255 are the bytes.
struct TestTokenizerJson {
  std::string version = R"("version": "1.0")";
  std::string added_tokens = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type": "Sequence", "pretokenizers": [)"
      R"({"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated", )"
      R"("invert": false},)"
      R"({"type": "Split", "pattern": {"Regex": "[一-龥\u3040-ゟ゠-ヿ]+"}, "behavior": "Isolated", )"
      R"("invert": false},)"
      R"({"type": "Split", "pattern": {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~])"
      R"([A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*)"
      R"(|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},)"
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
  std::string post_processor = "null";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string model_type = R"("BPE")";
  std::string model_options = R"("dropout": null)";
  std::string bytes = byte_vocabulary();
  std::string vocab;  // further entries
  std::string merges = "[]";

  static std::string byte_vocabulary() {
    std::string out;
    for (int b = 0; b < 256; ++b) {
      std::string spelling;
      append_utf8(byte_level_character(static_cast<unsigned char>(b)), spelling);
      if (spelling == "\"" || spelling == "\\") spelling = '\\' + spelling;
      out += format(b == 0 ? "\"" : ", \"", spelling, "\": ", b);
    }
    return out;
  }

  std::string text() const {
    return format('{', version, R"(, "added_tokens": )", added_tokens, R"(, "normalizer": )",
                  normalizer, R"(, "pre_tokenizer": )", pre_tokenizer, R"(, "post_processor": )",
                  post_processor, R"(, "decoder": )", decoder, R"(, "model": {"type": )",
                  model_type, ", ", model_options, R"(, "vocab": {)", bytes,
                  vocab.empty() ? "" : ", ", vocab, R"(}, "merges": )", merges, "}}");
  }

  static std::string added(int32_t id, std::string_view content, bool normalized = false,
                           bool special = true) {
    return format(R"({"id": )", id, R"(, "content": ")", content, R"(", "normalized": )",
                  normalized ? "true" : "false", R"(, "special": )", special ? "true" : "false",
                  '}');
  }
};

}  // namespace millrace
