#include "server/routes.h"

#include <gtest/gtest.h>

#include <set>

namespace millrace {
namespace {

TEST(Routes, PathsAreKnownWithAndWithoutTheRootPathAndByTheirAliases) {
  EXPECT_EQ(canonical_path("/v1/models", ""), "/v1/models");
  EXPECT_EQ(canonical_path("/chat/completions", ""), "/v1/chat/completions");
  EXPECT_EQ(canonical_path("/beta/completions", ""), "/v1/completions");
  EXPECT_EQ(canonical_path("/tokenize", ""), "/v1/tokenize");
  EXPECT_EQ(canonical_path("/a/b/models", "/a/b"), "/v1/models");
  EXPECT_EQ(canonical_path("/models", "/a/b"), "/v1/models") << "the proxy took the prefix off";
  EXPECT_EQ(canonical_path("/a/b", "/a/b"), "/");
  EXPECT_EQ(canonical_path("/a/bc", "/a/b"), std::nullopt);
}

TEST(Routes, TheMethodDecidesBetweenAnAnswerAnd405) {
  EXPECT_NE(find_route("GET", "/v1/models").route, nullptr);
  EXPECT_NE(find_route("HEAD", "/v1/models").route, nullptr);
  EXPECT_NE(find_route("GET", "/v1/models/a/b").route, nullptr);
  EXPECT_NE(find_route("POST", "/ping").route, nullptr);
  const FoundRoute found = find_route("DELETE", "/ping");
  EXPECT_EQ(found.route, nullptr);
  EXPECT_EQ(found.error.status, 405);
  EXPECT_EQ(found.allowed_methods, "GET, HEAD, POST");
}

TEST(Routes, WhatIsKnownAndMissingIsToldFromWhatIsMistyped) {
  for (const char* path : {"/v1/responses", "/v1/responses/resp_1/cancel", "/v1/messages",
                           "/v1/messages/count_tokens", "/v1/audio/speech", "/rerank"}) {
    EXPECT_EQ(find_route("POST", path).error.status, 501) << path;
  }
  for (const char* path : {"/v1/chat", "/v1/completion", "/v1/models/", "/web/", "/healthz", "//",
                           "/v1/audio"}) {
    EXPECT_EQ(find_route("GET", path).error.status, 404) << path;
  }
  EXPECT_EQ(family_of("/v1/messages"), ApiFamily::kAnthropic);
  EXPECT_EQ(family_of("/v1/models"), ApiFamily::kOpenAi);
}

TEST(Routes, EveryRouteIsThereOnceAndFound) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const Route& route : routes()) {
    EXPECT_TRUE(seen.insert({route.method, route.path}).second) << route.path;
    std::string path(route.path);
    if (path.ends_with('*')) path.back() = 'x';
    EXPECT_EQ(find_route(route.method, path).route, &route) << path;
    EXPECT_FALSE(route.summary.empty());
  }
}

TEST(Routes, RequestIdsAreVisibleAsciiAndOnesOfOurOwnDiffer) {
  EXPECT_TRUE(is_request_id("abc-1"));
  EXPECT_FALSE(is_request_id(""));
  EXPECT_FALSE(is_request_id("a b"));
  EXPECT_FALSE(is_request_id("ä"));
  EXPECT_FALSE(is_request_id(std::string(129, 'x')));
  const std::string id = make_request_id();
  EXPECT_TRUE(is_request_id(id));
  EXPECT_NE(id, make_request_id());
}

}  // namespace
}  // namespace millrace
