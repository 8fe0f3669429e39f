#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

net::HttpRequest with_header(const std::string& name, const std::string& value) {
  net::HttpRequest request;
  request.headers.emplace_back(name, value);
  return request;
}

ApiKey key(const std::string& name, const std::string& secret, const KeyLimits& limits = {}) {
  return {name, secret, limits, 0};
}

TEST(ApiKeys, AFileIsReadWholeOrRefusedByItsField) {
  const std::vector<ApiKey> keys =
      parse_api_keys(R"({"keys": [{"name": "a", "key": "x", "max_concurrent_requests": 2,
                                   "requests_per_minute": 3, "tokens_per_minute": 4, "priority": -1},
                                  {"name": "b", "key": "y"}]})")
          .value();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].limits.max_concurrent_requests, 2);
  EXPECT_EQ(keys[0].limits.requests_per_minute, 3);
  EXPECT_EQ(keys[0].limits.tokens_per_minute, 4);
  EXPECT_EQ(keys[0].priority, -1);
  EXPECT_FALSE(keys[1].limits.requests_per_minute);

  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "keys: found nothing"},
      {R"([])", R"(found no object, expected {"keys": [...]})"},
      {R"({"keys": []})", "keys: found an array of 0, expected an array of at least one key"},
      {R"({"keys": [{"name": "a", "key": "x", "tokens_per_minute": 1.5}]})",
       "keys[0].tokens_per_minute: found number 1.5, expected an integer from 1 to"},
      {R"({"keys": [{"key": "x"}]})", "keys[0].name: found nothing"},
      {R"({"keys": [{"name": "a"}]})", "keys[0].key: expected a string"},
      {R"({"keys": [{"name": "a", "key": 7}]})", "keys[0].key: expected a string"},
      {R"({"keys": [{"name": "a", "key": "x", "tokens_per_minute": 0}]})",
       "expected an integer from 1 to"},
      {R"({"keys": [{"name": "a", "key": "x", "limit": 0}]})", "keys[0]: unknown field limit"},
      {R"({"keys": [{"name": "a", "key": "x", "priority": 9}]})",
       "expected an integer from -8 to 8"},
      {R"({"keys": [{"name": "a", "key": "x"}, {"name": "a", "key": "y"}]})", "a name of its own"},
      {R"({"keys": [{"name": "a", "key": "s3cret"}, {"name": "b", "key": "s3cret"}]})",
       "keys[1].key: is the same as that of a"},
  };
  for (const auto& [text, message] : cases) {
    const Result<std::vector<ApiKey>> refused = parse_api_keys(text);
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_THAT(refused.error().message, HasSubstr(message)) << text;
    EXPECT_THAT(refused.error().message, Not(HasSubstr("s3cret")));
  }
}

TEST(ApiKeys, AKeyIsFoundInEitherHeader) {
  const KeyRing ring({key("a", "one"), key("b", "two")});
  EXPECT_EQ(ring.find(with_header("authorization", "Bearer two")), 1u);
  EXPECT_EQ(ring.find(with_header("authorization", "bEaReR one")), 0u);
  EXPECT_EQ(ring.find(with_header("x-api-key", "one")), 0u);
  for (const char* value :
       {"", "one", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one"}) {
    EXPECT_EQ(ring.find(with_header("authorization", value)), std::nullopt) << value;
  }
  EXPECT_EQ(ring.find(with_header("x-api-key", "")), std::nullopt);
  EXPECT_EQ(ring.find({}), std::nullopt);
  EXPECT_TRUE(KeyRing({}).is_open());
}

TEST(ApiKeys, LimitsCountWhatIsOpenAndTheLastMinute) {
  KeyRing ring({key("many", "a", {.max_concurrent_requests = 2}),
                key("often", "b", {.requests_per_minute = 2}),
                key("much", "c", {.tokens_per_minute = 10})});
  ASSERT_TRUE(ring.enter(0, 0).ok());
  ASSERT_TRUE(ring.enter(0, 0).ok());
  const Status third = ring.enter(0, 0);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, Code::kExhausted);
  EXPECT_EQ(third.error().message,
            "API key many: found 2 requests at a time, which is its limit, expected fewer");
  ring.leave(0, 100, 1);
  EXPECT_TRUE(ring.enter(0, 1).ok());

  ASSERT_TRUE(ring.enter(1, 0).ok());
  ring.leave(1, 5, 1);
  ASSERT_TRUE(ring.enter(1, 30).ok());
  EXPECT_FALSE(ring.enter(1, 59).ok());
  EXPECT_EQ(ring.retry_after_s(1, 45), 15);
  EXPECT_EQ(ring.retry_after_s(1, 59.5), 1);
  EXPECT_TRUE(ring.enter(1, 60).ok()) << "the first was a minute ago";
  EXPECT_FALSE(ring.enter(1, 61).ok());

  ASSERT_TRUE(ring.enter(2, 0).ok());
  EXPECT_TRUE(ring.enter(2, 0).ok()) << "tokens count when they are known";
  ring.leave(2, 9, 1);
  EXPECT_TRUE(ring.enter(2, 2).ok());
  ring.leave(2, 1, 3);
  EXPECT_FALSE(ring.enter(2, 4).ok());
  EXPECT_TRUE(ring.enter(2, 61.5).ok()) << "nine of ten are forgotten";
}

}  // namespace
}  // namespace millrace
