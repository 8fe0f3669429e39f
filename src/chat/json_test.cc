#include "chat/json.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

std::string rewritten(std::string_view text, JsonSyntax syntax = JsonSyntax::kStandard) {
  const Result<JsonValue> value = parse_json(text, {}, syntax);
  if (!value.has_value()) return "error: " + value.error().message;
  std::string out;
  const Status status = write_json(value.value(), out);
  return status.ok() ? out : "error: " + status.error().message;
}

// Expected texts were printed by Python's json.dumps(json.loads(text), ensure_ascii=False).
TEST(Json, WritesNumbersAsPythonDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"-0e7", "-0.0"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-9007199254740993", "-9007199254740993"},
      {"1.10", "1.1"},
      {"1E+5", "100000.0"},
      {"1e-5", "1e-05"},
      {"0.0001", "0.0001"},
      {"0.00001234", "1.234e-05"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"12345678901234567.5", "1.2345678901234568e+16"},
      {"1.5E300", "1.5e+300"},
      {"5e-324", "5e-324"},
      {"1e-400", "0.0"},
      {"-1e-99999999999999999999", "-0.0"},
      {"0.1000000000000000055511151231257827", "0.1"},
      {"2.5e-3", "0.0025"},
      {"123456789.125", "123456789.125"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(rewritten(text), want) << text;
}

TEST(Json, RefusesToWriteNumbersThatAreNotFinite) {
  for (const char* text : {"1e999", "-1e309", "1e99999999999999999999", "NaN", "Infinity",
                           "-Infinity"}) {
    EXPECT_NE(rewritten(text, JsonSyntax::kPython).find("not finite"), std::string::npos) << text;
  }
  const std::string many_digits = std::string(400, '9') + ".0";
  EXPECT_NE(rewritten(many_digits).find("not finite"), std::string::npos);
  const std::string many_zeros = "0." + std::string(400, '0') + "1";
  EXPECT_EQ(rewritten(many_zeros), "0.0");
}

TEST(Json, ResolvesEscapesAndWritesOnlyTheNeededOnes) {
  EXPECT_EQ(rewritten(R"("\u00e9\ud83d\ude00 \/ \u0001\u001F \u007f \" \\ \b\f\n\r\t \u0000")"),
            "\"\u00e9\U0001F600 / \\u0001\\u001f \x7f \\\" \\\\ \\b\\f\\n\\r\\t \\u0000\"");
}

TEST(Json, KeepsKeyOrderAndTheLastValueOfARepeatedKey) {
  EXPECT_EQ(rewritten(R"( {"z":1,"a" : [ ] ,"10":{},"2":null,"z":[true,false]} )"),
            R"({"z": [true, false], "a": [], "10": {}, "2": null})");
}

TEST(Json, NamesThePlaceOfAnError) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "JSON byte 0: found the end, expected a value"},
      {"[1,]", "JSON byte 3: found ']', expected a value"},
      {"{\"a\" 1}", "JSON byte 5: found '1', expected ':'"},
      {"{a: 1}", "JSON byte 1: found 'a', expected a key"},
      {"01", "JSON byte 1: found '1', expected the end"},
      {"1.", "JSON byte 2: found the end, expected a digit"},
      {"-x", "JSON byte 1: found 'x', expected a digit"},
      {"NaN", "JSON byte 0: found 'N', expected a value"},
      {"\"a\nb\"", "JSON byte 2: found byte value 10, expected an escaped control character"},
      {"\"\\x\"", "JSON byte 2: found 'x', expected an escape character"},
      {"\"\\u12g4\"", "JSON byte 3: found '1', expected four hexadecimal digits"},
      {"\"\\u-123\"", "JSON byte 3: found '-', expected four hexadecimal digits"},
      {"\"\\ud800\"", "JSON byte 7: found a lone surrogate, expected a pair"},
      {"\"\\ud800\\u0041\"", "JSON byte 13: found a lone surrogate, expected a pair"},
      {"\"\xED\xA0\x80\"", "JSON byte 1: found byte value 237, expected valid UTF-8"},
      {"\"\xC0\x80\"", "JSON byte 1: found byte value 192, expected valid UTF-8"},
      {"\"\xE2\x82\"", "JSON byte 1: found byte value 226, expected valid UTF-8"},
      {"\"\xF4\x90\x80\x80\"", "JSON byte 1: found byte value 244, expected valid UTF-8"},
      {"\"open", "JSON byte 5: found the end, expected '\"'"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(rewritten(text), std::string("error: ") + want);
}

TEST(Json, RefusesTextsBeyondItsLimits) {
  const JsonLimits limits{.max_bytes = 20, .max_values = 4, .max_depth = 2};
  for (const char* text : {"[[[]]]", "[1,2,3,4]", "\"123456789012345678901\""}) {
    const Result<JsonValue> value = parse_json(text, limits);
    ASSERT_FALSE(value.has_value()) << text;
    EXPECT_EQ(value.error().code, Code::kExhausted) << text;
  }
  EXPECT_TRUE(parse_json("[[1], 2]", limits).has_value());
  EXPECT_FALSE(parse_json(std::string(1000000, '[')).has_value());
}

}  // namespace
}  // namespace millrace
