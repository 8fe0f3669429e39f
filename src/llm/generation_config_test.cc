#include "llm/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Result<GenerationConfig> parse(std::string_view json) { return parse_generation_config(json, 100); }

TEST(GenerationConfig, ReadsWhatItKnowsAndIgnoresTheRest) {
  const GenerationConfig config =
      parse(R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01,
                "repetition_penalty": 1.1, "do_sample": true, "eos_token_id": 5})")
          .value();
  EXPECT_EQ(config.sampling.temperature, 0.6);
  EXPECT_EQ(config.sampling.top_p, 0.95);
  EXPECT_EQ(config.sampling.top_k, 20);
  EXPECT_EQ(config.sampling.min_p, 0.01);
  EXPECT_EQ(config.sampling.repetition_penalty, 1.1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(5));
}

TEST(GenerationConfig, AbsentAndNullMembersKeepTheDefaults) {
  const GenerationConfig config =
      parse(R"({"temperature": null, "eos_token_id": null})").value();
  EXPECT_EQ(config.sampling.temperature, 1);
  EXPECT_EQ(config.sampling.top_p, 1);
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
}

TEST(GenerationConfig, TakesAListOfEndTokens) {
  EXPECT_THAT(parse(R"({"eos_token_id": [1, 7]})").value().eos_token_ids, ElementsAre(1, 7));
}

TEST(GenerationConfig, RefusesWhatItCannotUseByName) {
  const auto error = [](std::string_view json) {
    const Result<GenerationConfig> config = parse(json);
    return config.has_value() ? "accepted" : config.error().message;
  };
  EXPECT_EQ(error(R"({"temperature": "hot"})"), "temperature: found \"hot\", expected a number");
  EXPECT_EQ(error(R"({"temperature": 1e999})"), "temperature: found 1e999, expected a number");
  EXPECT_EQ(error(R"({"temperature": 3})"), "temperature: found 3, expected 0 to 2");
  EXPECT_EQ(error(R"({"top_k": 1.5})"), "top_k: found 1.5, expected an integer");
  EXPECT_EQ(error(R"({"top_k": -2})"),
            "top_k: found -2, expected at least 1, or 0 or -1 for no limit");
  EXPECT_EQ(error(R"({"top_p": 0})"), "top_p: found 0, expected above 0, at most 1");
  EXPECT_EQ(error(R"({"min_p": [0.5]})"), "min_p: found [0.5], expected a number");
  EXPECT_EQ(error(R"({"min_p": 1.5})"), "min_p: found 1.5, expected 0 to 1");
  EXPECT_EQ(error(R"({"repetition_penalty": 0})"),
            "repetition_penalty: found 0, expected 0.000001 to 1000000");
  EXPECT_EQ(error(R"({"eos_token_id": [1, "x"]})"),
            "eos_token_id[1]: found \"x\", expected a token id from 0 to 99");
  EXPECT_EQ(error(R"({"eos_token_id": 100})"),
            "eos_token_id: found 100, expected a token id from 0 to 99");
  EXPECT_EQ(error(R"({"eos_token_id": [1, -1]})"),
            "eos_token_id[1]: found -1, expected a token id from 0 to 99");
  EXPECT_EQ(error(R"({"eos_token_id": []})"),
            "eos_token_id: found [], expected at least one token id");
  EXPECT_EQ(error(R"({"top_p": 1, "top_p": 0.5})"), "top_p: found twice, expected once");
  EXPECT_EQ(error("[]"), "found [], expected an object");
  EXPECT_EQ(error("[\"" + std::string(100, 'x') + "\"]"),
            "found [\"" + std::string(58, 'x') + "..., expected an object");
  EXPECT_NE(error("{"), "accepted");
}

}  // namespace
}  // namespace millrace
