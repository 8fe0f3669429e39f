#include "engine/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/test_toy_model.h"
#include "sys/file.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using test::greedy;
using test::prompt_of;

// A file of this run: recordings never replace one.
std::string temporary_file(const std::string& name) {
  static const struct Folder {
    Folder() { MR_CHECK(::mkdtemp(path.data()) != nullptr); }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path = ::testing::TempDir() + "millrace-replay-XXXXXX";
  } folder;
  return folder.path + "/" + name;
}

// So few blocks that sequences push each other out.
EngineOptions crowded(const std::string& record_file) {
  EngineOptions options = test::options();
  options.record_file = record_file;
  options.block_size = 16;
  options.num_blocks = 18;
  options.max_model_len = 288;
  options.max_num_seqs = 6;
  options.prefill_chunk = 16;
  return options;
}

Request seeded(Request request, uint64_t seed) {
  request.sampling.temperature = 1;
  request.sampling.seed = seed;
  return request;
}

std::optional<FinishReason> read_to_the_end(RequestStream& stream) {
  std::optional<FinishReason> last;
  while (const auto next = stream.next()) last = next->event.finish_reason;
  return last;
}

// Requests of every kind that the scheduler decides on: alone and together, several choices, stop
// strings, log-probabilities of the prompt, cancelled, out of time, at a reader that falls behind.
void run_requests(Engine& engine) {
  std::promise<void> is_behind;
  size_t num_events = 0;
  const auto on_event = [&] {
    if (++num_events == StreamBuffer::kMaxPendingEvents) is_behind.set_value();
  };
  const auto slow = std::move(engine.submit(greedy(prompt_of(3, 9), 270), on_event).value());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Request request = seeded(greedy(prompt_of(20 + 13 * i, i), 30), uint64_t(i));
      request.num_choices = i == 1 ? 3 : 1;
      request.priority = i % 2;
      request.fairness_key = i == 2 ? "k\xff" : "";
      if (i == 2) request.sampling.prompt_logprobs = 1;
      if (i == 3) request.sampling.stop = {"1><", "99"};
      const auto stream = std::move(engine.submit(std::move(request)).value());
      read_to_the_end(*stream);
    });
  }
  const auto cancelled = std::move(engine.submit(greedy(prompt_of(30, 5), 150)).value());
  ASSERT_TRUE(cancelled->next());
  cancelled->cancel();
  Request late = greedy(prompt_of(60, 6), 100);
  late.timeout_ms = 5;
  const auto timed = std::move(engine.submit(std::move(late)).value());
  EXPECT_EQ(read_to_the_end(*cancelled), FinishReason::kAbort);
  EXPECT_EQ(read_to_the_end(*timed), FinishReason::kTimeout);
  for (std::thread& thread : threads) thread.join();
  is_behind.get_future().wait();
  EXPECT_EQ(read_to_the_end(*slow), FinishReason::kLength);
}

std::vector<Record> records_of(std::string_view text) {
  RecordingReader reader(text);
  std::vector<Record> records;
  for (;;) {
    Result<std::optional<Record>> record = reader.next();
    if (!record.has_value()) {
      ADD_FAILURE() << record.error().message;
      return records;
    }
    if (!record.value()) return records;
    records.push_back(std::move(*record.value()));
  }
}

std::string text_of(const std::vector<Record>& records) {
  uint64_t sum = kFirstSum;
  std::string text;
  for (const Record& record : records) append_record(record, sum, text);
  return text;
}

std::unique_ptr<ReplayModel> open_model(std::string_view text, int num_threads,
                                        const std::string& isa) {
  LoadOptions load = test::options().load;
  load.num_threads = num_threads;
  load.isa = isa;
  Result<std::unique_ptr<ReplayModel>> model =
      ReplayModel::open(read_header(text).value(), load, test::golden_token_map());
  if (!model.has_value()) ADD_FAILURE() << model.error().message;
  return std::move(model.value());
}

std::string error_of(const Result<ReplayReport>& report) {
  return report.has_value() ? "accepted" : report.error().message;
}

class ReplayTest : public ::testing::Test {
 protected:
  // One run for all.
  static void SetUpTestSuite() {
    const std::string file = temporary_file("replay_test.recording");
    {
      const std::unique_ptr<Engine> engine = test::open(crowded(file));
      run_requests(*engine);
      stats_ = engine->stats();
    }
    text_ = read_file(file).value();
    records_ = records_of(text_);
  }
  // The first record of this kind that satisfies the condition, in a copy of the run.
  template <class T>
  static T& find(std::vector<Record>& records, const std::function<bool(const T&)>& is_it) {
    for (Record& record : records) {
      T* found = std::get_if<T>(&record);
      if (found && is_it(*found)) return *found;
    }
    ADD_FAILURE() << "the run has no such record";
    std::abort();
  }
  template <class T>
  static int64_t count() {
    return std::count_if(records_.begin(), records_.end(), [](const Record& record) {
      return std::holds_alternative<T>(record);
    });
  }

