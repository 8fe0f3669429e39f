#include "tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/test_files.h"

namespace millrace {
namespace {

using testing::StartsWith;

std::string refusal(const std::string& json) {
  const Result<TokenizerJson> result = read_tokenizer_json(json);
  if (result.has_value()) return "accepted";
  EXPECT_EQ(result.error().code, Code::kCorrupt);
  return result.error().message;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TokenizerJson, AcceptsTheReleasedForm) {
  TestTokenizerJson file;
  EXPECT_EQ(refusal(file.text()), "accepted");
  file.normalizer = R"({"type": "Sequence", "normalizers": []})";
  file.post_processor = R"({"type": "ByteLevel", "trim_offsets": false})";
  file.model_options = R"("dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                          "ignore_merges": false, "byte_fallback": false)";
  // CR and LF of the third pattern as escapes of the regular expression.
  file.pre_tokenizer = replaced(replaced(file.pre_tokenizer, R"([^\r\n)", R"([^\\r\\n)"),
                                R"(*[\r\n]+)", R"(*[\\r\\n]+)");
  EXPECT_EQ(refusal(file.text()), "accepted");
}

TEST(TokenizerJson, MergesAreLinesOrPairs) {
  TestTokenizerJson file;
  file.vocab = R"("ab": 256, "Ġa": 257)";
  file.merges = R"(["a b", ["Ġ", "a"]])";
  const Result<TokenizerJson> result = read_tokenizer_json(file.text());
  ASSERT_TRUE(result.has_value()) << result.error().message;
  const std::vector<Merge>& merges = result.value().merges;
  ASSERT_EQ(merges.size(), 2u);
  EXPECT_EQ(merges[0].left, 'a');
  EXPECT_EQ(merges[0].right, 'b');
  EXPECT_EQ(merges[0].result, 256);
  EXPECT_EQ(merges[1].left, ' ');
  EXPECT_EQ(result.value().tokens[257], " a");
}

TEST(TokenizerJson, RefusesWhatItWouldTokeniseDifferently) {
  using File = TestTokenizerJson;
  const struct {
    void (*change)(File&);
    const char* message;
  } cases[] = {
      {[](File& f) { f.model_type = R"("WordPiece")"; },
       R"(model.type: found "WordPiece", expected "BPE")"},
      {[](File& f) { f.model_options = R"("dropout": 0.1)"; },
       "model.dropout: found 0.1, expected it to be off (null, false, \"\", 0 or absent)"},
      {[](File& f) { f.model_options = R"("ignore_merges": true)"; },
       "model.ignore_merges: found true, expected it to be off"},
      {[](File& f) { f.model_options = R"("end_of_word_suffix": "</w>")"; },
       "model.end_of_word_suffix: found \"</w>\", expected it to be off"},
      {[](File& f) { f.version += R"(, "truncation": {"max_length": 512})"; },
       "truncation: found an object, expected it to be off"},
      {[](File& f) { f.normalizer = R"({"type": "NFC"})"; },
       R"(normalizer.type: found "NFC", expected "Sequence")"},
      {[](File& f) { f.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})"; },
       "normalizer.normalizers: found [an object], expected an empty array"},
      {[](File& f) { f.pre_tokenizer = "null"; }, "pre_tokenizer: found null, expected an object"},
      {[](File& f) { f.pre_tokenizer = R"({"type": "ByteLevel"})"; },
       R"(pre_tokenizer.type: found "ByteLevel", expected "Sequence")"},
      {[](File& f) { f.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": []})"; },
       "pre_tokenizer.pretokenizers: found [], expected three Split and one ByteLevel"},
      {[](File& f) { f.pre_tokenizer = replaced(f.pre_tokenizer, "{1,3}", "{1,4}"); },
       R"(pre_tokenizer.pretokenizers[0].pattern.Regex: found "\\p{N}{1,4}", expected the pattern )"
       R"(\p{N}{1,3})"},
      {[](File& f) { f.pre_tokenizer = replaced(f.pre_tokenizer, "Isolated", "Removed"); },
       R"(pre_tokenizer.pretokenizers[0].behavior: found "Removed", expected "Isolated")"},
      {[](File& f) { f.pre_tokenizer = replaced(f.pre_tokenizer, "false", "true"); },
       "pre_tokenizer.pretokenizers[0].invert: found true, expected false"},
      {[](File& f) {
         f.pre_tokenizer =
             replaced(f.pre_tokenizer, R"("use_regex": false)", R"("use_regex": true)");
       },
       "pre_tokenizer.pretokenizers[3].use_regex: found true, expected false"},
      {[](File& f) { f.post_processor = R"({"type": "TemplateProcessing"})"; },
       R"(post_processor.type: found "TemplateProcessing", expected "ByteLevel")"},
      {[](File& f) { f.decoder = "null"; }, "decoder: found null, expected an object"},
      {[](File& f) { f.decoder = R"({"type": "Metaspace"})"; },
       R"(decoder.type: found "Metaspace", expected "ByteLevel")"},
      {[](File& f) {
         f.added_tokens =
             replaced('[' + File::added(256, "<x>") + ']', "{", R"({"lstrip": true, )");
       },
       "added_tokens[0].lstrip: found true, expected it to be off"},
  };
  for (const auto& c : cases) {
    TestTokenizerJson file;
    c.change(file);
    EXPECT_THAT(refusal(file.text()), StartsWith(c.message));
  }
}

