#include "checkpoint/disk_expert_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "base/format.h"
#include "checkpoint/test_shuffled_toy.h"
#include "sys/file.h"
#include "sys/memory.h"
#include "sys/test_mapping_flags.h"
#include "sys/test_read_queue.h"
#include "sys/test_refused_calls.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using test::kToy;
using test::ShuffledToy;

constexpr int64_t kNumLayers = 10, kToyExperts = 8;  // two of them draft stages with 4 experts

// Reads through another queue, but lets some end otherwise.
class FaultyQueue : public ReadQueue {
 public:
  // What becomes of the n-th read: bytes, or an error; none: it goes well.
  using Fault = std::function<std::optional<int64_t>(int64_t n, const FileRead&)>;

  explicit FaultyQueue(Fault fault) : fault_(std::move(fault)) {}
  const char* name() const override { return "faulty"; }
  size_t capacity() const override { return 4; }
  void add(const FileRead& read) override {
    const std::optional<int64_t> result = fault_(num_reads_++, read);
    if (result) {
      if (*result > 0) {
        const ssize_t count =
            ::pread(read.fd, read.to.data(), size_t(*result), off_t(read.offset));
        MR_CHECK_OP(count, ==, *result);
      }
      faults_.push_back({read.tag, *result});
    } else {
      queue_->add(read);
    }
  }
  size_t take(std::span<FinishedRead> finished, int64_t wait_ms) override {
    if (!finished.empty() && !faults_.empty()) {
      finished[0] = faults_.front();
      faults_.pop_front();
      return 1;
    }
    return queue_->take(finished, wait_ms);
  }

 private:
  Fault fault_;
  std::unique_ptr<ReadQueue> queue_ = make_blocking_queue(4);
  std::deque<FinishedRead> faults_;
  int64_t num_reads_ = 0;
};

// A disk in simulated time, which takes 1 for each read, one after the other.
class TimedQueue : public ReadQueue {
 public:
  struct Clock {
    double now = 0, idle = 0;  // of the disk, between its first read and its last
  };

  TimedQueue(Clock& clock, size_t capacity) : clock_(clock), capacity_(capacity) {}
  const char* name() const override { return "timed"; }
  size_t capacity() const override { return capacity_; }
  void add(const FileRead& read) override {
    const ssize_t result = ::pread(read.fd, read.to.data(), read.to.size(), off_t(read.offset));
    if (last_end_ > 0) clock_.idle += std::max(clock_.now - last_end_, 0.0);
    last_end_ = std::max(clock_.now, last_end_) + 1;
    reads_.push_back({last_end_, {read.tag, int64_t(result)}});
  }
  size_t take(std::span<FinishedRead> finished, int64_t wait_ms) override {
    if (wait_ms > 0) clock_.now = std::max(clock_.now, reads_.front().first);
    size_t count = 0;
    while (count < finished.size() && !reads_.empty() && reads_.front().first <= clock_.now) {
      finished[count++] = reads_.front().second;
      reads_.pop_front();
    }
    return count;
  }

 private:
  Clock& clock_;
  const size_t capacity_;
  double last_end_ = 0;
  std::deque<std::pair<double, FinishedRead>> reads_;  // in flight, by their end
};

// Some of its reads do not end before somebody says so; nobody ever waits for them.
class HangingQueue : public ReadQueue {
 public:
  struct State {
    std::function<bool(const FileRead&)> hangs;
    std::vector<int64_t> waits_ms;  // in vain
  };

  explicit HangingQueue(State& state) : state_(state) {}
  const char* name() const override { return "hanging"; }
  size_t capacity() const override { return 4; }
  void add(const FileRead& read) override { reads_.push_back(read); }
  size_t take(std::span<FinishedRead> finished, int64_t wait_ms) override {
    size_t count = 0;
    std::erase_if(reads_, [&](const FileRead& read) {
      if (count == finished.size() || state_.hangs(read)) return false;
      const ssize_t result = ::pread(read.fd, read.to.data(), read.to.size(), off_t(read.offset));
      finished[count++] = {read.tag, int64_t(result)};
      return true;
    });
    if (count == 0 && wait_ms > 0) state_.waits_ms.push_back(wait_ms);
    return count;
  }

