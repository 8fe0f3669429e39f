#include "scheduler/stop_rules.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// Tokens 0 to 25 are the letters; 26 ends an output; 27 and 28 are control tokens.
struct Letters {
  std::vector<std::string> bytes;
  std::vector<uint8_t> is_control;
  std::vector<int32_t> eos = {26};

  Letters() : bytes(29), is_control(29) {
    for (size_t i = 0; i < 26; ++i) bytes[i] = std::string(1, char('a' + i));
    bytes[26] = "</s>", bytes[27] = "<think>", bytes[28] = "</think>";
    is_control[26] = is_control[27] = is_control[28] = 1;
  }
  OutputTokens tokens() const { return {bytes, is_control, eos}; }
};

// Appends tokens until the output ends.
struct Ended {
  int64_t num_tokens = 0;
  std::optional<FinishReason> reason;
  StopReason stop_reason;
  int64_t num_settled_bytes = 0;
};
Ended run(const Request& request, const std::vector<int32_t>& ids, int64_t max_tokens = 1000) {
  const Letters letters;
  const OutputTokens tokens = letters.tokens();
  StopRules rules(request, tokens, max_tokens);
  Ended ended;
  for (const int32_t id : ids) {
    StreamEvent event;
    rules.append(id, event);
    EXPECT_EQ(event.token_id, id);
    EXPECT_GE(event.num_settled_bytes, ended.num_settled_bytes);
    ended = {rules.num_tokens(), event.finish_reason, event.stop_reason, event.num_settled_bytes};
    if (event.finish_reason) break;
  }
  return ended;
}

std::vector<int32_t> ids(std::string_view letters) {
  std::vector<int32_t> ids;
  for (const char c : letters)
    ids.push_back(c == '.' ? 26 : c == '<' ? 27 : c == '>' ? 28 : c - 'a');
  return ids;
}

TEST(StopRules, AnEndTokenEndsTheOutputAndLeavesNoBytes) {
  const Ended ended = run({}, ids("ab.c"));
  EXPECT_EQ(ended.num_tokens, 3);
  EXPECT_EQ(ended.reason, FinishReason::kStop);
  EXPECT_EQ(ended.stop_reason, StopReason());
  EXPECT_EQ(ended.num_settled_bytes, 2);
}

TEST(StopRules, AnEndTokenIsAnOrdinaryOneWhereTheRequestSaysSo) {
  Request request;
  request.sampling.ignore_eos = true;
  EXPECT_EQ(run(request, ids("a.b")).reason, std::nullopt);
  EXPECT_EQ(run(request, ids("a.b")).num_settled_bytes, 2);  // it is a control token
  request.sampling.skip_special_tokens = false;
  EXPECT_EQ(run(request, ids("a.b")).num_settled_bytes, 6);
}

TEST(StopRules, AStopTokenIsNamed) {
  Request request;
  request.sampling.stop_token_ids = {2, 3};
  const Ended ended = run(request, ids("abdz"));
  EXPECT_EQ(ended.num_tokens, 3);
  EXPECT_EQ(ended.reason, FinishReason::kStop);
  EXPECT_EQ(ended.stop_reason, StopReason(3));
  EXPECT_EQ(ended.num_settled_bytes, 2);
}

TEST(StopRules, AStopStringEndsTheOutputAtTheTokenThatCompletesIt) {
  Request request;
  request.sampling.stop = {"xyz", "cd"};
  Ended ended = run(request, ids("abcdef"));
  EXPECT_EQ(ended.num_tokens, 4);
  EXPECT_EQ(ended.reason, FinishReason::kStop);
  EXPECT_EQ(ended.stop_reason, StopReason(std::string("cd")));
  EXPECT_EQ(ended.num_settled_bytes, 2);
  request.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(run(request, ids("abcdef")).num_settled_bytes, 4);
}

TEST(StopRules, WhatMayBecomeAStopStringIsHeldBack) {
  Request request;
  request.sampling.stop = {"cdx"};
  EXPECT_EQ(run(request, ids("ab")).num_settled_bytes, 2);
  EXPECT_EQ(run(request, ids("abcd")).num_settled_bytes, 2);
  EXPECT_EQ(run(request, ids("abcde")).num_settled_bytes, 5);
  request.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(run(request, ids("abcd")).num_settled_bytes, 4);
}

TEST(StopRules, MaxTokensEndsTheOutputWithEverythingSettled) {
  Request request;
  request.sampling.stop = {"cdx"};
  const Ended ended = run(request, ids("abcdx"), 4);
  EXPECT_EQ(ended.num_tokens, 4);
  EXPECT_EQ(ended.reason, FinishReason::kLength);
  EXPECT_EQ(ended.num_settled_bytes, 4);
}

TEST(StopRules, AStopStringOnTheLastTokenIsTheReason) {
  Request request;
  request.sampling.stop = {"cd"};
  EXPECT_EQ(run(request, ids("abcd"), 4).reason, FinishReason::kStop);
}

TEST(StopRules, BeforeMinTokensNoStopStringCounts) {
  Request request;
  request.sampling.stop = {"ab"};
  request.sampling.min_tokens = 3;
  EXPECT_EQ(run(request, ids("ababab")).num_tokens, 6);  // "a" before the limit is no beginning
  request.sampling.min_tokens = 1;
  EXPECT_EQ(run(request, ids("ababab")).num_tokens, 4);
  request.sampling.min_tokens = 0;
  EXPECT_EQ(run(request, ids("ababab")).num_tokens, 2);
}

TEST(StopRules, StopStringsKeepToTheirScope) {
  Request request;
  request.sampling.stop = {"ab"};
  request.stop_scope = {28, std::nullopt};  // after the reasoning
  EXPECT_EQ(run(request, ids("abab>cab")).num_tokens, 8);
  EXPECT_EQ(run(request, ids("a>b")).reason, std::nullopt);  // not across its edge
  request.stop_scope = {std::nullopt, 27};
  EXPECT_EQ(run(request, ids("c<abab")).reason, std::nullopt);
  EXPECT_EQ(run(request, ids("cab<ab")).num_tokens, 3);
  request.stop_scope = {27, 28};
  EXPECT_EQ(run(request, ids("ab<c>ab")).reason, std::nullopt);
  EXPECT_EQ(run(request, ids("ab<ab>ab")).num_tokens, 5);
}

}  // namespace
}  // namespace millrace
