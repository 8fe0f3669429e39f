#include "model_config/config_json.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>

namespace millrace {
namespace {

namespace json = boost::json;

std::string read(const std::string& path) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every number as a double: 10 and 10.0 are the same to a reader.
json::value with_doubles(json::value value) {
  if (value.is_int64()) return double(value.get_int64());
  if (value.is_array()) {
    for (json::value& item : value.get_array()) item = with_doubles(item);
  }
  if (value.is_object()) {
    for (auto& member : value.get_object()) member.value() = with_doubles(member.value());
  }
  return value;
}

TEST(ConfigJson, TheReleasedConfigIsWrittenAsItWasRead) {
  const std::string released = read("/tests/golden/config-v4.1-flash.json");
  const std::string written = config_json(parse_model_config(released).value());
  EXPECT_EQ(with_doubles(json::parse(written)), with_doubles(json::parse(released)));
}

TEST(ConfigJson, WhatIsWrittenReadsAsTheSameConfig) {
  for (const char* path : {"/tests/golden/tiny-v41/config.json", "/models/nano/config.json"}) {
    ModelConfig config = parse_model_config(read(path)).value();
    for (const bool has_parts : {true, false}) {
      if (!has_parts) {
        config.engram_layer_ids.clear();
        config.num_nextn_predict_layers = 0;
        config.compress_ratios.resize(size_t(config.num_hidden_layers));
        config.image_token_id = -1;
      }
      const std::string written = config_json(config);
      const Result<ModelConfig> again = parse_model_config(written);
      ASSERT_TRUE(again.has_value()) << again.error().message;
      EXPECT_EQ(config_json(again.value()), written);
      EXPECT_EQ(again.value().rms_norm_eps, config.rms_norm_eps);
      EXPECT_EQ(again.value().image_token_id, config.image_token_id);
      EXPECT_EQ(again.value().num_nextn_predict_layers, config.num_nextn_predict_layers);
      EXPECT_EQ(again.value().engram_layer_ids, config.engram_layer_ids);
    }
  }
}

}  // namespace
}  // namespace millrace