 private:
  State& state_;
  std::vector<FileRead> reads_;
};

std::unique_ptr<ReadQueue> fast_queue() { return test::open_queue(8); }

std::unique_ptr<DiskExpertSource> open_source(const Checkpoint& checkpoint, int64_t num_slots,
                                              std::unique_ptr<ReadQueue> queue) {
  ExpertFiles files = std::move(ExpertFiles::open(checkpoint).value());
  const int64_t bytes = num_slots * int64_t(files.slot_bytes());
  return std::move(DiskExpertSource::open(std::move(files), bytes, std::move(queue)).value());
}

bool same(const Fp4Matrix& a, const Fp4Matrix& b) {
  return a.n == b.n && a.k == b.k && std::memcmp(a.codes, b.codes, size_t(a.n * a.k / 2)) == 0 &&
         std::memcmp(a.scales, b.scales, size_t(a.n * a.k / 32)) == 0;
}

// Takes all of a lease, each exactly once and each with the bytes of the mapped file. Returns the
// error, if there is one, and else nothing.
std::string take_all(DiskExpertSource& source, MappedExpertSource& mapped, int64_t layer,
                     const std::vector<int32_t>& ids) {
  ExpertLease lease = source.acquire(layer, ids), wanted = mapped.acquire(layer, ids);
  const std::span<const LoadedExpert> want = wanted.next().value();
  std::vector<int> num_given(ids.size());
  for (;;) {
    const Result<std::span<const LoadedExpert>> loaded = lease.next();
    if (!loaded.has_value()) return loaded.error().message;
    if (loaded.value().empty()) break;
    for (const LoadedExpert& expert : loaded.value()) {
      const size_t i = size_t(expert.idx);
      ++num_given[i];
      EXPECT_TRUE(same(expert.weights->w1, want[i].weights->w1)) << layer << " " << ids[i];
      EXPECT_TRUE(same(expert.weights->w2, want[i].weights->w2)) << layer << " " << ids[i];
      EXPECT_TRUE(same(expert.weights->w3, want[i].weights->w3)) << layer << " " << ids[i];
    }
  }
  EXPECT_EQ(std::count(num_given.begin(), num_given.end(), 1), int64_t(ids.size()));
  return "";
}

int64_t experts_of(int64_t layer) { return layer < 8 ? kToyExperts : 4; }

std::vector<int32_t> all_of(int64_t layer) {
  std::vector<int32_t> ids(static_cast<size_t>(experts_of(layer)));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i);
  return ids;
}

TEST(DiskExpertSource, GivesTheBytesOfEveryExpertWhereverTheyLie) {
  for (const uint32_t seed : {0, 1, 2, 3}) {
    SCOPED_TRACE(seed);
    const ShuffledToy toy(seed, seed == 0 ? 1 : 3);
    const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
    MappedExpertSource mapped =
        std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
    // From less than one layer needs at a time to everything.
    for (const int64_t num_slots : {2, 3, 8, 72}) {
      SCOPED_TRACE(num_slots);
      for (const bool is_blocking : {false, true}) {
        const auto source = open_source(checkpoint, num_slots,
                                        is_blocking ? make_blocking_queue(8) : fast_queue());
        for (int round = 0; round < 2; ++round) {
          for (int64_t layer = 0; layer < kNumLayers; ++layer) {
            EXPECT_EQ(take_all(*source, mapped, layer, all_of(layer)), "");
          }
        }
        EXPECT_EQ(source->reads().num_hits + source->reads().num_misses, 2 * (8 * 8 + 2 * 4));
      }
    }
  }
}

