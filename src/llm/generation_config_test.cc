#include "llm/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GenerationConfig, ReadsWhatItKnowsAndIgnoresTheRest) {
  const GenerationConfig config =
      parse_generation_config(R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01,
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
      parse_generation_config(R"({"temperature": null, "eos_token_id": null})").value();
  EXPECT_EQ(config.sampling.temperature, 1);
  EXPECT_EQ(config.sampling.top_p, 1);
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
}

TEST(GenerationConfig, TakesAListOfEndTokens) {
  EXPECT_THAT(parse_generation_config(R"({"eos_token_id": [1, 7]})").value().eos_token_ids,
              ElementsAre(1, 7));
}

TEST(GenerationConfig, RefusesWhatItCannotUseByName) {
  const auto error = [](std::string_view json) {
    const Result<GenerationConfig> config = parse_generation_config(json);
    return config.has_value() ? "accepted" : config.error().message;
  };
  EXPECT_EQ(error(R"({"temperature": "hot"})"), "temperature: expected a number");
  EXPECT_EQ(error(R"({"temperature": 3})"), "temperature: found 3, expected 0 to 2");
  EXPECT_EQ(error(R"({"top_k": 1.5})"), "top_k: expected an integer");
  EXPECT_EQ(error(R"({"eos_token_id": [1, "x"]})"), "eos_token_id: expected an integer");
  EXPECT_EQ(error(R"({"top_p": 1, "top_p": 0.5})"), "top_p: found twice, expected once");
  EXPECT_EQ(error("[]"), "expected a JSON object");
  EXPECT_NE(error("{"), "accepted");
}

}  // namespace
}  // namespace millrace