TEST(TokenizerJson, RefusesVocabulariesThatContradictThemselves) {
  using File = TestTokenizerJson;
  const struct {
    void (*change)(File&);
    const char* message;
  } cases[] = {
      {[](File& f) { f.vocab = R"("ab": 255)"; },
       R"(model.vocab["ab"]: found 255, expected an id that no other token has)"},
      {[](File& f) { f.vocab = R"("ab": 257)"; },
       R"(model.vocab["ab"]: found 257, expected an id below 257, the number of tokens in the )"
       "file"},
      {[](File& f) { f.vocab = R"("ab": -1)"; }, R"(model.vocab["ab"]: found -1, expected an id)"},
      {[](File& f) { f.vocab = R"("ab": "x")"; }, R"(model.vocab["ab"]: found "x", expected)"},
      {[](File& f) { f.vocab = R"("ab": 1e300)"; }, R"(model.vocab["ab"]: found 1e+300, expected)"},
      {[](File& f) { f.vocab = R"("": 256)"; },
       R"(model.vocab[""]: found 256, expected no empty token)"},
      {[](File& f) {
         f.vocab = R"("ab": 257)";
         f.added_tokens = '[' + File::added(97, "a") + ']';
       },
       R"(model.vocab and added_tokens: found no token for id 256, expected one for every id up )"
       "to 257"},
      {[](File& f) { f.bytes = replaced(f.bytes, R"("A": 65)", R"("AA": 65)"); },
       R"(model.vocab: found no token for byte 65, expected "A" as an ordinary token)"},
      {[](File& f) { f.added_tokens = '[' + File::added(65, "A") + ']'; },
       R"(model.vocab: found an added token for byte 65, expected "A" as an ordinary token)"},
      {[](File& f) { f.added_tokens = '[' + File::added(65, "<s>") + ']'; },
       R"(added_tokens[0]: found id 65 for "<s>", expected an id that no token of model.vocab has)"},
      {[](File& f) {
         f.vocab = R"("<s>": 256)";
         f.added_tokens = '[' + File::added(257, "<s>") + ']';
       },
       R"(added_tokens[0].id: found 257, expected 256, the id of "<s>" in model.vocab)"},
      {[](File& f) {
         f.vocab = R"("Ġa": 256)";
         f.added_tokens = '[' + File::added(256, "Ġa") + ']';
       },
       R"(added_tokens[0].content: found "Ġa", which spells other bytes in model.vocab)"},
      {[](File& f) {
         f.added_tokens = '[' + File::added(256, "<x>") + ',' + File::added(256, "<y>") + ']';
       },
       "added_tokens[1].id: found 256, expected an id that no other token has"},
      {[](File& f) {
         f.added_tokens = '[' + File::added(256, "<x>") + ',' + File::added(257, "<x>") + ']';
       },
       R"(added_tokens[1].content: found "<x>", expected text that no other added token has)"},
      {[](File& f) { f.added_tokens = '[' + File::added(256, "") + ']'; },
       R"(added_tokens[0].content: found "", expected a string that is not empty)"},
      {[](File& f) { f.added_tokens = R"([{"id": 256, "content": "<x>"}])"; },
       "added_tokens[0].special: found nothing, expected true or false"},
      {[](File& f) { f.added_tokens = "[7]"; }, "added_tokens[0]: found 7, expected an object"},
      {[](File& f) { f.added_tokens = "{}"; }, "added_tokens: found {}, expected an array"},
      {[](File& f) { f.merges = R"(["a b"])"; },
       R"(model.merges[0]: found "ab", expected a token of model.vocab)"},
      {[](File& f) { f.merges = R"(["aa b"])"; },
       R"(model.merges[0]: found "aa", expected a token of model.vocab)"},
      {[](File& f) { f.merges = R"(["ab"])"; },
       R"(model.merges[0]: found "ab", expected two tokens, as "a b" or ["a", "b"])"},
      {[](File& f) { f.merges = R"(["a b c"])"; },
       R"(model.merges[0]: found "a b c", expected two)"},
      {[](File& f) { f.merges = R"([" b"])"; }, R"(model.merges[0]: found " b", expected two)"},
      {[](File& f) { f.merges = R"([["a", "b", "c"]])"; },
       R"(model.merges[0]: found ["a", "b", "c"], expected two)"},
      {[](File& f) { f.merges = R"([["a", 1]])"; },
       R"(model.merges[0]: found ["a", 1], expected two)"},
      {[](File& f) { f.merges = "[7]"; }, "model.merges[0]: found 7, expected two"},
      {[](File& f) { f.merges = "{}"; }, "model.merges: found {}, expected an array"},
  };
  for (const auto& c : cases) {
    TestTokenizerJson file;
    c.change(file);
    EXPECT_THAT(refusal(file.text()), StartsWith(c.message));
  }
}