TEST(DiskExpertSource, ReadsNothingTwiceThatHasRoom) {
  const ShuffledToy toy(1, 2);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  const auto source = open_source(checkpoint, 1000, fast_queue());
  EXPECT_EQ(source->num_slots(), 8 * 8 + 2 * 4) << "no more than there are experts";
  for (int64_t layer = 0; layer < kNumLayers; ++layer) {
    EXPECT_EQ(take_all(*source, mapped, layer, all_of(layer)), "");
  }
  const ExpertReads first = source->reads();
  EXPECT_EQ(first.num_misses, source->num_slots());
  EXPECT_EQ(first.num_hits, 0);
  EXPECT_GE(first.num_bytes, int64_t(source->files().total_bytes()));
  for (int64_t layer = 0; layer < kNumLayers; ++layer) {
    EXPECT_EQ(take_all(*source, mapped, layer, all_of(layer)), "");
  }
  EXPECT_EQ(source->reads().num_hits, source->num_slots());
  EXPECT_EQ(source->reads().num_bytes, first.num_bytes);
}

TEST(DiskExpertSource, ALeaseThatIsGivenUpLeavesWhatIsRightForTheNext) {
  const ShuffledToy toy(2, 2);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto source = open_source(checkpoint, int64_t(2 + random() % 20), fast_queue());
    for (int i = 0; i < 200; ++i) {
      const int64_t layer = int64_t(random() % kNumLayers);
      std::vector<int32_t> ids = all_of(layer);
      std::shuffle(ids.begin(), ids.end(), random);
      ids.resize(random() % (ids.size() + 1));
      if (random() % 2 == 0) {
        EXPECT_EQ(take_all(*source, mapped, layer, ids), "");
        continue;
      }
      ExpertLease lease = source->acquire(layer, ids);
      for (uint32_t n = random() % 3; n > 0; --n) ASSERT_TRUE(lease.next().has_value());
    }
  }
}

TEST(DiskExpertSource, UsesNoMoreMemoryThanItsCache) {
  const ShuffledToy toy(0, 2, /*has_experts_apart=*/true);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  const auto source = open_source(checkpoint, 5, fast_queue());
  const int64_t mapped_bytes = test::resident_bytes(toy.file_path(1));  // its header, and near it
  EXPECT_GT(mapped_bytes, 0);
  for (int64_t layer = 0; layer < kNumLayers; ++layer) {
    const std::vector<int32_t> ids = all_of(layer);
    ExpertLease lease = source->acquire(layer, ids);
    while (!lease.next().value().empty()) {
    }
  }
  EXPECT_EQ(source->reads().num_misses, 8 * 8 + 2 * 4) << "all of them were read";
  EXPECT_EQ(test::resident_bytes(toy.file_path(1)), mapped_bytes);
  EXPECT_EQ(source->reads().cache_bytes, 5 * int64_t(source->files().slot_bytes()));
  // What is measured: one that is mapped is seen.
  const Checkpoint::Place place =
      checkpoint.place("layers.7.ffn.experts.7.w3.weight").value();
  const volatile uint8_t* bytes = checkpoint.shards()[place.shard].bytes().data();
  (void)bytes[place.begin];
  EXPECT_GT(test::resident_bytes(toy.file_path(1)), mapped_bytes);
}

// Reads into small pages, which lie anywhere, took twice the time.
TEST(DiskExpertSource, AsksForHugePages) {
  const Checkpoint checkpoint = std::move(Checkpoint::open(kToy).value());
  const auto source = open_source(checkpoint, 72, fast_queue());
  const bool has_them = !read_page_modes().transparent_huge_pages.empty();
  const std::string flags = test::mapping_flags(source->memory().bytes().data());
  EXPECT_EQ(flags.find(" hg ") != std::string::npos, has_them) << flags;
}

