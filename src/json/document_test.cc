#include "json/document.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>

namespace millrace {
namespace {

std::string message_of(std::string_view text) {
  const Result<boost::json::value> value =
      parse_json_file(text, {.max_bytes = 1000, .max_depth = 4});
  return value.has_value() ? "accepted" : value.error().message;
}

TEST(JsonFile, IsReadWhole) {
  const Result<boost::json::value> value =
      parse_json_file(R"( {"a": [1, {"b": "x"}], "c": {"b": null}} )", {1000, 4});
  ASSERT_TRUE(value.has_value()) << value.error().message;
  EXPECT_EQ(boost::json::serialize(value.value()), R"({"a":[1,{"b":"x"}],"c":{"b":null}})");
}

TEST(JsonFile, NamesTheByteOfAnError) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "found incomplete JSON at byte 0, expected JSON"},
      {"{\"a\" 1}", "found syntax error at byte 5, expected JSON"},
      {"[1, 2", "found incomplete JSON at byte 5, expected JSON"},
      {"[1] x", "found extra data at byte 4, expected JSON"},
      {"{\"a\": \"\xff\"}", "found syntax error at byte 7, expected JSON"},
      {"[[[[[1]]]]]", "found too deep at byte 4, expected JSON of at most 4 levels"},
      {std::string(1001, ' '), "found 1001 bytes, expected at most 1000"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(message_of(text), want) << text;
}

TEST(JsonFile, RefusesAKeyThatAppearsTwiceWithItsPath) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"a": 1, "b": 2, "a": 1})", "a: found again at byte 19, expected each key once"},
      {R"({"a": {"b": 1, "\u0062": 2}})", "a.b: found again at byte 22, expected each key once"},
      {R"([0, [1], {}, {"a": {"b": [], "b": 1}}])",
       "[3].a.b: found again at byte 31, expected each key once"},
      {R"({"": 1, "": 2})", ": found again at byte 9, expected each key once"},
      {R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]})", "accepted"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(message_of(text), want) << text;
}

TEST(JsonFile, ValuesAreDescribedAsTheyWouldBeWritten) {
  const auto described = [](std::string_view text) {
    const Result<boost::json::value> value = parse_json_file(text, {10'000, 32});
    return value.has_value() ? describe(&value.value()) : value.error().message;
  };
  EXPECT_EQ(describe(nullptr), "nothing");
  for (const char* text : {"null", "true", "-7", "18446744073709551615", "0.1", "1e-40", "5120.5",
                           R"("a\nb")", "[]", R"([1, "x", [2.5]])", "{}"}) {
    EXPECT_EQ(described(text), text);
  }
  EXPECT_EQ(described(R"([{"a": 1}])"), "[an object]");
  EXPECT_EQ(described('"' + std::string(61, 'x') + '"'), '"' + std::string(60, 'x') + "\"...");
  EXPECT_EQ(described('"' + std::string(59, 'x') + "\u00e9\""),
            '"' + std::string(59, 'x') + "\"...");
  std::string many = "[1";
  for (int i = 0; i < 1000; ++i) many += ",1";
  EXPECT_EQ(described(many + "]").size(), 65u);
  EXPECT_EQ(described(many + "]").substr(57), " 1, ...]");
}

}  // namespace
}  // namespace millrace
