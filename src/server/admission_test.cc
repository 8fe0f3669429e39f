#include "server/admission.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace millrace {
namespace {

TEST(Admission, RequestsAreLimitedUntilTheirTicketsGo) {
  Admission admission(2, std::nullopt);
  std::vector<Admission::Ticket> tickets;
  for (int i = 0; i < 2; ++i) tickets.push_back(std::move(admission.enter(1).value()));
  const Result<Admission::Ticket> third = admission.enter(1);
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, Code::kExhausted);
  EXPECT_EQ(third.error().message,
            "queue: found 2 requests in the server, expected fewer than 2");
  tickets.pop_back();
  EXPECT_EQ(admission.num_open_requests(), 1);
  EXPECT_TRUE(admission.enter(1).has_value());
  tickets.clear();
  EXPECT_EQ(admission.num_open_requests(), 0);
}

TEST(Admission, PromptTokensCountUntilTheFirstTokenComes) {
  Admission admission(std::nullopt, 100);
  Admission::Ticket first = std::move(admission.enter(90).value());
  EXPECT_FALSE(admission.enter(11).has_value());
  first.correct(40);
  EXPECT_EQ(admission.num_queued_tokens(), 40);
  Admission::Ticket second = std::move(admission.enter(60).value());
  first.begin();
  EXPECT_EQ(admission.num_queued_tokens(), 60);
  first.leave();
  first.leave();
  EXPECT_EQ(admission.num_open_requests(), 1);
  Admission::Ticket moved = std::move(second);
  second.leave();
  EXPECT_EQ(admission.num_open_requests(), 1);
  moved = {};
  EXPECT_EQ(admission.num_open_requests(), 0);
  EXPECT_EQ(admission.num_queued_tokens(), 0);
}

TEST(Admission, APromptLongerThanTheLimitGetsInAlone) {
  Admission admission(std::nullopt, 100);
  const Result<Admission::Ticket> long_one = admission.enter(1000);
  EXPECT_TRUE(long_one.has_value());
  EXPECT_FALSE(admission.enter(1).has_value());
}

}  // namespace
}  // namespace millrace
