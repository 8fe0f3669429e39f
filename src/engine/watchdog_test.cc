#include "engine/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <utility>
#include <vector>

namespace millrace {
namespace {

EngineHealth in_layer(int64_t layer, double ms) { return {41, layer, 64, ms}; }

TEST(Watchdog, AStallIsAStepThatStaysInOnePlaceForTooLong) {
  EXPECT_FALSE(find_stall({}, 1000)) << "it waits for requests";
  EXPECT_FALSE(find_stall(in_layer(3, 999), 1000));
  EXPECT_EQ(find_stall(in_layer(3, 1500), 1000),
            "step 41 with 64 rows has been in layer 3 for 1.5 s, expected at most 1 s");
  EXPECT_EQ(find_stall({41, {}, 64, 2000}, 1000),
            "step 41 with 64 rows has been before its first layer for 2 s, expected at most 1 s");
}

TEST(Watchdog, WarnsOncePerPlaceAndOfTheNextOneAgain) {
  std::atomic<int> num_looks = 0;
  std::promise<void> done;
  std::vector<std::string> warnings;
  {
    Watchdog watchdog(
        0.01,
        [&] {
          const int look = num_looks++;
          if (look == 9) done.set_value();
          return in_layer(look < 5 ? 3 : 4, 1000);
        },
        [&](const std::string& warning) { warnings.push_back(warning); });
    done.get_future().wait();
  }
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], testing::HasSubstr("layer 3"));
  EXPECT_THAT(warnings[1], testing::HasSubstr("layer 4"));
}

TEST(Watchdog, EndsAtOnceHoweverLongItWouldSleep) {
  std::promise<void> looked;
  bool is_first = true;
  Watchdog watchdog(
      1e300,
      [&] {
        if (std::exchange(is_first, false)) looked.set_value();
        return EngineHealth();
      },
      [](const std::string&) { ADD_FAILURE(); });
  looked.get_future().wait();
}

}  // namespace
}  // namespace millrace
