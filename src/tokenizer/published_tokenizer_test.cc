#include "tokenizer/published_tokenizer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/sha256.h"
#include "tokenizer/test_files.h"
#include "tokenizer/token_map.h"

namespace millrace {
namespace {

TEST(PublishedTokenizer, MustHaveItsPublishedTokenMap) {
  const std::string json = read_test_file("models/nano/tokenizer.json");
  const Tokenizer tokenizer = must_parse(json);
  const std::vector<int32_t> map = make_token_map(tokenizer).compressed_ids;
  std::string bytes(map.size() * sizeof(int32_t), '\0');
  std::memcpy(bytes.data(), map.data(), bytes.size());
  const std::string file_digest = sha256(json), map_digest = sha256(bytes);
  const std::string other_digest = sha256("another map");

  const auto message = [&](const PublishedTokenizer& known) {
    const Status status = check_published_token_map(json, tokenizer, {{known}});
    return status.ok() ? "accepted" : status.error().message;
  };
  const std::string_view begin = std::string_view(file_digest).substr(0, 8);
  EXPECT_EQ(message({json.size(), begin, map_digest}), "accepted");
  EXPECT_EQ(message({json.size(), begin, other_digest}),
            "compressed token ids: found SHA-256 " + map_digest + ", expected " + other_digest +
                ", published for this tokenizer");
  // Of a file that is not the published one nothing is known.
  EXPECT_EQ(message({json.size() + 1, begin, other_digest}), "accepted");
  EXPECT_EQ(message({json.size(), "00000000", other_digest}), "accepted");
  EXPECT_TRUE(check_published_token_map(json, tokenizer).ok());
}

}  // namespace
}  // namespace millrace