  static std::string text_;
  static std::vector<Record> records_;
  static SchedulerStats stats_;
};
std::string ReplayTest::text_;
std::vector<Record> ReplayTest::records_;
SchedulerStats ReplayTest::stats_;

TEST_F(ReplayTest, TheRunHasWhatIsHardToRepeat) {
  EXPECT_GT(stats_.num_preemptions, 0);
  EXPECT_EQ(count<RecordedArrival>(), 7);
  EXPECT_GE(count<RecordedCancel>(), 1);
  EXPECT_GE(count<RecordedPause>(), 1);
  EXPECT_EQ(count<RecordedPlan>(), count<RecordedResult>());
  EXPECT_EQ(count<RecordingEnd>(), 1);
}

TEST_F(ReplayTest, WithoutAModelEveryPlanIsTheRecordedOne) {
  const ReplayReport report = replay(text_, nullptr).value();
  EXPECT_THAT(report.differences, ::testing::IsEmpty());
  EXPECT_EQ(report.num_differences, 0);
  EXPECT_TRUE(report.is_complete);
  EXPECT_EQ(report.num_requests, 7);
  EXPECT_GE(report.num_steps, stats_.num_steps) << "those of the last step may be missing";
  EXPECT_LE(report.num_steps, count<RecordedPlan>());
  EXPECT_EQ(report.num_lines, int64_t(records_.size()));
  EXPECT_GT(report.num_tokens, 300);
  EXPECT_GT(report.num_rows, report.num_tokens);
}

TEST_F(ReplayTest, WithTheModelEveryTokenIsTheRecordedOneUnderOtherThreadsAndKernels) {
  for (const auto& [num_threads, isa] : {std::pair(1, ""), std::pair(2, "ref")}) {
    const std::unique_ptr<ReplayModel> model = open_model(text_, num_threads, isa);
    const ReplayReport report = replay(text_, &model->executor()).value();
    EXPECT_THAT(report.differences, ::testing::IsEmpty()) << isa;
    EXPECT_EQ(report.num_tokens, replay(text_, nullptr).value().num_tokens);
    EXPECT_EQ(model->numerics_id(), read_header(text_).value().numerics_id);
  }
}

TEST_F(ReplayTest, AnotherPlanIsReportedWithItsStep) {
  std::vector<Record> records = records_;
  RecordedPlan& plan = find<RecordedPlan>(
      records, [](const RecordedPlan& p) { return p.step_id > 3 && !p.rows.empty(); });
  plan.rows[0].first_position += 1;
  const ReplayReport report = replay(text_of(records), nullptr).value();
  ASSERT_EQ(report.num_differences, 1);
  EXPECT_THAT(report.differences[0], HasSubstr("step " + std::to_string(plan.step_id) + ": found "));
  EXPECT_LT(report.num_lines, int64_t(records.size())) << "the replay ends there";

  plan.rows[0].first_position -= 1;
  plan.placement ^= 1;
  EXPECT_THAT(replay(text_of(records), nullptr).value().differences[0], HasSubstr("other places"));
}

TEST_F(ReplayTest, ARequestThatIsAnotherOneLeadsToOtherPlans) {
  std::vector<Record> records = records_;
  find<RecordedArrival>(records, [](const RecordedArrival& a) {
    return a.request.num_choices == 3;
  }).request.num_choices = 2;
  EXPECT_EQ(replay(text_of(records), nullptr).value().num_differences, 1);
}

TEST_F(ReplayTest, AStopStringEndsTheReplayedOutputToo) {
  std::vector<Record> records = records_;
  Request& request = find<RecordedArrival>(records, [](const RecordedArrival& a) {
                       return !a.request.sampling.stop.empty();
                     }).request;
  request.sampling.stop = {"<"};  // in the first token
  EXPECT_EQ(replay(text_of(records), nullptr).value().num_differences, 1);
}

