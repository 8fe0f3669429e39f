#include "tokenizer/token_map.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "tokenizer/normalize.h"
#include "tokenizer/test_files.h"

namespace millrace {
namespace {

TEST(EngramKey, FoldsCaseAccentsWidthAndBlanks) {
  const struct {
    const char* text;
    const char* key;
  } cases[] = {
      {"Hello", "hello"},
      {" the", "the"},
      {"\u00c9t\u00e9", "ete"},            // precomposed accents
      {"e\u0301\u0308", "e"},              // combining ones
      {"\uff28\uff49", "hi"},              // full width
      {"<\uff5cUser\uff5c>", "<|user|>"},  // added tokens too
      {"\ufb01x", "fix"},                  // ligature
      {"a\t\r\n b", "a b"},                // a run of blanks is one space
      {" ", " "},
      {"\n\t", " "},
      {"\u00a0", " "},  // and stays if it is all
      {"\u2028", ""},
      {"\v", ""},             // other white space does not
      {"\u0301", ""},         // a mark alone neither
      {"\u1e9b\u0323", "s"},  // composed and decomposed again
      {"\u0130\u01c5", "idz"},
      {"\u03a3\u03c3\u03c2", "\u03c3\u03c3\u03c2"},  // no final sigma
      {"\uac00\u11a8", "\u1100\u1161\u11a8"},        // Hangul ends decomposed
      {"\ue000", " "},                               // the stand-in for a lone space itself
      {"\u3000x\u0085", "x"},
  };
  for (const auto& c : cases) EXPECT_EQ(engram_key(c.text), c.key) << c.text;
}

TEST(EngramKey, UsesTheMarksAndNormalisationOfUnicode9) {
  EXPECT_EQ(engram_key("x\u07fd"), "x\u07fd");  // a mark since Unicode 11: stays
  EXPECT_EQ(engram_key("x\u0897"), "x\u0897");  // since 16
  EXPECT_EQ(engram_key("x\u08e3"), "x");        // since 8
  EXPECT_EQ(engram_key("\u32ff"), "\u32ff");    // compatibility character of Unicode 12.1
  EXPECT_EQ(engram_key("\u32fe"), "\u30f2");    // its neighbour is older
  EXPECT_EQ(engram_key("\ua7ce"), "\ua7cf");    // but lower case is Unicode 17's
}

TEST(Normalize, ComposesAndReordersByTheStandard) {
  EXPECT_EQ(normalize(U"a\u0323\u0302", Normalization::kNfkc), U"\u1ead");
  EXPECT_EQ(normalize(U"a\u0302\u0323", Normalization::kNfkc), U"\u1ead");
  EXPECT_EQ(normalize(U"a\u0302\u0323", Normalization::kNfd), U"a\u0323\u0302");
  EXPECT_EQ(normalize(U"\u0344", Normalization::kNfkc), U"\u0308\u0301");  // excluded
  EXPECT_EQ(normalize(U"\u0958", Normalization::kNfkc), U"\u0915\u093c");  // excluded
  EXPECT_EQ(normalize(U"\u212b\u2126", Normalization::kNfkc), U"\u00c5\u03a9");
  EXPECT_EQ(normalize(U"\u1100\u1161\u11a8", Normalization::kNfkc), U"\uac01");
  EXPECT_EQ(normalize(U"\uac01", Normalization::kNfd), U"\u1100\u1161\u11a8");
  EXPECT_EQ(normalize(U"\ufb01", Normalization::kNfd), U"\ufb01");
  EXPECT_EQ(normalize(U"a\u0315\u0300", Normalization::kNfkc), U"\u00e0\u0315");
  EXPECT_EQ(normalize(U"\u09c7x\u09be", Normalization::kNfkc), U"\u09c7x\u09be");
  EXPECT_EQ(normalize(U"\u09c7\u09be", Normalization::kNfkc), U"\u09cb");
}

TEST(TokenMap, NanoHasTheNumberOfItsConfig) {
  const TokenMap map = make_token_map(nano_tokenizer());
  EXPECT_EQ(map.compressed_ids.size(), 4096u);
  EXPECT_EQ(map.compressed_vocab_size, 3445);
}

TEST(TokenMap, TokensThatAreNotTextKeepTheirOwnIds) {
  // Bytes 0xc0 and 0xc1 decode to the same U+FFFD.
  const TokenMap map = make_token_map(must_parse(TestTokenizerJson().text()));
  EXPECT_NE(map.compressed_ids[0xc0], map.compressed_ids[0xc1]);
  EXPECT_EQ(map.compressed_ids['A'], map.compressed_ids['a']);
  EXPECT_EQ(map.compressed_ids['\n'], map.compressed_ids[' ']);
  // VT has no key but itself.
  EXPECT_NE(map.compressed_ids['\v'], map.compressed_ids[' ']);
  EXPECT_NE(map.compressed_ids['\v'], map.compressed_ids['\f']);
}

TEST(TokenMap, ToyEqualsTheIndependentReference) {
  const std::string golden = read_test_file("tests/golden/tiny-v41.golden.safetensors");
  uint64_t header_bytes = 0;
  ASSERT_GT(golden.size(), 8u);
  std::memcpy(&header_bytes, golden.data(), 8);
  const std::string header = golden.substr(8, header_bytes);
  const size_t entry = header.find("\"token_map\"");
  ASSERT_NE(entry, header.npos);
  const size_t offsets = header.find("\"data_offsets\"", entry);
  ASSERT_NE(offsets, header.npos);
  unsigned long begin = 0, end = 0;
  ASSERT_EQ(std::sscanf(header.c_str() + offsets, "\"data_offsets\": [%lu, %lu]", &begin, &end), 2);
  std::vector<int32_t> expected((end - begin) / 4);
  ASSERT_EQ(expected.size(), 512u);
  std::memcpy(expected.data(), golden.data() + 8 + header_bytes + begin, end - begin);

  const Tokenizer toy = must_parse(read_test_file("tests/golden/tiny-v41/tokenizer.json"));
  EXPECT_EQ(make_token_map(toy).compressed_ids, expected);
}

}  // namespace
}  // namespace millrace