TEST(DiskExpertSource, AReadThatFailsIsNamedAndTheNextLeaseReadsAgain) {
  const ShuffledToy toy(0, 1);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  const Checkpoint::Place place =
      checkpoint.place("layers.3.ffn.experts.2.w2.weight").value();  // in its middle
  bool is_broken = true;
  int num_failed = 0;
  const auto source = open_source(
      checkpoint, 9, std::make_unique<FaultyQueue>([&](int64_t, const FileRead& read) {
        const bool is_hit = is_broken && read.offset <= place.begin &&
                            place.begin < read.offset + read.to.size();
        num_failed += is_hit;
        return is_hit ? std::optional<int64_t>(-EIO) : std::nullopt;
      }));
  const std::vector<int32_t> ids{1, 2, 5};
  const std::string error = take_all(*source, mapped, 3, ids);
  EXPECT_THAT(error, AllOf(HasSubstr(toy.file_path(0) + ": tensor layers.3.ffn.experts.2."),
                           HasSubstr(": at byte "), HasSubstr("cannot read "),
                           HasSubstr("Input/output error")));
  EXPECT_EQ(num_failed, 1);
  EXPECT_EQ(take_all(*source, mapped, 4, ids), "") << "others are not concerned";
  is_broken = false;
  EXPECT_EQ(take_all(*source, mapped, 3, ids), "");
}

TEST(DiskExpertSource, TheDiskIsBusyWhileExpertsThatWereThereAreUsed) {
  const ShuffledToy toy(0, 1);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  TimedQueue::Clock clock;
  const auto source = open_source(checkpoint, 16, std::make_unique<TimedQueue>(clock, 2));
  const std::vector<int32_t> some{0, 1, 2, 3}, all = all_of(0);
  ASSERT_EQ(source->files().extents(0, 0).count, 1u) << "one read for each expert";
  for (const bool is_measured : {false, true}) {
    ExpertLease lease = source->acquire(0, is_measured ? all : some);
    clock.idle = 0;
    for (;;) {
      const std::span<const LoadedExpert> loaded = lease.next().value();
      if (loaded.empty()) break;
      clock.now += 0.6 * double(loaded.size());  // less than the disk takes for as many
    }
  }
  EXPECT_EQ(source->reads().num_hits, 4);
  EXPECT_EQ(source->reads().num_misses, 8);
  EXPECT_EQ(clock.idle, 0);
}