TEST_F(ReplayTest, AnotherTokenIsReportedWithItsPlaceAndTheReplayGoesOn) {
  std::vector<Record> records = records_;
  // The last token of a run: nothing follows from it.
  RecordedResult* last = nullptr;
  for (Record& record : records) {
    auto* result = std::get_if<RecordedResult>(&record);
    if (result && !result->token_ids.empty()) last = result;
  }
  const int32_t was = last->token_ids[0];
  last->token_ids[0] = was == 5 ? 6 : 5;
  const std::string text = text_of(records);
  EXPECT_EQ(replay(text, nullptr).value().num_differences, 0) << "the plans are the same";
  const std::unique_ptr<ReplayModel> model = open_model(text, 1, "");
  const ReplayReport report = replay(text, &model->executor()).value();
  ASSERT_EQ(report.num_differences, 1);
  EXPECT_THAT(report.differences[0],
              HasSubstr("found token " + std::to_string(was) + ", expected "));
  EXPECT_TRUE(report.is_complete);
}

TEST_F(ReplayTest, ARecordingThatWasCutIsReplayedUpToItsLastWholeRecord) {
  const ReplayReport whole = replay(text_, nullptr).value();
  int64_t num_steps = 0;
  for (size_t size = text_.find('\n') + 1; size < text_.size(); size += 997) {
    const ReplayReport report = replay(std::string_view(text_).substr(0, size), nullptr).value();
    EXPECT_EQ(report.num_differences, 0) << "cut at byte " << size;
    EXPECT_FALSE(report.is_complete);
    EXPECT_GE(report.num_steps, num_steps);
    num_steps = report.num_steps;
  }
  EXPECT_GT(num_steps, whole.num_steps / 2);
}

TEST_F(ReplayTest, WhatCannotHaveHappenedIsRefusedByLine) {
  const auto error = [&](auto change) {
    std::vector<Record> records = records_;
    change(records);
    return error_of(replay(text_of(records), nullptr));
  };
  const auto is_any = [](const auto&) { return true; };
  EXPECT_THAT(error([&](auto& r) { std::get<RecordingHeader>(r[0]).scheduler.max_num_seqs = 0; }),
              HasSubstr("line 1: max_num_seqs: found 0"));
  EXPECT_THAT(error([&](auto& r) { std::get<RecordingHeader>(r[0]).scheduler.num_blocks = 1 << 30; }),
              HasSubstr("line 1: num_blocks: found 1073741824, expected 1 to 67108864"));
  EXPECT_THAT(error([&](auto& r) { std::get<RecordingHeader>(r[0]).vocab_size = 0; }),
              HasSubstr("line 1: vocab_size: found 0"));
  EXPECT_THAT(error([&](auto& r) { std::get<RecordingHeader>(r[0]).eos_token_ids = {-1}; }),
              HasSubstr("line 1: eos_token_ids: found -1"));
  EXPECT_THAT(error([&](auto& r) { r.insert(r.begin() + 1, RecordedResult()); }),
              HasSubstr("line 2: found a result, expected a plan before it"));
  EXPECT_THAT(error([&](auto& r) {
                const Record arrival = find<RecordedArrival>(r, is_any);
                r.insert(r.begin() + 1, arrival);
              }),
              HasSubstr(" again, expected a new one"));
  EXPECT_THAT(error([&](auto& r) { find<RecordedArrival>(r, is_any).now_ms = -1; }),
              HasSubstr("now_ms: found -1, expected at least 0"));
  EXPECT_THAT(error([&](auto& r) { find<RecordedArrival>(r, is_any).request.choice_idx = -1; }),
              HasSubstr("choice_idx: found -1"));
  EXPECT_THAT(error([&](auto& r) { find<RecordedArrival>(r, is_any).request.num_choices = 0; }),
              HasSubstr("n: found 0"));
  const auto has_tokens = [](const RecordedResult& result) { return !result.token_ids.empty(); };
  EXPECT_THAT(error([&](auto& r) { find<RecordedResult>(r, has_tokens).token_ids.pop_back(); }),
              HasSubstr("token_ids: found "));
  EXPECT_THAT(error([&](auto& r) { find<RecordedResult>(r, has_tokens).token_ids[0] = 512; }),
              HasSubstr("token id: found 512, expected 0 to 511"));
  EXPECT_THAT(error([&](auto& r) {
                find<RecordedResult>(r, has_tokens).new_tokens = {{-1, "x", false}};
              }),
              HasSubstr("token id: found -1"));
  EXPECT_THAT(error([&](auto& r) {
                find<RecordedResult>(r, has_tokens).errors = {{0, 128, Code::kCorrupt, "x"}};
              }),
              HasSubstr("errors: found rows 0, sample 128, expected those of the plan"));
  EXPECT_THAT(error([&](auto& r) {
                const auto plan = std::find_if(r.begin(), r.end(), [](const Record& record) {
                  return std::holds_alternative<RecordedPlan>(record);
                });
                r.insert(plan + 1, *plan);
              }),
              HasSubstr("found a plan, expected the result of the one before"));
}