TEST(TokenizerJson, RefusesTextThatIsNotATokenizer) {
  EXPECT_EQ(refusal(""), "found incomplete JSON at byte 0, expected JSON");
  EXPECT_EQ(refusal("{} x"), "found extra data at byte 3, expected JSON");
  EXPECT_EQ(refusal(R"({"model": )"), "found incomplete JSON at byte 10, expected JSON");
  EXPECT_EQ(refusal("{\"a\": \"\xff\"}"), "found syntax error at byte 7, expected JSON");
  EXPECT_EQ(refusal(std::string(100'000, '[')),
            "found too deep at byte 16, expected JSON of at most 16 levels");
  EXPECT_EQ(refusal("[]"), "the text: found [], expected an object");
  EXPECT_EQ(refusal("{}"), "model: found nothing, expected an object");
  EXPECT_EQ(refusal(R"({"model": {}})"), "model.type: found nothing, expected \"BPE\"");
  const std::string json = TestTokenizerJson().text();
  EXPECT_EQ(refusal(replaced(json, "\"vocab\"", "\"words\"")),
            "model.vocab: found nothing, expected an object");
  EXPECT_EQ(refusal(replaced(json, "\"merges\"", "\"pairs\"")),
            "model.merges: found nothing, expected an array");
  for (size_t size = 0; size < json.size(); size += 101) {
    EXPECT_EQ(refusal(json.substr(0, size)),
              format("found incomplete JSON at byte ", size, ", expected JSON"));
  }
}

TEST(TokenizerJson, RefusesATokenThatIsThereTwice) {
  TestTokenizerJson file;
  file.vocab = R"("ab": 256, "ab": 257)";
  EXPECT_THAT(refusal(file.text()), StartsWith("model.vocab.ab: found again at byte "));
  file.vocab = R"("ab": 256)";
  file.version = R"("version": "1.0", "normalizer": null)";
  EXPECT_THAT(refusal(file.text()), StartsWith("normalizer: found again at byte "));
}

}  // namespace
}  // namespace millrace