TEST(DiskExpertSource, AReadWithoutAnAnswerIsNamedAndOthersGoOn) {
  const ShuffledToy toy(0, 1);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  const ExpertFiles files = std::move(ExpertFiles::open(checkpoint).value());
  const uint64_t place = files.extents(3, 2).list[0].begin;
  HangingQueue::State state{[&](const FileRead& read) { return read.offset == place; }, {}};
  const auto source = open_source(checkpoint, 9, std::make_unique<HangingQueue>(state));
  for (int i = 0; i < 3; ++i) {
    const std::string error = take_all(*source, mapped, 3, {1, 2, 5});
    EXPECT_THAT(error, AllOf(HasSubstr(toy.file_path(0) + ": tensor layers.3.ffn.experts."),
                             HasSubstr(format(": at byte ", place, ": no answer for 60000 ms"))));
    EXPECT_EQ(take_all(*source, mapped, 3, {1, 5}), "");
    EXPECT_EQ(take_all(*source, mapped, 4, all_of(4)), "") << "others are not concerned";
  }
  EXPECT_EQ(state.waits_ms, std::vector<int64_t>{60'000}) << "later leases fail at once";
  state.hangs = [](const FileRead&) { return false; };
  EXPECT_EQ(take_all(*source, mapped, 3, {1, 2, 5}), "");
}

// More reads than the queue takes, or than there are slots.
TEST(DiskExpertSource, ADiskThatStopsAndGoesOnGivesErrorsAndThenTheRightBytes) {
  const ShuffledToy toy(5, 2);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  for (const int64_t num_slots : {2, 3, 7}) {
    SCOPED_TRACE(num_slots);
    bool is_stopped = false;
    HangingQueue::State state{[&](const FileRead&) { return is_stopped; }, {}};
    const auto source = open_source(checkpoint, num_slots, std::make_unique<HangingQueue>(state));
    for (int64_t round = 0; round < 4; ++round) {
      is_stopped = true;
      for (int64_t layer = 0; layer < 4; ++layer) {
        const std::string error = take_all(*source, mapped, 2 * layer + round % 2, all_of(0));
        EXPECT_THAT(error, AllOf(HasSubstr(".safetensors: tensor "), HasSubstr("no answer")));
      }
      is_stopped = false;
      for (int64_t layer = 0; layer < kNumLayers; ++layer) {
        EXPECT_EQ(take_all(*source, mapped, layer, all_of(layer)), "");
      }
    }
  }
}

TEST(DiskExpertSource, FaultsOfEveryKindAtEveryReadGiveAnErrorOrTheRightBytes) {
  const ShuffledToy toy(4, 2);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  int num_errors = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    int num_faults = 0;
    const auto source = open_source(
        checkpoint, int64_t(2 + random() % 12),
        std::make_unique<FaultyQueue>([&](int64_t, const FileRead& read) -> std::optional<int64_t> {
          if (random() % 8 != 0) return std::nullopt;
          ++num_faults;
          switch (random() % 4) {
            case 0:
              return -EIO;
            case 1:
              return -ECANCELED;
            case 2:
              return -EINTR;  // is done again
            default:
              return read.to.size() > 4096 ? 4096 : 0;  // a part, which is completed; or nothing
          }
        }));
    for (int i = 0; i < 100; ++i) {
      const int64_t layer = int64_t(random() % kNumLayers);
      const int before = num_faults;
      const std::string error = take_all(*source, mapped, layer, all_of(layer));
      if (error.empty()) continue;
      ++num_errors;
      EXPECT_GT(num_faults, before);
      EXPECT_THAT(error, HasSubstr(".safetensors: tensor "));
    }
  }
  EXPECT_GT(num_errors, 100);
}

TEST(DiskExpertSource, AReadThatIsInterruptedForEverIsAnError) {
  const ShuffledToy toy(0, 1);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  const auto source = open_source(checkpoint, 2, std::make_unique<FaultyQueue>([](auto...) {
                                    return std::optional<int64_t>(-EINTR);
                                  }));
  EXPECT_THAT(take_all(*source, mapped, 0, {0}), HasSubstr("Interrupted system call"));
}

TEST(DiskExpertSource, AFileThatBecameShorterIsNamedWithWhatWasFound) {
  for (const bool is_blocking : {false, true}) {
    const ShuffledToy toy(0, 2, /*has_experts_apart=*/true);
    const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
    const auto source =
        open_source(checkpoint, 20, is_blocking ? make_blocking_queue(8) : fast_queue());
    const std::string whole = read_file(toy.file_path(1)).value();
    const uint64_t cut = checkpoint.place("layers.2.ffn.experts.6.w3.weight").value().begin + 100;
    fs::resize_file(toy.file_path(1), cut);
    const auto first_error = [&](std::vector<int32_t> ids) {
      ExpertLease lease = source->acquire(2, ids);
      for (;;) {
        const Result<std::span<const LoadedExpert>> loaded = lease.next();
        if (!loaded.has_value()) return loaded.error().message;
        if (loaded.value().empty()) return std::string();
      }
    };
    EXPECT_EQ(first_error({0, 1}), "") << "they lie before the cut";
    const ExpertFiles::Extents extents = source->files().extents(2, 6);
    ASSERT_EQ(extents.count, 1u) << "one read";
    const ExpertFiles::Extent& read = extents.list[0];
    EXPECT_EQ(first_error({0, 6}),
              format(toy.file_path(1), ": tensor layers.2.ffn.experts.6.w3.weight: at byte ",
                     read.begin, ": found ", cut - read.begin, " bytes, expected ",
                     read.wanted_end - read.begin, "; did the file become shorter?"));
    EXPECT_EQ(first_error({0, 1}), "");
    // It is the same file again.
    fs::resize_file(toy.file_path(1), whole.size());
    std::fstream(toy.file_path(1), std::ios::in | std::ios::out | std::ios::binary) << whole;
    MappedExpertSource mapped =
        std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
    EXPECT_EQ(take_all(*source, mapped, 2, {0, 6}), "");
  }
}

TEST(DiskExpertSource, GivesTheBytesOfFilesThatCannotBeReadPastThePageCache) {
  const ShuffledToy toy(3, 2);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  MappedExpertSource mapped =
      std::move(MappedExpertSource::open(checkpoint.config(), checkpoint).value());
  for (const bool is_blocking : {false, true}) {
    std::unique_ptr<DiskExpertSource> source;
    test::run_without_direct_reads([&] {
      source = open_source(checkpoint, 5, is_blocking ? make_blocking_queue(8) : fast_queue());
    });
    EXPECT_FALSE(source->files().is_direct());
    for (int64_t layer = 0; layer < kNumLayers; ++layer) {
      EXPECT_EQ(take_all(*source, mapped, layer, all_of(layer)), "");
    }
  }
}

TEST(ExpertFiles, AFileThatIsAnotherNowIsRefused) {
  const ShuffledToy toy(0, 1);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  const std::string whole = read_file(toy.file_path(0)).value();
  std::ofstream(toy.file_path(0), std::ios::app | std::ios::binary) << "more";
  EXPECT_EQ(ExpertFiles::open(checkpoint).error().message,
            format(toy.file_path(0), ": found ", whole.size() + 4, " bytes, expected ",
                   whole.size(), ", as when it was mapped"));
  MR_CHECK(write_file(toy.file_path(0), whole).ok());  // of its size, and in its place
  EXPECT_EQ(ExpertFiles::open(checkpoint).error().message,
            toy.file_path(0) +
                ": found another file under this name, expected the one that is mapped");
  fs::remove(toy.file_path(0));
  EXPECT_EQ(ExpertFiles::open(checkpoint).error().message,
            toy.file_path(0) + ": cannot open: No such file or directory");
}

TEST(ExpertFiles, ReadsTensorsTogetherThatLieTogether) {
  const ShuffledToy toy(0, 1);
  const Checkpoint checkpoint = std::move(Checkpoint::open(toy.path()).value());
  const ExpertFiles files = std::move(ExpertFiles::open(checkpoint).value());
  const ExpertFiles::Extents extents = files.extents(1, 3);
  EXPECT_EQ(extents.count, 1u);
  EXPECT_EQ(extents.list[0].begin % ExpertFiles::kBlockBytes, 0u);
  EXPECT_EQ(extents.list[0].end % ExpertFiles::kBlockBytes, 0u);
  EXPECT_EQ(files.num_experts(), (std::vector<int64_t>{8, 8, 8, 8, 8, 8, 8, 8, 4, 4}));
}

TEST(DiskExpertSourceDeathTest, AnExpertOutOfRangeStopsTheProgram) {
  const Checkpoint checkpoint = std::move(Checkpoint::open(kToy).value());
  const auto source = open_source(checkpoint, 4, make_blocking_queue(8));
  const int32_t beyond[] = {8};
  EXPECT_DEATH((void)source->acquire(0, beyond), "check failed: id <");
  EXPECT_DEATH((void)source->acquire(10, {}), "check failed: layer <");
  const ExpertLease lease = source->acquire(0, {});
  EXPECT_DEATH((void)source->acquire(0, {}), "check failed: !is_leased_");
}

}  // namespace
}  // namespace millrace