TEST_F(ReplayTest, RefusesAModelThatIsNotTheRecordedOne) {
  const auto error = [&](auto change) {
    RecordingHeader header = read_header(text_).value();
    change(header);
    const auto model =
        ReplayModel::open(header, test::options().load, test::golden_token_map());
    return model.has_value() ? "accepted" : model.error().message;
  };
  EXPECT_THAT(error([](RecordingHeader& h) { h.model.config_sha256 = "ab"; }),
              HasSubstr("expected that of the recording: ab and "));
  EXPECT_THAT(error([](RecordingHeader& h) { h.model.tensors_sha256 = "cd"; }), HasSubstr(" and cd"));
  EXPECT_EQ(error([](RecordingHeader& h) { h.numerics = "exact"; }),
            "numerics: found exact, expected reference or fp32");
  EXPECT_THAT(error([](RecordingHeader& h) { h.scheduler.block_size = 15; }),
              HasSubstr("block_size: found 15, expected "));
}

// ---- Recording.

TEST(Record, AnErrorOfOneSequenceIsRepeated) {
  const std::string file = temporary_file("replay_test.error");
  {
    EngineOptions options = test::options();
    options.record_file = file;
    const std::unique_ptr<Engine> engine = test::open(options);
    Request request = greedy(prompt_of(5, 0), 3);
    request.sampling.allowed_token_ids = {3};
    request.sampling.bad_words_token_ids = {{3}};
    EXPECT_FALSE(engine->generate(request).has_value());
  }
  const std::string text = read_file(file).value();
  EXPECT_THAT(text, HasSubstr("leave no token"));
  EXPECT_EQ(replay(text, nullptr).value().num_differences, 0);
  const std::unique_ptr<ReplayModel> model = open_model(text, 1, "");
  EXPECT_EQ(replay(text, &model->executor()).value().num_differences, 0);
}

TEST(Record, ARunThatGoesOnCanBeRead) {
  const std::string file = temporary_file("replay_test.running");
  EngineOptions options = test::options();
  options.record_file = file;
  const std::unique_ptr<Engine> engine = test::open(options);
  const auto stream = std::move(engine->submit(greedy(prompt_of(5, 0), 100)).value());
  ASSERT_TRUE(stream->next());
  ASSERT_TRUE(stream->next());  // of the second step, which was recorded before it was computed
  const std::string text = read_file(file).value();
  const ReplayReport report = replay(text, nullptr).value();
  EXPECT_EQ(report.num_requests, 1);
  EXPECT_GE(report.num_steps, 1);
  EXPECT_FALSE(report.is_complete);
}

TEST(Record, AFullDiskEndsTheRecordingAndNothingElse) {
  // A limit on the size of files is the closest to a full disk that a process can do to itself.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const std::string file = temporary_file("replay_test.full");
  std::mutex mutex;
  std::vector<std::string> warnings;
  EngineOptions options = test::options();
  options.record_file = file;
  options.on_warning = [&](const std::string& warning) {
    const std::lock_guard lock(mutex);
    warnings.push_back(warning);
  };
  {
    const rlimit limit{8192, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const std::unique_ptr<Engine> engine = test::open(options);
    EXPECT_EQ(engine->generate(greedy(prompt_of(5, 0), 100)).value().token_ids.size(), 100u);
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr(file + ": recording ends here: cannot write: "));
  const ReplayReport report = replay(read_file(file).value(), nullptr).value();
  EXPECT_GT(report.num_tokens, 10) << "what was written before counts";
  EXPECT_FALSE(report.is_complete);
}

TEST(Record, RefusesAFileThatCannotBeWrittenAndTimesThatCannot) {
  const auto error = [](const EngineOptions& options) {
    const auto engine = Engine::open(options, test::token_table());
    return engine.has_value() ? "accepted" : engine.error().message;
  };
  EngineOptions options = test::options();
  options.record_file = temporary_file("no/such/folder");
  EXPECT_THAT(error(options), HasSubstr("no/such/folder: cannot create: "));
  options.record_file = temporary_file("replay_test.there");
  ASSERT_TRUE(write_file(options.record_file, "precious").ok());
  EXPECT_EQ(error(options), options.record_file + ": found a file, expected a new name");
  EXPECT_EQ(read_file(options.record_file).value(), "precious");
  options.record_file = temporary_file("replay_test.endless");
  options.max_step_ms = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error(options), "max_step_ms: found inf, expected a finite time in a recording");
}

}  // namespace
}  // namespace millrace
