#include "server/handover.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace millrace {
namespace {

std::string unique_name() {
  static int count = 0;
  return handover_name("test", ::getpid(), std::to_string(++count));
}

// A pair of sockets: what goes through a copy of one end comes out of the other.
struct Pair {
  Pair() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0); }
  ~Pair() {
    ::close(fds[0]);
    ::close(fds[1]);
  }
  int fds[2];
};

bool wait_for(const std::atomic<int>& value, int wanted) {
  for (int i = 0; i < 2000 && value != wanted; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return value == wanted;
}

TEST(Handover, SocketsArriveAndTheOldProcessLearnsWhenItMayStop) {
  const std::string name = unique_name();
  const Pair pair;
  std::atomic<int> num_taken{0};
  const auto offer = HandoverOffer::create(name, {pair.fds[0]}, [&] { ++num_taken; });
  ASSERT_TRUE(offer.has_value());

  Result<Takeover> takeover = Takeover::ask(name);
  ASSERT_TRUE(takeover.has_value()) << takeover.error().message;
  const std::vector<int> fds = takeover.value().take_fds();
  ASSERT_EQ(fds.size(), 1u);
  EXPECT_NE(fds[0], pair.fds[0]);
  ASSERT_EQ(::write(fds[0], "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(pair.fds[1], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  ::close(fds[0]);

  EXPECT_EQ(num_taken, 0);
  takeover.value().finish();
  EXPECT_TRUE(wait_for(num_taken, 1));
}

TEST(Handover, ANewcomerThatFailsChangesNothing) {
  const std::string name = unique_name();
  const Pair pair;
  std::atomic<int> num_taken{0};
  const auto offer = HandoverOffer::create(name, {pair.fds[0]}, [&] { ++num_taken; });
  ASSERT_TRUE(offer.has_value());
  for (int i = 0; i < 3; ++i) {
    Result<Takeover> takeover = Takeover::ask(name);
    ASSERT_TRUE(takeover.has_value());  // and it goes, with the sockets
  }
  Result<Takeover> last = Takeover::ask(name);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(num_taken, 0);
  last.value().finish();
  EXPECT_TRUE(wait_for(num_taken, 1));
}

TEST(Handover, NobodyToTakeOverFromIsToldApart) {
  const Result<Takeover> takeover = Takeover::ask(unique_name());
  ASSERT_FALSE(takeover.has_value());
  EXPECT_EQ(takeover.error().code, Code::kNotFound);
}

TEST(Handover, ANameIsOfferedByOneAtATime) {
  const std::string name = unique_name();
  const Pair pair;
  auto first = HandoverOffer::create(name, {pair.fds[0]}, [] {});
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(HandoverOffer::create(name, {pair.fds[0]}, [] {}).has_value());
  first.value().reset();
  EXPECT_TRUE(HandoverOffer::create(name, {pair.fds[0]}, [] {}).has_value());
}

TEST(Handover, AnOfferEndsWhileSomebodyIsAboutToTakeOver) {
  const std::string name = unique_name();
  const Pair pair;
  auto offer = HandoverOffer::create(name, {pair.fds[0]}, [] { FAIL(); });
  ASSERT_TRUE(offer.has_value());
  Result<Takeover> takeover = Takeover::ask(name);
  ASSERT_TRUE(takeover.has_value());
  offer.value().reset();
  takeover.value().finish();  // too late, and harmless
}

}  // namespace
}  // namespace millrace
